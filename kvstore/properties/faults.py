"""Faults to plant into a store, each with the words in which an audit must tell of it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from stemkv.kvstore import chains, ops
from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.properties.planting import (
    Plant,
    adopt_child,
    change_meta,
    change_root,
    change_tokens,
    corrupt_end,
    corrupt_head,
    drop_from_index,
    grow_child_on_tail,
    hide_in_index,
    hide_stale_in_index,
    index_out,
    loop_list,
    loop_siblings,
    make_twin,
    put_out_on_list,
    set_meta,
    shelve_tail,
    swap_order,
    unlink,
)
from stemkv.kvstore.properties.planting_kept import (
    add_to_account,
    count_more_sequences,
    count_root,
    heap_of_another,
    keep_child_alone,
    keep_nowhere,
    kill_root,
    leave_out,
    put_on_list_of,
    score_of_another,
    score_of_nothing,
    set_root,
    turn_heap_over,
)
from stemkv.kvstore.properties.planting_open import (
    chain_copies,
    change_history,
    hold_child_alone,
    hold_twice,
    hold_what_is_out,
    lose_block,
    lose_sequence,
    mislead,
    publish_ahead,
    put_in_table,
    redirect_copy,
    set_row,
    set_state,
    share_while_writing,
    source_nowhere,
    stretch_copy,
    throw_copy,
)
from stemkv.kvstore.properties.scene import (
    STORES,
    Scene,
    make_scene,
)
from stemkv.kvstore.violations import KIND_NAMES


class Fault(NamedTuple):
    """What plants a fault into a scene, and words that one of the violations must have.

    store: of `STORES`, the kind that has room for the fault.
    """

    plant: Plant
    words: str
    store: str = "compiled hash"


_FAULTS_AT_HAND: Mapping[str, tuple[Plant, str]] = {
    "reference too many": (
        change_meta("private", ops.REF, lambda n: n + 1),
        "2 references counted",
    ),
    "reference too few": (
        change_meta("private", ops.REF, lambda n: n - 1),
        "0 references counted",
    ),
    "pin too many": (change_meta("cached", ops.PIN, lambda n: n + 1), "1 copies counted"),
    "free in use": (change_meta("free", ops.REF, lambda n: n + 1), "1 references counted, 0 held"),
    "list link": (set_meta("cached", ops.PREV, 3), "links of"),
    "list to nowhere": (set_meta("cached", ops.NEXT, 99), "99 is no block"),
    "list cut short": (set_meta("free", ops.NEXT, -1 - ops.FREE_LIST), "(rule 10)"),
    "list's end": (corrupt_end, "its end disagree"),
    "list into another": (set_meta("free", ops.NEXT, 1), "in state 2 is on the free"),
    "list to no number": (set_meta("cached", ops.NEXT, -1), "is no block"),
    "state on list": (set_meta("cached", ops.STATE, ops.FREE), "in state 0 is on the cached"),
    "tail among the published": (shelve_tail, "in state 3 is on the cached"),
    "state of a held block": (set_meta("private", ops.STATE, 9), "which is none"),
    "private as published": (
        set_meta("private", ops.STATE, ops.PUBLISHED),
        "holds 0 tokens",
    ),
    "published with a hole": (set_meta("cached", ops.FILL, 3), "holds 3 tokens"),
    "empty tail": (set_meta("tail", ops.FILL, 0), "holds 0 tokens"),
    "owner": (set_meta("cached", ops.OWNER, 9), "who is nobody"),
    "root": (set_meta("cached", ops.ROOT, 9), "not alive"),
    "other root": (change_root("sibling"), "its parent on"),
    "root is gone": (kill_root, "not alive"),
    "parent": (set_meta("cached", ops.PARENT, -2), "disagree"),
    "no parent": (set_meta("cached", ops.PARENT, ops.NONE), "not of the tree"),
    "sibling": (set_meta("sibling", ops.NEXT_SIBLING, ops.NONE), "0 times in the tree"),
    "sibling back": (set_meta("cached", ops.PREV_SIBLING, ops.NONE), "disagree"),
    "child": (set_meta("parent", ops.FIRST_CHILD, ops.NONE), "0 times in the tree"),
    "child of another": (adopt_child, "disagree"),
    "head of a root": (corrupt_head, "disagree"),
    "parent that is none": (set_meta("cached", ops.PARENT, 99), "not of the tree"),
    "child that is none": (set_meta("parent", ops.FIRST_CHILD, 99), "not of the tree"),
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
    "root in the row": (set_row(chains.ROOT_INDEX, 7), "root 7 or owner 1"),
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
    "list in a ring": (loop_list, "free list and on the free list"),
    "siblings in a ring": (loop_siblings, "disagree"),
    "kept by a pin too many": (
        change_meta("pinned child", ops.KEEP, lambda n: n + 1),
        "2 pins counted",
    ),
    "kept by a pin too few": (
        change_meta("pinned child", ops.KEEP, lambda n: n - 1),
        "0 pins counted",
    ),
    "private kept by a pin": (set_meta("private", ops.KEEP, 1), "1 pins counted"),
    "a parent kept less": (keep_child_alone, "kept by more pins than its parent"),
    "a pin on no chain": (keep_child_alone, "no chain of its root"),
    "a pin on nothing": (keep_nowhere, "no chain of its root"),
    "private of another root": (change_root("private"), "charged blocks counted"),
    "stale of a live root": (change_root("stale"), "stale blocks counted"),
    "stale on no list": (unlink(lambda s: s.stale), "(rule 10)"),
    "stale astray in the index": (hide_stale_in_index, "not found under its own key"),
    "dead root alive": (set_root("mourner", ops.DEAD, 0), "account and death"),
    "live root dead": (set_root("sequence", ops.DEAD, 1), "account and death"),
    "root of another account": (set_root("sequence", ops.ACCOUNT, 1), "account and death"),
    "root of no account": (set_root("sequence", ops.ACCOUNT, 9), "account 9, which is none"),
    "root's key": (set_root("sequence", ops.KEY_LOW, 9), "its key is not what its row has"),
    "another account's list": (put_on_list_of("bob"), "in state 2 is on the cached (bob)"),
    "public blocks too few": (set_state("entry", 1, "guest"), "1 public blocks"),
    "public blocks of nobody": (set_state("entry", 1), "1 public blocks"),
    "public root": (set_row(chains.PUBLIC_ROOT, 7, "guest"), "public root 7"),
    "prompt longer than all": (set_state("prompt_blocks", 9), "9 blocks of a prompt"),
    "tail with a child": (grow_child_on_tail, "not of the tree"),
    "child of another's root": (set_meta("cached", ops.PARENT, -(2**31)), "not of the tree"),
    "out of service on a list": (put_out_on_list, "in state 4 is on the free list"),
    "out of service in the index": (index_out, "not the same set"),
    "out of service held": (hold_what_is_out, "which is out of service"),
    "copy from nowhere": (source_nowhere, "99, which is no block"),
    "reserves over the pool": (add_to_account("ann", ops.RESERVE, 28), "do not fit the pool"),
    "less reserved than granted": (add_to_account("ann", ops.RESERVE, -1), "quotas say"),
    "more allowed than granted": (add_to_account("bob", ops.CAP, 1), "quotas say"),
}

_ROOT_COUNTS = {ops.CHARGED: "charged", **KIND_NAMES}
_ACCOUNT_COUNTS = {ops.HELD: "held", **KIND_NAMES}
_POOL_COUNTS = {ops.FREED: "free", ops.STALE: "stale", ops.OUT: "quarantined", **KIND_NAMES}

_COUNTS = {
    **{
        f"root's {name}": (count_root("sequence", column), f" {name} blocks counted")
        for column, name in _ROOT_COUNTS.items()
    },
    "dead root's charged": (count_root("mourner", ops.CHARGED), " charged blocks counted"),
    **{
        f"account's {name}": (add_to_account("bob", column, 1), f" {name} blocks counted")
        for column, name in _ACCOUNT_COUNTS.items()
    },
    **{
        f"pool's {name}": (add_to_account("", column, -1), f"pool: .* {name} blocks counted")
        for column, name in _POOL_COUNTS.items()
    },
}

_SCORES = {
    "leaf in no heap": (leave_out, "no candidate for eviction"),
    "leaf in another's heap": (heap_of_another, "stands where it does not belong"),
    "heap upside down": (turn_heap_over, "stands where it does not belong"),
    "score of another": (score_of_another, "has the score of another"),
    "score of nothing": (score_of_nothing, "score is nowhere"),
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
