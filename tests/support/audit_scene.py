"""A store with something of everything in it, for corruptions to be planted into."""

from dataclasses import dataclass

from stemkv.kvstore.audit import audit
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.store import BlockStore
from support.stores import BOB, cache, open_, run


@dataclass(frozen=True)
class Scene:
    """The store, and what is where in it.

    cached: a chain of two blocks that nothing holds, then a tail. sibling: another child of the
    chain's first block. private: an open sequence's block that is not published. sequence: that
    sequence; its first two blocks are cached[0] and sibling. leader: one in the middle of its
    prompt. waiting: one with a planned copy.
    """

    store: BlockStore
    cached: list[int]
    sibling: int
    private: int
    sequence: SequenceId
    leader: SequenceId
    waiting: SequenceId


def make_scene(store: BlockStore) -> Scene:
    """Make the scene in an empty store of 24 blocks of 4 tokens; an audit finds nothing in it."""
    cached = cache(store, range(10))
    sequence = open_(store, [*range(4), 60, 61, 62, 63, 64, 65])
    run(store, sequence)
    first, sibling, private = store.table_of(sequence).tolist()
    assert first == cached[0]
    leader = open_(store, range(40, 52), BOB)
    store.commit(leader, 4)
    cache(store, range(80, 88), BOB)
    waiting = open_(store, [*range(80, 86), 99], BOB)
    assert len(store.copies.open()) == 1
    assert audit(store) == ()
    return Scene(store, cached, sibling, private, sequence, leader, waiting)
