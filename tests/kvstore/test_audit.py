"""The audit finds what is planted, each kind by its own words."""

from collections.abc import Callable

import numpy as np
import pytest
from support.audit_scene import Scene, make_scene
from support.stores import ANN, make_store, open_, run, tokens

from stemkv.kvstore import ops
from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.ids import BlockId


@pytest.fixture
def scene() -> Scene:
    """Make the scene; the audit finds nothing in it."""
    return make_scene(make_store(24))


def set_meta(block: str, column: int, value: Callable[[int], int]) -> Callable[[Scene], None]:
    """Make a corruption of one number of one row."""

    def corrupt(scene: Scene) -> None:
        b = {
            "cached": scene.cached[1],
            "parent": scene.cached[0],
            "tail": scene.cached[2],
            "sibling": scene.sibling,
            "private": scene.private,
            "free": int(scene.store.pool.meta[24 + ops.FREE_LIST, ops.NEXT]),
        }[block]
        row = scene.store.pool.meta[b]
        row[column] = value(int(row[column]))

    return corrupt


def swap_order(scene: Scene) -> None:
    """Move a parent to the oldest end of the cached list."""
    pool = scene.store.pool
    leaf = open_(scene.store, range(4))
    scene.store.release(scene.sequence)
    scene.store.release(leaf)
    b = scene.cached[0]
    ops.unlink(pool.meta, pool.count, ops.CACHED_LIST, b)
    head = 24 + ops.CACHED_LIST
    after = int(pool.meta[head, ops.NEXT])
    pool.meta[head, ops.NEXT] = pool.meta[after, ops.PREV] = b
    pool.meta[b, ops.PREV], pool.meta[b, ops.NEXT] = head, after
    pool.count[ops.CACHED_LIST] += 1


def shelve_tail(scene: Scene) -> None:
    """Move a tail to the list of published blocks."""
    pool = scene.store.pool
    ops.unlink(pool.meta, pool.count, ops.TAIL_LIST, scene.cached[2])
    ops.link_newest(pool.meta, pool.count, ops.CACHED_LIST, scene.cached[2])


def make_twin(scene: Scene) -> None:
    """Publish a second block with the content of a cached one."""
    pool = scene.store.pool
    twin, original = scene.private, scene.cached[1]
    pool.tokens[twin] = pool.tokens[original]
    pool.keys[twin] = (1, 2)
    root, owner = (int(pool.meta[original, c]) for c in (ops.ROOT, ops.OWNER))
    ops.enter(pool.meta, pool.heads, twin, 4, scene.cached[0], root, owner)
    pool.meta[twin, ops.STATE] = ops.PUBLISHED
    ops.insert_key(pool.table, pool.keys, twin)


def set_state(name: str, value: int, who: str = "sequence") -> Callable[[Scene], None]:
    """Make a corruption of one number of a sequence."""

    def corrupt(scene: Scene) -> None:
        setattr(scene.store.sequences[getattr(scene, who)], name, value)

    return corrupt


def put_in_table(index: int, block: Callable[[Scene], int]) -> Callable[[Scene], None]:
    """Make a corruption of a sequence's block table that the counts agree with."""

    def corrupt(scene: Scene) -> None:
        pool = scene.store.pool
        table = scene.store.table_of(scene.sequence)
        pool.meta[table[index], ops.REF] -= 1
        table[index] = block(scene)
        pool.meta[table[index], ops.REF] += 1

    return corrupt


def hold_twice(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold its first block twice, its second not at all."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    put_in_table(1, lambda s: s.cached[0])(scene)
    ops.park(pool.meta, pool.count, scene.sibling)


def hold_child_alone(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold a block of its own instead of its first one."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    own = int(pool.meta[24 + ops.FREE_LIST, ops.NEXT])
    ops.unlink(pool.meta, pool.count, ops.FREE_LIST, own)
    pool.meta[own, ops.STATE] = ops.PRIVATE
    put_in_table(0, lambda s: own)(scene)
    ops.park(pool.meta, pool.count, scene.cached[0])


def drop_from_index(scene: Scene) -> None:
    """Take a published block out of the index alone."""
    pool = scene.store.pool
    ops.delete_key(pool.table, pool.keys, scene.cached[1])


def hide_in_index(scene: Scene) -> None:
    """Move an entry of the index to where it is not looked for."""
    table = scene.store.pool.table
    slot = int(((table >= 0) & (table & 0xFFFFFFFF == scene.cached[1])).argmax())
    free = (table == ops.NONE) & (np.roll(table, 1) == ops.NONE)
    entry, table[slot] = table[slot], ops.NONE
    table[int(free.argmax())] = entry


def change_tokens(scene: Scene) -> None:
    """Change what a cached block is said to hold."""
    scene.store.pool.tokens[scene.cached[1], 2] += 1


def change_history(scene: Scene) -> None:
    """Change a token of a sequence whose block is published."""
    scene.store.tokens_of(scene.sequence)[5] += 1


def count_more_sequences(scene: Scene) -> None:
    """Count a sequence too many on a root."""
    scene.store.sequences[scene.sequence].root.sequences += 1


def lose_sequence(scene: Scene) -> None:
    """Forget an open sequence, its leadership not."""
    del scene.store._open.by_number[scene.leader]


def kill_root(scene: Scene) -> None:
    """Take a root away from under its blocks."""
    root = scene.store.sequences[scene.sequence].root
    del scene.store.roots._by_identity[root.identity]


def share_while_writing(scene: Scene) -> None:
    """Fork a sequence, and let both write to the shared block."""
    store = scene.store
    child = store.fork(scene.sequence)
    assert isinstance(child, int)
    for sequence in (scene.sequence, child):
        store.extend(sequence, 1)
        store.sequences[sequence].reserved += 1


def publish_ahead(scene: Scene) -> None:
    """Say of a sequence that it has still to write what is published."""
    state = scene.store.sequences[scene.sequence]
    state.published, state.computed = 1, 5


def redirect_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that is published."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned.clear()
    planned[copy.destination] = copy._replace(destination=scene.cached[1])


def chain_copies(scene: Scene) -> None:
    """Plan a copy from a block that is itself waiting for one."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[scene.private] = copy._replace(source=copy.destination, destination=scene.private)


def stretch_copy(scene: Scene) -> None:
    """Let a planned copy be longer than a block."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(tokens=5)


def throw_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that there is not."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(destination=BlockId(99))


def corrupt_end(scene: Scene) -> None:
    """Let a list's sentinel name another as its last block."""
    scene.store.pool.meta[24 + ops.CACHED_LIST, ops.PREV] = scene.private


def corrupt_head(scene: Scene) -> None:
    """Let a root's first child be no block."""
    scene.store.pool.heads[scene.store.sequences[scene.sequence].root.index] = 99


def adopt_child(scene: Scene) -> None:
    """Let a block without children claim one of another, which is listed before it."""
    scene.store.pool.meta[scene.cached[1], ops.FIRST_CHILD] = scene.sibling


def set_row(column: int, value: int) -> Callable[[Scene], None]:
    """Make a corruption of one number of a sequence's row that has no name outside."""

    def corrupt(scene: Scene) -> None:
        scene.store.sequence_arrays.rows[scene.sequence, column] = value

    return corrupt


def lose_block(scene: Scene) -> None:
    """Put a number that is no block into a sequence's table."""
    scene.store.table_of(scene.sequence)[1] = 99


def mislead(scene: Scene) -> None:
    """Let a leader promise another block than its next."""
    scene.store.leaders.stop(scene.leader)
    scene.store.leaders.start(scene.leader, (scene.cached[0], b"1234"))


CORRUPTIONS: dict[str, tuple[Callable[[Scene], None], str]] = {
    "reference too many": (set_meta("private", ops.REF, lambda n: n + 1), "2 references counted"),
    "reference too few": (set_meta("private", ops.REF, lambda n: n - 1), "0 references counted"),
    "pin too many": (set_meta("cached", ops.PIN, lambda n: n + 1), "1 pins counted"),
    "free in use": (set_meta("free", ops.REF, lambda n: n + 1), "1 references counted, 0 held"),
    "list link": (set_meta("cached", ops.PREV, lambda n: 3), "links of"),
    "list to nowhere": (set_meta("cached", ops.NEXT, lambda n: 99), "99 is no block"),
    "list cut short": (set_meta("free", ops.NEXT, lambda n: 24), "(rule 10)"),
    "list's end": (corrupt_end, "its end disagree"),
    "list into another": (set_meta("free", ops.NEXT, lambda n: 25), "(rule 10)"),
    "list to no number": (set_meta("cached", ops.NEXT, lambda n: -1), "is no block"),
    "state on list": (set_meta("cached", ops.STATE, lambda n: ops.FREE), "on the cached list"),
    "tail among the published": (shelve_tail, "in state 3 is on the cached list"),
    "state of a held block": (set_meta("private", ops.STATE, lambda n: 9), "which is none"),
    "private as published": (
        set_meta("private", ops.STATE, lambda n: ops.PUBLISHED),
        "holds 0 tokens",
    ),
    "published with a hole": (set_meta("cached", ops.FILL, lambda n: 3), "holds 3 tokens"),
    "empty tail": (set_meta("tail", ops.FILL, lambda n: 0), "holds 0 tokens"),
    "owner": (set_meta("cached", ops.OWNER, lambda n: 9), "who is nobody"),
    "root": (set_meta("cached", ops.ROOT, lambda n: 9), "not alive"),
    "other root": (set_meta("cached", ops.ROOT, lambda n: 1 - n), "its parent on"),
    "root is gone": (kill_root, "not alive"),
    "parent": (set_meta("cached", ops.PARENT, lambda n: -2), "disagree"),
    "no parent": (set_meta("cached", ops.PARENT, lambda n: ops.NONE), "not of the tree"),
    "sibling": (set_meta("sibling", ops.NEXT_SIBLING, lambda n: ops.NONE), "0 times in the tree"),
    "sibling back": (set_meta("cached", ops.PREV_SIBLING, lambda n: ops.NONE), "disagree"),
    "child": (set_meta("parent", ops.FIRST_CHILD, lambda n: ops.NONE), "0 times in the tree"),
    "child of another": (adopt_child, "disagree"),
    "head of a root": (corrupt_head, "disagree"),
    "parent that is none": (set_meta("cached", ops.PARENT, lambda n: 24), "not of the tree"),
    "child that is none": (set_meta("parent", ops.FIRST_CHILD, lambda n: 99), "not of the tree"),
    "order of eviction": (swap_order, "evicted after its parent"),
    "not in the index": (drop_from_index, "not the same set"),
    "lost in the index": (hide_in_index, "not found under its own key"),
    "content": (change_tokens, "not the hash of its content"),
    "twin": (make_twin, "are twins"),
    "history": (change_history, "holds other tokens"),
    "published too far": (set_state("published", 3), "out of order"),
    "computed too far": (set_state("computed", 11), "out of order"),
    "reserved too far": (set_state("reserved", 11), "out of order"),
    "reserved too little": (set_state("reserved", 9), "out of order"),
    "longer than may be": (set_state("length", 65), "out of order"),
    "published less than none": (set_state("published", -1), "out of order"),
    "blocks beyond the table": (set_state("blocks", 17), "17 blocks for 10 positions"),
    "blocks less than none": (set_state("blocks", -1), "-1 blocks for 10 positions"),
    "root in the row": (set_row(ops.ROOT_INDEX, 7), "root 7 or owner 0"),
    "owner in the row": (set_state("owner", 9), "owner 9 is not its own"),
    "no block in the table": (lose_block, "99 in its table is no block"),
    "too few blocks": (set_state("blocks", 2), "2 blocks for 10 positions"),
    "another's block": (put_in_table(1, lambda s: s.cached[0]), "stands twice"),
    "a block twice": (hold_twice, "stands twice"),
    "a child in use, its parent not": (hold_child_alone, "evicted after its parent"),
    "a stranger's block": (
        put_in_table(1, lambda s: int(s.store.table_of(s.leader)[1])),
        "not its published chain",
    ),
    "writes to shared": (share_while_writing, "write to shared block"),
    "writes to published": (publish_ahead, "write to published block"),
    "sequence lost": (lose_sequence, "not all sequences"),
    "leader lost": (lose_sequence, "said to lead"),
    "leader silent": (set_state("writes", False, "leader"), "does not publish next"),
    "leader misleads": (mislead, "does not publish next"),
    "root's count": (count_more_sequences, "sequences counted"),
    "copy to a published block": (redirect_copy, "not a sequence's own"),
    "copy of a copy": (chain_copies, "part of another"),
    "copy to nowhere": (throw_copy, "99, which is no block"),
    "copy too long": (stretch_copy, "5 tokens"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_audit_finds_what_is_planted(scene: Scene, name: str) -> None:
    """Each corruption gives a violation in the words that are meant for it."""
    corrupt, words = CORRUPTIONS[name]
    corrupt(scene)
    assert not is_clean(scene.store)
    assert any(words in violation for violation in audit(scene.store)), audit(scene.store)


def test_a_loop_in_a_list_ends_the_walk(scene: Scene) -> None:
    """A list that bites its tail is reported, not followed for ever."""
    meta = scene.store.pool.meta
    first = int(meta[24 + ops.FREE_LIST, ops.NEXT])
    meta[int(meta[first, ops.NEXT]), ops.NEXT] = first
    assert not is_clean(scene.store)
    assert any("free list and on the free list" in v for v in audit(scene.store))


def test_a_loop_among_siblings_ends_the_walk(scene: Scene) -> None:
    """Siblings that bite their tail are reported, not followed for ever."""
    meta = scene.store.pool.meta
    last = int(meta[scene.cached[0], ops.FIRST_CHILD])
    while meta[last, ops.NEXT_SIBLING] >= 0:
        last = int(meta[last, ops.NEXT_SIBLING])
    meta[last, ops.NEXT_SIBLING] = last
    meta[last, ops.PREV_SIBLING] = last
    assert not is_clean(scene.store)
    assert any("disagree" in v for v in audit(scene.store))


def test_a_clean_store_stays_clean(scene: Scene) -> None:
    """When all of the scene's sequences have run and left, the audit finds nothing."""
    store = scene.store
    run(store, scene.leader, scene.waiting)
    for sequence in (scene.sequence, scene.leader, scene.waiting):
        store.release(sequence)
    assert audit(store) == ()
    assert store.lookup(ANN, tokens(range(10))).full_blocks == 2
