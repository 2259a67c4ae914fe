"""Small block stores for tests, and the calls of a step in short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId, SequenceId
from stemkv.kvstore.keys import Digest
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission

SECRET = b"a secret of tests"
GROUP = domain_of(SECRET, tenant="", group="g")
ANN = Namespace("ann", domain_of(SECRET, tenant="ann"))
BOB = Namespace("bob", domain_of(SECRET, tenant="bob"))
CAT = Namespace("cat", GROUP)
DAN = Namespace("dan", GROUP)


@dataclass(slots=True)
class Clock:
    """Seconds that pass when told."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def make_store(
    capacity_blocks: int = 16,
    block_size: int = 4,
    *,
    max_sequences: int = 8,
    max_tokens: int = 64,
    hash_function: str = "xxh3_128",
    prefix_cache: bool = True,
    partial_hits: bool = True,
    clock: Callable[[], float] | None = None,
    digest: Digest | None = None,
) -> BlockStore:
    """Make a store whose directory is a `RecordingDirectory`."""
    config = StoreConfig(
        capacity_blocks=capacity_blocks,
        block_size=block_size,
        max_sequences=max_sequences,
        max_tokens=max_tokens,
        secret=SECRET,
        block_bytes=100,
        hash_function=hash_function,
        prefix_cache=prefix_cache,
        partial_hits=partial_hits,
    )
    return BlockStore(config, RecordingDirectory(), clock or Clock(), digest)


def directory_of(store: BlockStore) -> RecordingDirectory:
    """Return the directory that `make_store` gave a store."""
    assert isinstance(store.directory, RecordingDirectory)
    return store.directory


def tokens(prompt: Sequence[int]) -> Tokens:
    """Make a prompt."""
    return np.array(prompt, np.int32)


def open_(
    store: BlockStore, prompt: Sequence[int], ns: Namespace = ANN, **flags: bool
) -> SequenceId:
    """Admit a prompt that must fit."""
    got = store.admit(ns, tokens(prompt), **flags)
    assert isinstance(got, Admission), got
    return got.sequence


def run(store: BlockStore, *sequences: SequenceId) -> None:
    """Run a step that computes all that these sequences know."""
    for sequence in sequences:
        assert store.reserve(sequence, store.sequences[sequence].length) is None
    store.take_copies()
    for sequence in sequences:
        store.commit(sequence, store.sequences[sequence].length)
    store.settle()
    assert audit(store) == ()


def cache(
    store: BlockStore, prompt: Sequence[int], ns: Namespace = ANN, **flags: bool
) -> list[int]:
    """Compute a prompt and let it go; returns its block table."""
    sequence = open_(store, prompt, ns, **flags)
    run(store, sequence)
    table = [int(b) for b in store.table_of(sequence)]
    store.release(sequence)
    assert audit(store) == ()
    return table


def grow(store: BlockStore, sequence: SequenceId, *more: int) -> None:
    """Append tokens to a sequence."""
    for token in more:
        store.extend(sequence, token)


def flush_of(
    kind: FlushKind, ns: Namespace = ANN, prefix: Sequence[int] = (), nonce: bytes = b"n" * 16
) -> Flush:
    """Make a flush order of a namespace."""
    return Flush(
        flush_id=FlushId("flush"),
        kind=kind,
        nonce=nonce,
        domain=ns.domain,
        adapter=ns.adapter,
        adapter_digest=ns.adapter_digest,
        salt=ns.salt,
        prefix=tokens(prefix).tobytes(),
    )


def hit(store: BlockStore, prompt: Sequence[int], ns: Namespace = ANN) -> tuple[int, int]:
    """Return how many full blocks and further tokens of a prompt would be reused."""
    found = store.lookup(ns, tokens(prompt))
    return found.full_blocks, found.partial_tokens
