"""Faults to plant into a store, each with the words in which an audit must tell of it."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from stemkv.kvstore import chains, leaf_heaps, ops
from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.eviction import ScoredOrder
from stemkv.kvstore.ids import BlockId
from stemkv.kvstore.pins import Pin
from stemkv.kvstore.pool import NO_BLOCKS
from stemkv.kvstore.properties.scene import (
    ANN,
    STORES,
    Scene,
    make_scene,
    open_sequence,
)
from stemkv.kvstore.violations import KIND_NAMES

Plant = Callable[[Scene], None]

_FREE_HEAD = -1 - ops.FREE_LIST


def _account(scene: Scene, name: str) -> int:
    """Return the number of an account."""
    return scene.store.accounts.names.index(name)


def _set_meta(block: str, column: int, value: int) -> Plant:
    """Set one number of one row."""
    return _change_meta(block, column, lambda _: value)


def _change_meta(block: str, column: int, value: Callable[[int], int]) -> Plant:
    """Change one number of one row."""

    def corrupt(scene: Scene) -> None:
        b = {
            "cached": scene.cached[1],
            "parent": scene.cached[0],
            "tail": scene.cached[2],
            "sibling": scene.sibling,
            "private": scene.private,
            "free": int(scene.store.pool.meta[_FREE_HEAD, ops.NEXT]),
            "pinned": scene.pinned[0],
            "pinned child": scene.pinned[1],
            "stale": scene.stale,
            "out": scene.out,
        }[block]
        row = scene.store.pool.meta[b]
        row[column] = value(int(row[column]))

    return corrupt


def _change_root(block: str) -> Plant:
    """Let a block hang on a root of another account."""

    def corrupt(scene: Scene) -> None:
        strange = scene.store.sequences[scene.leader].root.index
        _set_meta(block, ops.ROOT, strange)(scene)

    return corrupt


def _swap_order(scene: Scene) -> None:
    """Move a parent to the oldest end of the cached list."""
    pool = scene.store.pool
    leaf = open_sequence(scene.store, range(4), ANN)
    scene.store.release(scene.sequence)
    scene.store.release(leaf)
    b = scene.cached[0]
    ops.unlink(pool.meta, b)
    head = -1 - int(ops.list_of(pool.meta, pool.roots, b))
    after = int(pool.meta[head, ops.NEXT])
    pool.meta[head, ops.NEXT] = pool.meta[after, ops.PREV] = b
    pool.meta[b, ops.PREV], pool.meta[b, ops.NEXT] = head, after


def _shelve_tail(scene: Scene) -> None:
    """Move a tail to the list of published blocks."""
    pool = scene.store.pool
    ops.unlink(pool.meta, scene.cached[2])
    ops.link_newest(pool.meta, ops.cached_list(_account(scene, "ann")), scene.cached[2])


def _make_twin(scene: Scene) -> None:
    """Publish a second block with the content of a cached one."""
    pool = scene.store.pool
    twin, original = scene.private, scene.cached[1]
    pool.tokens[twin] = pool.tokens[original]
    pool.keys[twin] = (1, 2)
    root, owner = (int(pool.meta[original, c]) for c in (ops.ROOT, ops.OWNER))
    ops.enter(pool.meta, pool.roots, pool.accounts, twin, 4, scene.cached[0], root, owner)
    pool.meta[twin, ops.STATE] = ops.PUBLISHED
    ops.insert_key(pool.table, pool.keys, twin)


def _set_state(name: str, value: int, who: str = "sequence") -> Plant:
    """Set one number of a sequence."""

    def corrupt(scene: Scene) -> None:
        setattr(scene.store.sequences[getattr(scene, who)], name, value)

    return corrupt


def _put_in_table(index: int, block: Callable[[Scene], int]) -> Plant:
    """Put another block into a sequence's table, and let the counts agree."""

    def corrupt(scene: Scene) -> None:
        pool = scene.store.pool
        table = scene.store.table_of(scene.sequence)
        pool.meta[table[index], ops.REF] -= 1
        table[index] = block(scene)
        pool.meta[table[index], ops.REF] += 1

    return corrupt


def _hold_twice(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold its first block twice, its second not at all."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    _put_in_table(1, lambda s: s.cached[0])(scene)
    ops.park(pool.meta, pool.roots, pool.accounts, scene.sibling)


def _hold_child_alone(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold a block of its own instead of its first one."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    root = int(pool.meta[scene.cached[0], ops.ROOT])
    own = int(pool.take(1, NO_BLOCKS, root)[0])
    pool.meta[own, ops.REF] = 0
    _put_in_table(0, lambda _: own)(scene)
    ops.park(pool.meta, pool.roots, pool.accounts, scene.cached[0])


def _drop_from_index(scene: Scene) -> None:
    """Take a published block out of the index alone."""
    pool = scene.store.pool
    ops.delete_key(pool.table, pool.keys, scene.cached[1])


def _hide_in_index(scene: Scene) -> None:
    """Move an entry of the index to where it is not looked for."""
    table = scene.store.pool.table
    slot = int(((table >= 0) & (table & 0xFFFFFFFF == scene.cached[1])).argmax())
    free = (table == ops.NONE) & (np.roll(table, 1) == ops.NONE)
    entry, table[slot] = table[slot], ops.NONE
    table[int(free.argmax())] = entry


def _change_tokens(scene: Scene) -> None:
    """Change what a cached block is said to hold."""
    scene.store.pool.tokens[scene.cached[1], 2] += 1


def _change_history(scene: Scene) -> None:
    """Change a token of a sequence whose block is published."""
    scene.store.tokens_of(scene.sequence)[5] += 1


def _count_more_sequences(scene: Scene) -> None:
    """Count a sequence too many on a root."""
    scene.store.sequences[scene.sequence].root.sequences += 1


def _lose_sequence(scene: Scene) -> None:
    """Forget an open sequence, its leadership not."""
    del scene.store._open.by_number[scene.leader]


def _kill_root(scene: Scene) -> None:
    """Take a root away from under its blocks."""
    root = scene.store.sequences[scene.sequence].root
    del scene.store.roots._by_identity[root.identity]


def _share_while_writing(scene: Scene) -> None:
    """Fork a sequence, and let both write to the shared block."""
    store = scene.store
    child = store.fork(scene.sequence)
    assert isinstance(child, int)
    for sequence in (scene.sequence, child):
        store.extend(sequence, 1)
        store.sequences[sequence].reserved += 1


def _publish_ahead(scene: Scene) -> None:
    """Say of a sequence that it has still to write what is published."""
    state = scene.store.sequences[scene.sequence]
    state.published, state.computed = 1, 5


def _redirect_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that is published."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned.clear()
    planned[copy.destination] = copy._replace(destination=BlockId(scene.cached[1]))


def _chain_copies(scene: Scene) -> None:
    """Plan a copy from a block that is itself waiting for one."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    third = BlockId(scene.private)
    planned[third] = copy._replace(source=copy.destination, destination=third)


def _stretch_copy(scene: Scene) -> None:
    """Let a planned copy be longer than a block."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(tokens=5)


def _throw_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that there is not."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(destination=BlockId(99))


def _corrupt_end(scene: Scene) -> None:
    """Let a list's sentinel name another as its last block."""
    head = -1 - int(ops.cached_list(_account(scene, "ann")))
    scene.store.pool.meta[head, ops.PREV] = scene.private


def _corrupt_head(scene: Scene) -> None:
    """Let a root's first child be no block."""
    root = scene.store.sequences[scene.sequence].root
    scene.store.pool.roots[root.index, ops.HEAD] = 99


def _adopt_child(scene: Scene) -> None:
    """Let a block without children claim one of another, which is listed before it."""
    scene.store.pool.meta[scene.cached[1], ops.FIRST_CHILD] = scene.sibling


def _set_row(column: int, value: int, who: str = "sequence") -> Plant:
    """Set one number of a sequence's row that has no name outside."""

    def corrupt(scene: Scene) -> None:
        scene.store.sequence_arrays.rows[getattr(scene, who), column] = value

    return corrupt


def _lose_block(scene: Scene) -> None:
    """Put a number that is no block into a sequence's table."""
    scene.store.table_of(scene.sequence)[1] = 99


def _mislead(scene: Scene) -> None:
    """Let a leader promise another block than its next."""
    scene.store.leaders.stop(scene.leader)
    scene.store.leaders.start(scene.leader, (scene.cached[0], b"1234"))


def _loop_list(scene: Scene) -> None:
    """Let the free list bite its tail."""
    meta = scene.store.pool.meta
    first = int(meta[_FREE_HEAD, ops.NEXT])
    meta[int(meta[first, ops.NEXT]), ops.NEXT] = first


def _loop_siblings(scene: Scene) -> None:
    """Let the last of a block's children be its own next sibling."""
    meta = scene.store.pool.meta
    last = int(meta[scene.cached[0], ops.FIRST_CHILD])
    while meta[last, ops.NEXT_SIBLING] >= 0:
        last = int(meta[last, ops.NEXT_SIBLING])
    meta[last, ops.NEXT_SIBLING] = last
    meta[last, ops.PREV_SIBLING] = last


def _put_out_on_list(scene: Scene) -> None:
    """Put a block that is out of service on the free list."""
    ops.link_newest(scene.store.pool.meta, ops.FREE_LIST, scene.out)


def _index_out(scene: Scene) -> None:
    """Put a block that is out of service into the index."""
    pool = scene.store.pool
    ops.insert_key(pool.table, pool.keys, scene.out)


def _put_on_list_of(name: str) -> Plant:
    """Move a cached block of ann's to another account's list."""

    def corrupt(scene: Scene) -> None:
        meta = scene.store.pool.meta
        ops.unlink(meta, scene.cached[1])
        ops.link_newest(meta, ops.cached_list(_account(scene, name)), scene.cached[1])

    return corrupt


def _unlink(block: Callable[[Scene], int]) -> Plant:
    """Take a block off its list alone."""
    return lambda scene: ops.unlink(scene.store.pool.meta, block(scene))


def _count_root(sequence: str, column: int) -> Plant:
    """Count a block too many on the root of a sequence."""

    def corrupt(scene: Scene) -> None:
        root = scene.store.sequences[getattr(scene, sequence)].root
        scene.store.pool.roots[root.index, column] += 1

    return corrupt


def _set_root(sequence: str, column: int, value: int) -> Plant:
    """Set one number of the row of a sequence's root."""

    def corrupt(scene: Scene) -> None:
        root = scene.store.sequences[getattr(scene, sequence)].root
        scene.store.pool.roots[root.index, column] = value

    return corrupt


def _add_to_account(name: str, column: int, change: int) -> Plant:
    """Change one number of an account, "" for the pool's own row."""

    def corrupt(scene: Scene) -> None:
        number = _account(scene, name) if name else ops.POOL
        scene.store.pool.accounts[number, column] += change

    return corrupt


def _pin(scene: Scene) -> Pin:
    return next(iter(scene.store.pins))


def _keep_child_alone(scene: Scene) -> None:
    """Let the scene's pin keep the end of its chain only."""
    pool, parent = scene.store.pool, scene.pinned[0]
    _pin(scene).blocks = np.array(scene.pinned[1:], np.int32)
    ops.keep_no_more(pool.meta, pool.roots, pool.accounts, np.array([parent], np.int32))


def _keep_nowhere(scene: Scene) -> None:
    """Let a pin keep a block that there is not."""
    _pin(scene).blocks = np.array([*scene.pinned, 99], np.int32)


def _grow_child_on_tail(scene: Scene) -> None:
    """Let a tail claim a child."""
    scene.store.pool.meta[scene.cached[2], ops.FIRST_CHILD] = scene.sibling


def _hide_stale_in_index(scene: Scene) -> None:
    """Move a flushed block's entry to where it will not be removed from."""
    scene.cached[1] = scene.stale
    _hide_in_index(scene)


def _hold_what_is_out(scene: Scene) -> None:
    """Let a sequence that publishes hold a block that is out of service."""
    pool = scene.store.pool
    own = int(scene.store.table_of(scene.sequence)[2])
    _put_in_table(2, lambda s: s.out)(scene)
    ops.free(pool.meta, pool.roots, pool.accounts, own)


def _source_nowhere(scene: Scene) -> None:
    """Let a planned copy come from a block that there is not."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(source=BlockId(99))


def _heaps(scene: Scene) -> tuple[ScoredOrder, int]:
    """Return the order of a store with scores, and the number of bob's account."""
    order = scene.store.order
    assert isinstance(order, ScoredOrder)
    return order, _account(scene, "bob")


def _leave_out(scene: Scene) -> None:
    """Take a leaf out of its heap."""
    order, bob = _heaps(scene)
    leaf_heaps.take_out(order._leaves, bob, scene.leaves[0])


def _heap_of_another(scene: Scene) -> None:
    """Put a leaf into the heap of another account."""
    order, bob = _heaps(scene)
    leaf_heaps.take_out(order._leaves, bob, scene.leaves[0])
    leaf_heaps.put(order._leaves, _account(scene, "ann"), scene.leaves[0])


def _turn_heap_over(scene: Scene) -> None:
    """Put the lowest of two leaves below the other."""
    order, bob = _heaps(scene)
    leaves = order._leaves
    for b in scene.leaves:
        leaf_heaps.take_out(leaves, bob, b)
    above, below = scene.leaves
    if leaf_heaps.precedes(leaves, above, below):
        above, below = below, above
    rest = int(leaves.top[bob])
    leaves.top[bob] = above
    leaves.before[above], leaves.child[above] = ops.NONE, below
    leaves.before[below], leaves.following[below] = above, rest
    if rest >= 0:
        leaves.before[rest] = below


def _score_of_another(scene: Scene) -> None:
    """Let two leaves have one row of scores."""
    order, _ = _heaps(scene)
    order._slots[scene.leaves[0]] = order._slots[scene.leaves[1]]


def _score_of_nothing(scene: Scene) -> None:
    """Let a leaf have a row of scores that there is not."""
    _heaps(scene)[0]._slots[scene.leaves[0]] = 10**9


class Fault(NamedTuple):
    """What plants a fault into a scene, and words that one of the violations must have.

    store: of `STORES`, the kind that has room for the fault.
    """

    plant: Plant
    words: str
    store: str = "compiled hash"


_FAULTS_AT_HAND: Mapping[str, tuple[Plant, str]] = {
    "reference too many": (
        _change_meta("private", ops.REF, lambda n: n + 1),
        "2 references counted",
    ),
    "reference too few": (
        _change_meta("private", ops.REF, lambda n: n - 1),
        "0 references counted",
    ),
    "pin too many": (_change_meta("cached", ops.PIN, lambda n: n + 1), "1 copies counted"),
    "free in use": (_change_meta("free", ops.REF, lambda n: n + 1), "1 references counted, 0 held"),
    "list link": (_set_meta("cached", ops.PREV, 3), "links of"),
    "list to nowhere": (_set_meta("cached", ops.NEXT, 99), "99 is no block"),
    "list cut short": (_set_meta("free", ops.NEXT, -1 - ops.FREE_LIST), "(rule 10)"),
    "list's end": (_corrupt_end, "its end disagree"),
    "list into another": (_set_meta("free", ops.NEXT, 1), "in state 2 is on the free"),
    "list to no number": (_set_meta("cached", ops.NEXT, -1), "is no block"),
    "state on list": (_set_meta("cached", ops.STATE, ops.FREE), "in state 0 is on the cached"),
    "tail among the published": (_shelve_tail, "in state 3 is on the cached"),
    "state of a held block": (_set_meta("private", ops.STATE, 9), "which is none"),
    "private as published": (
        _set_meta("private", ops.STATE, ops.PUBLISHED),
        "holds 0 tokens",
    ),
    "published with a hole": (_set_meta("cached", ops.FILL, 3), "holds 3 tokens"),
    "empty tail": (_set_meta("tail", ops.FILL, 0), "holds 0 tokens"),
    "owner": (_set_meta("cached", ops.OWNER, 9), "who is nobody"),
    "root": (_set_meta("cached", ops.ROOT, 9), "not alive"),
    "other root": (_change_root("sibling"), "its parent on"),
    "root is gone": (_kill_root, "not alive"),
    "parent": (_set_meta("cached", ops.PARENT, -2), "disagree"),
    "no parent": (_set_meta("cached", ops.PARENT, ops.NONE), "not of the tree"),
    "sibling": (_set_meta("sibling", ops.NEXT_SIBLING, ops.NONE), "0 times in the tree"),
    "sibling back": (_set_meta("cached", ops.PREV_SIBLING, ops.NONE), "disagree"),
    "child": (_set_meta("parent", ops.FIRST_CHILD, ops.NONE), "0 times in the tree"),
    "child of another": (_adopt_child, "disagree"),
    "head of a root": (_corrupt_head, "disagree"),
    "parent that is none": (_set_meta("cached", ops.PARENT, 99), "not of the tree"),
    "child that is none": (_set_meta("parent", ops.FIRST_CHILD, 99), "not of the tree"),
    "order of eviction": (_swap_order, "evicted after its parent"),
    "not in the index": (_drop_from_index, "not the same set"),
    "lost in the index": (_hide_in_index, "not found under its own key"),
    "content": (_change_tokens, "not the hash of its content"),
    "twin": (_make_twin, "are twins"),
    "history": (_change_history, "holds other tokens"),
    "published too far": (_set_state("published", 3), "out of order"),
    "computed too far": (_set_state("computed", 11), "out of order"),
    "reserved too far": (_set_state("reserved", 11), "out of order"),
    "reserved too little": (_set_state("reserved", 9), "out of order"),
    "longer than may be": (_set_state("length", 65), "out of order"),
    "published less than none": (_set_state("published", -1), "out of order"),
    "blocks beyond the table": (_set_state("blocks", 17), "17 blocks for 10 positions"),
    "blocks less than none": (_set_state("blocks", -1), "-1 blocks for 10 positions"),
    "root in the row": (_set_row(chains.ROOT_INDEX, 7), "root 7 or owner 1"),
    "owner in the row": (_set_state("owner", 9), "owner 9 is not its own"),
    "no block in the table": (_lose_block, "99 in its table is no block"),
    "too few blocks": (_set_state("blocks", 2), "2 blocks for 10 positions"),
    "another's block": (_put_in_table(1, lambda s: s.cached[0]), "stands twice"),
    "a block twice": (_hold_twice, "stands twice"),
    "a child in use, its parent not": (_hold_child_alone, "evicted after its parent"),
    "a stranger's block": (
        _put_in_table(1, lambda s: int(s.store.table_of(s.leader)[1])),
        "not its published chain",
    ),
    "writes to shared": (_share_while_writing, "write to shared block"),
    "writes to published": (_publish_ahead, "write to published block"),
    "sequence lost": (_lose_sequence, "not all sequences"),
    "leader lost": (_lose_sequence, "said to lead"),
    "leader silent": (_set_state("writes", False, "leader"), "does not publish next"),
    "leader misleads": (_mislead, "does not publish next"),
    "root's count": (_count_more_sequences, "sequences counted"),
    "copy to a published block": (_redirect_copy, "not a sequence's own"),
    "copy of a copy": (_chain_copies, "part of another"),
    "copy to nowhere": (_throw_copy, "99, which is no block"),
    "copy too long": (_stretch_copy, "5 tokens"),
    "list in a ring": (_loop_list, "free list and on the free list"),
    "siblings in a ring": (_loop_siblings, "disagree"),
    "kept by a pin too many": (
        _change_meta("pinned child", ops.KEEP, lambda n: n + 1),
        "2 pins counted",
    ),
    "kept by a pin too few": (
        _change_meta("pinned child", ops.KEEP, lambda n: n - 1),
        "0 pins counted",
    ),
    "private kept by a pin": (_set_meta("private", ops.KEEP, 1), "1 pins counted"),
    "a parent kept less": (_keep_child_alone, "kept by more pins than its parent"),
    "a pin on no chain": (_keep_child_alone, "no chain of its root"),
    "a pin on nothing": (_keep_nowhere, "no chain of its root"),
    "private of another root": (_change_root("private"), "charged blocks counted"),
    "stale of a live root": (_change_root("stale"), "stale blocks counted"),
    "stale on no list": (_unlink(lambda s: s.stale), "(rule 10)"),
    "stale astray in the index": (_hide_stale_in_index, "not found under its own key"),
    "dead root alive": (_set_root("mourner", ops.DEAD, 0), "account and death"),
    "live root dead": (_set_root("sequence", ops.DEAD, 1), "account and death"),
    "root of another account": (_set_root("sequence", ops.ACCOUNT, 1), "account and death"),
    "root of no account": (_set_root("sequence", ops.ACCOUNT, 9), "account 9, which is none"),
    "root's key": (_set_root("sequence", ops.KEY_LOW, 9), "its key is not what its row has"),
    "another account's list": (_put_on_list_of("bob"), "in state 2 is on the cached (bob)"),
    "public blocks too few": (_set_state("entry", 1, "guest"), "1 public blocks"),
    "public blocks of nobody": (_set_state("entry", 1), "1 public blocks"),
    "public root": (_set_row(chains.PUBLIC_ROOT, 7, "guest"), "public root 7"),
    "prompt longer than all": (_set_state("prompt_blocks", 9), "9 blocks of a prompt"),
    "tail with a child": (_grow_child_on_tail, "not of the tree"),
    "child of another's root": (_set_meta("cached", ops.PARENT, -(2**31)), "not of the tree"),
    "out of service on a list": (_put_out_on_list, "in state 4 is on the free list"),
    "out of service in the index": (_index_out, "not the same set"),
    "out of service held": (_hold_what_is_out, "which is out of service"),
    "copy from nowhere": (_source_nowhere, "99, which is no block"),
    "reserves over the pool": (_add_to_account("ann", ops.RESERVE, 28), "do not fit the pool"),
    "less reserved than granted": (_add_to_account("ann", ops.RESERVE, -1), "quotas say"),
    "more allowed than granted": (_add_to_account("bob", ops.CAP, 1), "quotas say"),
}

_ROOT_COUNTS = {ops.CHARGED: "charged", **KIND_NAMES}
_ACCOUNT_COUNTS = {ops.HELD: "held", **KIND_NAMES}
_POOL_COUNTS = {ops.FREED: "free", ops.STALE: "stale", ops.OUT: "quarantined", **KIND_NAMES}

_COUNTS = {
    **{
        f"root's {name}": (_count_root("sequence", column), f" {name} blocks counted")
        for column, name in _ROOT_COUNTS.items()
    },
    "dead root's charged": (_count_root("mourner", ops.CHARGED), " charged blocks counted"),
    **{
        f"account's {name}": (_add_to_account("bob", column, 1), f" {name} blocks counted")
        for column, name in _ACCOUNT_COUNTS.items()
    },
    **{
        f"pool's {name}": (_add_to_account("", column, -1), f"pool: .* {name} blocks counted")
        for column, name in _POOL_COUNTS.items()
    },
}

_SCORES = {
    "leaf in no heap": (_leave_out, "no candidate for eviction"),
    "leaf in another's heap": (_heap_of_another, "stands where it does not belong"),
    "heap upside down": (_turn_heap_over, "stands where it does not belong"),
    "score of another": (_score_of_another, "has the score of another"),
    "score of nothing": (_score_of_nothing, "score is nowhere"),
}

FAULTS: Mapping[str, Fault] = {
    **{name: Fault(*fault) for name, fault in {**_FAULTS_AT_HAND, **_COUNTS}.items()},
    **{name: Fault(*fault, "eviction by score") for name, fault in _SCORES.items()},
}
"""All of them, by name."""


def scene_with(fault: Fault, kind: str | None = None) -> Scene:
    """Make a scene with a fault in it, in a store of this kind, or of the fault's own."""
    scene = make_scene(STORES[kind or fault.store]())
    fault.plant(scene)
    return scene


def audit_finds_the_fault(fault: str) -> None:
    """Check that both halves of an audit find a planted fault, the second in the words for it."""
    scene = scene_with(FAULTS[fault])
    assert not is_clean(scene.store)
    violations = audit(scene.store)
    words = re.compile(FAULTS[fault].words.replace("(", r"\(").replace(")", r"\)"))
    assert any(words.search(violation.message) for violation in violations), violations
