"""How much of a prompt is in the tree: full blocks one by one, then a part of one more."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.jit import COMPILES
from stemkv.kvstore.keys import HASH_FUNCTIONS, TOKEN_BYTES, Digest, as_bytes
from stemkv.kvstore.ops import I32, NONE
from stemkv.kvstore.pool import NO_BLOCKS, Pool, Tokens
from stemkv.kvstore.roots import Root
from stemkv.kvstore.xxh3 import MAX_WORDS, MIN_WORDS


class Match(NamedTuple):
    """What of a prompt is there: leading full blocks, then `partial_tokens` of block `partial`.

    unheld: how many of the blocks nothing holds that the prompt's own account is charged with;
    room: how many blocks that account could be given besides, -1 if that was not looked at.
    """

    blocks: I32
    partial: int = NONE
    partial_tokens: int = 0
    unheld: int = 0
    room: int = -1


NO_MATCH = Match(NO_BLOCKS)


@dataclass(frozen=True, slots=True, eq=False)
class Matcher:
    """Looks prompts up. digest: what hashes a block's key."""

    pool: Pool
    digest: Digest
    hashes_inside: bool = field(init=False)

    def __post_init__(self) -> None:
        """See whether the pool's own loops can make the keys: xxh3_128 over whole words."""
        words = 2 + self.pool.block_size // 2
        fits = self.pool.block_size % 2 == 0 and MIN_WORDS <= words <= MAX_WORDS
        native = self.digest is HASH_FUNCTIONS["xxh3_128"]
        object.__setattr__(self, "hashes_inside", native and fits and COMPILES)

    def key(self, parent: int, root: Root, data: bytes, index: int) -> BlockKey:
        """Return the key of the block of this index of `data`, tokens as little-endian int32."""
        width = self.pool.block_size * TOKEN_BYTES
        above = self.key_of_parent(parent, root)
        return self.hash(above + data[index * width : (index + 1) * width])

    def key_of_parent(self, parent: int, root: Root) -> BlockKey:
        """Return the key that a child of this parent (a block, or the root) is hashed with."""
        return self.pool.key(parent) if parent >= 0 else root.key

    def hash(self, data: bytes) -> BlockKey:
        """Hash what a block key is made of."""
        return BlockKey(self.digest(data))

    def full_blocks(self, root: Root, prompt: Tokens) -> I32:
        """Return the leading published blocks of a prompt below a root, verified one by one."""
        size = self.pool.block_size
        out = np.empty(len(prompt) // size, np.int32)
        data = b""
        parent, i = root.reference, 0
        while True:
            i = self.pool.walk(prompt, parent, i, out)
            if i == len(out):
                return out
            # The newest child is another one: look the block up by its key.
            data = data or as_bytes(prompt)
            parent = end_of(out[:i], root)
            b = self.pool.find_twin(prompt, i * size, parent, self.key(parent, root, data, i))
            if b < 0:
                return out[:i]
            out[i], parent, i = b, b, i + 1

    def match(self, root: Root, prompt: Tokens, owner: int, *, partial: bool) -> Match:
        """Return a prompt's longest reusable prefix below a root; partial False: full blocks only.

        owner: whose blocks may be copied in part.
        """
        if self.hashes_inside:
            blocks, block, length, unheld, room = self.pool.match_chain(prompt, root.index, owner)
            if not partial:
                block, length = NONE, 0
            return Match(blocks, block, length, unheld, room)
        blocks = self.full_blocks(root, prompt)
        unheld = self.pool.unheld(blocks, root.account)
        offset = len(blocks) * self.pool.block_size
        if not partial or offset == len(prompt):
            return Match(blocks, unheld=unheld)
        block, length = self.pool.best_partial(prompt, offset, end_of(blocks, root), owner)
        return Match(blocks, block, length, unheld)


def end_of(blocks: I32, root: Root) -> int:
    """Name the parent of what follows on a chain of blocks below a root."""
    return int(blocks[-1]) if len(blocks) else root.reference
