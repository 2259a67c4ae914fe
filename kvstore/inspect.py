"""What is in the cache, block by block, for an operator: no text, and nothing is changed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import ops
from stemkv.kvstore.keys import KEY_BYTES
from stemkv.kvstore.ops import NONE
from stemkv.kvstore.roots import Root
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import BlockDetail, BlockInfo, BlockPage

STATES = ("cached", "in_use")

_SHORTEST_PREFIX = 8
_HEX = frozenset("0123456789abcdef")


def list_blocks(
    store: BlockStore,
    *,
    tenant: str | None = None,
    adapter: str | None = None,
    salt: str | None = None,
    state: str | None = None,
    min_references: int = 0,
    cursor: int | None = None,
    limit: int = 100,
) -> BlockPage:
    """Return a page of published blocks and tails, in order of their physical number.

    None as a filter means any. state: one of `STATES`. cursor: the `next_cursor` of the page
    before. Raises ValueError for an unknown state and for a limit below 1.
    """
    if state is not None and state not in STATES:
        raise ValueError(f"state: {state!r} is not one of {', '.join(STATES)}")
    if limit < 1:
        raise ValueError(f"limit: {limit} is less than 1")
    rows = store.pool.meta[: store.pool.capacity]
    references = rows[:, ops.REF] + rows[:, ops.PIN]
    wanted = _in_tree(store) & (references >= min_references)
    if state is not None:
        wanted &= (references > 0) == (state == "in_use")
    if tenant is not None:
        wanted &= rows[:, ops.OWNER] == store.owners.find(tenant)
    if adapter is not None or salt is not None:
        roots = [root.index for root in store.roots if _is_of(root, adapter, salt)]
        wanted &= np.isin(rows[:, ops.ROOT], roots)
    wanted[: 0 if cursor is None else max(0, cursor)] = False
    found = np.flatnonzero(wanted)
    page = _Describer(store).describe(found[:limit])
    return BlockPage(page, int(found[limit]) if len(found) > limit else None)


def get_block(store: BlockStore, key: str) -> BlockDetail | None:
    """Return one published block by its key in hex, or by a unique start of it; None if unknown.

    Raises ValueError if the key is no hex, shorter than 8 digits or longer than 32, or if
    several blocks' keys begin so.
    """
    found = _find(store, key.lower())
    if len(found) > 1:
        raise ValueError(f"key: {key!r} is ambiguous: the keys of {len(found)} blocks begin so")
    if not len(found):
        return None
    block = int(found[0])
    describer = _Describer(store)
    chain = [block, *describer.above(block)]
    return BlockDetail(
        info=describer.describe(found)[0],
        token_ids=tuple(store.pool.tokens[block].tolist()),
        chain=tuple(store.pool.key(b).hex() for b in reversed(chain)),
        children=describer.describe(np.array([*store.pool.children(block)], np.int64)),
    )


def _in_tree(store: BlockStore) -> npt.NDArray[np.bool_]:
    return store.pool.live()


def _is_of(root: Root, adapter: str | None, salt: str | None) -> bool:
    _, its_adapter, _, its_salt, _ = root.identity
    return adapter in (None, its_adapter) and salt in (None, its_salt)


def _find(store: BlockStore, key: str) -> npt.NDArray[np.int64]:
    """Return the published blocks whose keys begin with these hex digits."""
    if not _HEX.issuperset(key) or not _SHORTEST_PREFIX <= len(key) <= 2 * KEY_BYTES:
        raise ValueError(
            f"key: {key!r} is not {_SHORTEST_PREFIX} to {2 * KEY_BYTES} hexadecimal digits"
        )
    pool = store.pool
    states = pool.meta[: pool.capacity, ops.STATE]
    published = np.flatnonzero(pool.live() & (states == ops.PUBLISHED))
    digits = pool.keys[published].view(np.uint8).reshape(-1, KEY_BYTES)
    whole = bytes.fromhex(key[: len(key) // 2 * 2])
    same = (digits[:, : len(whole)] == np.frombuffer(whole, np.uint8)).all(axis=1)
    if len(key) % 2:
        same &= digits[:, len(whole)] >> 4 == int(key[-1], 16)
    return np.asarray(published[same])


@dataclass(frozen=True, slots=True, eq=False)
class _Describer:
    """Turns rows into values."""

    store: BlockStore

    def above(self, block: int) -> list[int]:
        """Return the blocks between a block and its root, nearest first."""
        parents = self.store.pool.meta[:, ops.PARENT]
        found: list[int] = []
        at = int(parents[block])
        while at >= 0:
            found.append(at)
            at = int(parents[at])
        return found

    def describe(self, blocks: npt.NDArray[np.int64]) -> tuple[BlockInfo, ...]:
        """Describe blocks of the tree."""
        pool = self.store.pool
        parents = pool.meta[: pool.capacity, ops.PARENT][_in_tree(self.store)]
        children = np.bincount(parents[parents >= 0], minlength=pool.capacity)
        return tuple(self._info(block, int(children[block])) for block in blocks.tolist())

    def _info(self, block: int, children: int) -> BlockInfo:
        pool = self.store.pool
        row = pool.meta[block].tolist()
        parent = row[ops.PARENT]
        _, adapter, _, salt, _ = self.store.roots[row[ops.ROOT]].identity
        references = row[ops.REF] + row[ops.PIN]
        return BlockInfo(
            block=block,
            key=pool.key(block).hex() if row[ops.STATE] == ops.PUBLISHED else None,
            parent=pool.key(parent).hex() if parent > NONE else None,
            tenant=self.store.owners.names[row[ops.OWNER]],
            adapter=adapter,
            salt=salt,
            depth=len(self.above(block)) * pool.block_size,
            tokens=row[ops.FILL],
            references=references,
            state="in_use" if references else "cached",
            children=children,
        )
