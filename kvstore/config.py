"""Settings of one store, validated once."""

from dataclasses import dataclass

from stemkv.kvstore.keys import HASH_FUNCTIONS
from stemkv.policies.eviction import EVICTION

MAX_CAPACITY_BLOCKS = 1 << 30


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What a store is made with.

    capacity_blocks: size of the pool. block_size: tokens a block. block_bytes: bytes of a block's
    keys and values, for reports. max_sequences: open at one time. max_tokens: of one sequence.
    secret, fingerprint (model weights), kv_dtype: equal in all processes of a deployment.
    keep_free: blocks that are free again whenever a sequence ends, so that what the next one writes
    pushes out nothing worth more.
    compare_policies: keep count of what other policies of eviction would have hit; each release
    then costs a little more.
    event_blocks: events that are kept for readers, 0 for none. curves: estimate miss-ratio curves.
    prefix_cache False: nothing is ever looked up or published. partial_hits False: full blocks
    only.
    """

    capacity_blocks: int
    block_size: int
    max_sequences: int
    max_tokens: int
    secret: bytes
    fingerprint: str = ""
    kv_dtype: str = ""
    block_bytes: int = 0
    hash_function: str = "xxh3_128"
    eviction: str = "lru"
    keep_free: int = 0
    compare_policies: bool = False
    event_blocks: int = 0
    curves: bool = False
    prefix_cache: bool = True
    partial_hits: bool = True

    def __post_init__(self) -> None:
        """Refuse what no store can be made of."""
        for name in ("capacity_blocks", "block_size", "max_sequences", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if self.capacity_blocks > MAX_CAPACITY_BLOCKS:
            raise ValueError(
                f"capacity_blocks: {self.capacity_blocks} is over {MAX_CAPACITY_BLOCKS}"
            )
        if not 0 <= self.keep_free < self.capacity_blocks:
            raise ValueError(f"keep_free: {self.keep_free} is not in 0..{self.capacity_blocks - 1}")
        if self.event_blocks < 0:
            raise ValueError(f"event_blocks: {self.event_blocks} is less than 0")
        if self.hash_function not in HASH_FUNCTIONS:
            known = ", ".join(HASH_FUNCTIONS)
            raise ValueError(f"hash_function: {self.hash_function!r} is not one of {known}")
        if self.eviction not in EVICTION:
            raise ValueError(f"eviction: {self.eviction!r} is not one of {', '.join(EVICTION)}")

    @property
    def blocks_per_sequence(self) -> int:
        """Length of the longest block table."""
        return -(-self.max_tokens // self.block_size)
