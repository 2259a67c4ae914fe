"""What is wrong with a store, in words: the second half of `audit`, for a store that has a fault.

Numbers in the messages are physical blocks, sequence ids and rules of the design document. What
is found here must be found by `audit.is_clean`, too, and the other way round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import audit_open_ops, audit_ops, ops
from stemkv.kvstore.audit_ops import Marks
from stemkv.kvstore.ops import FILL, NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import Violation
from stemkv.kvstore.violations_open import (
    blocks_of,
    copies,
    leaders,
    open_of,
    pins,
    quotas,
    roots,
    sequences,
)
from stemkv.kvstore.violations_tree import index, order, tree

KIND_NAMES = {ops.CACHED: "cached", ops.TAILS: "tail", ops.KEPT: "kept"}
_IN_TREE = (ops.PUBLISHED, ops.TAIL)
_LISTED = 20
"""So many blocks with the same fault are told of one by one, the rest by their number."""

_FAULTS = 64


@dataclass(slots=True, eq=False)
class Rows:
    """The columns of all blocks, int32 [capacity] each, and what follows from them.

    live: whether a block is in the tree of a live root; of rows that hold.
    """

    store: BlockStore
    meta: ops.I32 = field(init=False)
    state: ops.I32 = field(init=False)
    in_tree: Marks = field(init=False)

    def __post_init__(self) -> None:
        """Read the columns."""
        self.meta = self.store.pool.meta[: self.store.pool.capacity]
        self.state = self.meta[:, STATE]
        self.in_tree = np.isin(self.state, _IN_TREE)

    @property
    def dead(self) -> Marks:
        """Whether a block is of a dead root; its root must be one."""
        of = np.where(self.used, self.meta[:, ops.ROOT], 0)
        return np.asarray(self.used & (self.store.pool.roots[of, ops.DEAD] != 0))

    @property
    def used(self) -> Marks:
        """Whether a block is somebody's."""
        return ~np.isin(self.state, (ops.FREE, ops.QUARANTINED))

    @property
    def live(self) -> Marks:
        """Whether a block is in the tree of a live root; its root must be one."""
        return self.in_tree & ~self.dead


def violations_of(store: BlockStore) -> tuple[Violation, ...]:
    """Check what `audit` checks; the single rows first, what hangs together only if they hold."""
    rows = Rows(store)
    found = [*_rows(rows)]
    opened = [*sequences(store, rows_hold=not found)]
    sane = not any(violation.sequences for violation in opened)
    if not found:
        placed = np.full(store.pool.capacity, NONE, np.int32)
        found = [*_lists(rows, placed), *_references(rows, placed, named=sane)]
        if not found:
            live = rows.live
            found = [*_counts(rows), *index(store, live), *tree(store, live)]
            found += order(store, live, placed)
    checks = (copies, leaders, roots, pins, quotas)
    return (*found, *opened, *(violation for check in checks for violation in check(store)))


def kept(store: BlockStore) -> ops.I32:
    """Count how many pins keep each block, int32 [capacity]."""
    counts = np.zeros(store.pool.capacity, np.int32)
    for pin in store.pins:
        np.add.at(counts, pin.blocks[(pin.blocks >= 0) & (pin.blocks < len(counts))], 1)
    return counts


def known_roots(store: BlockStore) -> Marks:
    """Mark the numbers that are roots, live or dead with something left of them."""
    marks = np.zeros(len(store.pool.roots), np.bool_)
    for root in (*store.roots, *store.roots.dead):
        if root.index < len(marks):
            marks[root.index] = True
    return marks


def _told(
    bad: Marks | npt.NDArray[np.intp], text: str, *columns: npt.NDArray[np.generic], named: bool
) -> Iterator[Violation]:
    """Tell of blocks one by one, and of how many more there are.

    text: with {} for the block and for each of the columns at it. named: whether the blocks
    themselves are in doubt.
    """
    blocks = np.flatnonzero(bad) if bad.dtype == np.bool_ else bad
    for b in blocks[:_LISTED].tolist():
        values = (column[b].item() for column in columns)
        yield Violation(text.format(b, *values), (b,) if named else ())
    rest = tuple(blocks[_LISTED:].tolist())
    if rest:
        more = f"{len(rest)} more blocks as block {blocks[0]}"
        yield Violation(more, rest if named else ())


def _rows(rows: Rows) -> Iterator[Violation]:
    """Check each row for itself."""
    store, meta, state = rows.store, rows.meta, rows.state
    pool, size = store.pool, store.config.block_size
    if len(pool.meta) - pool.capacity < 2 * len(pool.accounts) - 1:
        yield Violation(f"{len(pool.accounts)} accounts have too few lists")
        return
    root, known = meta[:, ops.ROOT], known_roots(store)
    strange = rows.used & ~rows.in_tree & (state != ops.PRIVATE)
    yield from _told(strange, "block {} is in state {}, which is none", state, named=True)
    inside = (root >= 0) & (root < len(known))
    rooted = np.zeros(len(root), np.bool_)
    rooted[inside] = known[root[inside]]
    homeless = rows.used & ~strange & ~rooted
    yield from _told(homeless, "block {} hangs on root {}, which is not alive", root, named=True)
    sound = rows.used & ~strange & rooted
    of = np.where(sound, root, 0)
    account = pool.roots[of, ops.ACCOUNT] if len(pool.roots) else np.zeros(len(of), np.int64)
    nobody = sound & ~((account >= 1) & (account < len(pool.accounts)))
    text = "block {} is charged to account {}, which is none (rule 11)"
    yield from _told(nobody, text, account, named=False)
    held = sound & rows.in_tree
    fill, owner = meta[:, FILL], meta[:, ops.OWNER]
    full = np.where(state == ops.PUBLISHED, fill == size, (fill > 0) & (fill < size))
    yield from _told(held & ~full, "block {} in state {} holds {} tokens", state, fill, named=True)
    nobody = held & ~((owner >= 0) & (owner < len(store.owners.names)))
    yield from _told(nobody, "block {} is of owner {}, who is nobody", owner, named=True)
    dead = pool.roots[of, ops.DEAD] != 0 if len(pool.roots) else np.zeros(len(of), np.bool_)
    yield from _links(meta, state, held & ~dead)


def _links(meta: ops.I32, state: ops.I32, live: Marks) -> Iterator[Violation]:
    """Check that links lead to blocks, and parents to blocks or to the block's own root."""
    links = meta[:, [ops.FIRST_CHILD, ops.NEXT_SIBLING, ops.PREV_SIBLING]]
    parent = meta[:, PARENT].astype(np.int64)
    linked = ((links >= NONE) & (links < len(meta))).all(axis=1)
    hangs = (parent >= 0) & (parent < len(meta)) | (parent == -2 - meta[:, ops.ROOT])
    childless = (state != ops.TAIL) | (links[:, 0] == NONE)
    for b in np.flatnonzero(live & ~(linked & hangs & childless)).tolist():
        yield Violation(
            f"block {b}: links {tuple(links[b].tolist())} and parent {parent[b]} are not of the "
            "tree",
            (b,),
        )


def _names_of_lists(store: BlockStore) -> dict[int, str]:
    names = {ops.FREE_LIST: "free"}
    for account, name in enumerate(store.accounts.names[1:], 1):
        names[int(ops.cached_list(account))] = f"cached ({name})"
        names[int(ops.tail_list(account))] = f"tails ({name})"
    return names


def _lists(rows: Rows, placed: ops.I32) -> Iterator[Violation]:
    """Check the lists; placed gets where among all of them a block comes."""
    names, capacity = _names_of_lists(rows.store), len(placed)
    on = np.full(capacity, NONE, np.int32)
    faults = np.zeros((_FAULTS, 4), np.int64)
    n = audit_ops.follow_lists(blocks_of(rows.store), placed, on, faults)
    for code, which, before, b in faults[:n].tolist():
        name = names.get(which, f"account {(which + 1) // 2}'s")
        ends = tuple(x for x in (before, b) if 0 <= x < capacity)
        match code:
            case audit_ops.NO_BLOCK:
                yield Violation(f"{name} list: {b} is no block", ends)
            case audit_ops.TWICE:
                there = names.get(int(on[b]), "other")
                text = f"block {b} is on the {name} list and on the {there} list"
                yield Violation(text, ends)
            case audit_ops.UNLINKED:
                yield Violation(f"{name} list: the links of {before} and {b} disagree", ends)
            case audit_ops.NOT_ITS_LIST:
                text = f"block {b} in state {rows.state[b]} is on the {name} list"
                yield Violation(text, (b,))
            case _:
                text = f"{name} list: the links of {before} and its end disagree"
                yield Violation(text, ends)


def _references(rows: Rows, placed: ops.I32, *, named: bool) -> Iterator[Violation]:
    """Check who holds blocks. named: whether tables are right, so that blocks must be wrong."""
    store, meta = rows.store, rows.meta
    held, pinned = np.zeros((2, len(meta)), np.int32)
    audit_open_ops.hold_all(open_of(store), held)
    for copy in store.copies.open():
        if 0 <= copy.source < len(meta):
            pinned[copy.source] += 1
    pins_ = kept(store)
    ref, pin, keep = (meta[:, column] for column in (REF, PIN, ops.KEEP))
    text = "block {}: {} references counted, {} held"
    yield from _told(ref != held, text, ref, held, named=named)
    yield from _told(
        pin != pinned, "block {}: {} copies counted, {} read it", pin, pinned, named=True
    )
    flushed = rows.in_tree & rows.dead
    text = "block {}: {} pins counted, {} keep it"
    yield from _told((keep != pins_) & ~flushed, text, keep, pins_, named=True)
    idle = (held == 0) & (pinned == 0) & (rows.state != ops.QUARANTINED)
    wanted = idle & ~(rows.in_tree & (keep != 0))
    there = placed != NONE
    text = "block {}: held {} times, read by {}, on a list: {} (rule 10)"
    yield from _told(there != wanted, text, held, pinned, there, named=False)


def _counts(rows: Rows) -> Iterator[Violation]:
    """Check what roots, accounts and the pool count (rules 10 and 11)."""
    pool = rows.store.pool
    roots_, accounts = np.zeros_like(pool.roots), np.zeros_like(pool.accounts)
    audit_ops.count_blocks(blocks_of(rows.store), roots_, accounts)
    columns = {ops.CHARGED: "charged", **KIND_NAMES}
    yield from _miscounted("root", 0, columns, pool.roots, roots_, 10)
    columns = {ops.HELD: "held", **KIND_NAMES}
    yield from _miscounted("account", 1, columns, pool.accounts, accounts, 11)
    columns = {ops.FREED: "free", ops.STALE: "stale", ops.OUT: "quarantined", **KIND_NAMES}
    for column, name in columns.items():
        said, there = pool.accounts[ops.POOL, column], accounts[ops.POOL, column]
        if said != there:
            yield Violation(f"pool: {said} {name} blocks counted, {there} there (rule 10)")


def _miscounted(
    what: str, first: int, columns: dict[int, str], said: ops.I64, there: ops.I64, rule: int
) -> Iterator[Violation]:
    for column, name in columns.items():
        for i in np.flatnonzero(said[first:, column] != there[first:, column]) + first:
            yield Violation(
                f"{what} {i}: {said[i, column]} {name} blocks counted, {there[i, column]} there "
                f"(rule {rule})"
            )
