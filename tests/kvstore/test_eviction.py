"""Who gives way: rules 6 (tails first), 8 (leaves first), 9 and 10."""

from support.stores import ANN, BOB, cache, directory_of, grow, hit, make_store, open_, run, tokens

from stemkv.kvstore.audit import audit
from stemkv.kvstore.values import Admission, Shortage


def test_free_blocks_are_taken_before_cached_ones() -> None:
    """Nothing is evicted while there are free blocks."""
    store = make_store(4)
    cache(store, range(8))
    cache(store, range(50, 58))
    assert store.pool_counts().evicted == 0
    assert hit(store, range(8)) == (2, 0)


def test_leaves_go_before_their_parents() -> None:
    """Of one chain the last block goes first, and what remains still hits."""
    store = make_store(4)
    cache(store, range(16))
    open_(store, [50], write=False)
    assert hit(store, range(16)) == (3, 0)
    open_(store, [51], write=False)
    assert hit(store, range(16)) == (2, 0)


def test_the_least_recently_used_chain_goes_first() -> None:
    """Use, not age, decides: a hit makes a chain young again."""
    store = make_store(4)
    cache(store, range(8))
    cache(store, range(50, 58))
    cache(store, range(8))
    open_(store, range(90, 98), write=False)
    assert hit(store, range(8)) == (2, 0)
    assert hit(store, range(50, 58)) == (0, 0)


def test_tails_go_before_all_published_blocks() -> None:
    """A tail that was used a moment ago goes before a block that is long unused."""
    store = make_store(4)
    cache(store, range(8))
    cache(store, range(50, 56))
    open_(store, [90], write=False)
    assert store.pool_counts().tails == 0
    assert hit(store, range(8)) == (2, 0)
    assert hit(store, range(50, 56)) == (1, 0)


def test_a_parent_in_use_outlives_its_cached_children_and_not_the_other_way() -> None:
    """A block that a sequence holds is never taken, however long ago it was used."""
    store = make_store(4)
    cache(store, range(12))
    sequence = open_(store, range(4))
    open_(store, range(50, 62), write=False)
    assert store.lookup(ANN, tokens(range(12))).full_blocks == 1
    assert store.admit(ANN, tokens([90])) == Shortage("blocks", 1, 0)
    store.release(sequence)
    assert isinstance(store.admit(ANN, tokens([90])), Admission)


def test_what_a_prompt_adopts_is_not_evicted_for_it() -> None:
    """The rest of a prompt takes its blocks from others, not from its own prefix."""
    store = make_store(4)
    cache(store, range(8))
    cache(store, range(50, 58))
    got = store.admit(ANN, tokens([*range(8), *range(70, 78)]))
    assert isinstance(got, Admission)
    assert got.full_tokens == 8
    assert hit(store, range(50, 58)) == (0, 0)


def test_reserving_evicts_too() -> None:
    """A growing sequence takes the least recently used cached block."""
    store = make_store(3)
    cache(store, range(50, 58))
    sequence = open_(store, range(4))
    run(store, sequence)
    grow(store, sequence, 4)
    run(store, sequence)
    assert hit(store, range(50, 58)) == (1, 0)
    grow(store, sequence, 5, 6, 7, 8)
    run(store, sequence)
    assert hit(store, range(50, 58)) == (0, 0)
    grow(store, sequence, 9, 10, 11, 12)
    assert store.reserve(sequence, 13) == Shortage("blocks", 1, 0)


def test_evictions_are_counted_and_told() -> None:
    """Each goes to its owner's count and to the directory; the pool's counts add up."""
    store = make_store(4)
    cache(store, range(16), BOB)
    kept = store.keys_of(BOB, tokens(range(16)))[:2]
    cache(store, range(8))
    assert store.tenant_counts()["bob"].evicted_blocks == 2
    assert store.tenant_counts()["ann"].evicted_blocks == 0
    assert directory_of(store).held == {*kept, *store.keys_of(ANN, tokens(range(8)))}
    counts = store.pool_counts()
    assert (counts.free, counts.in_use, counts.cached, counts.evicted) == (0, 0, 4, 2)
    assert {type(getattr(counts, name)) for name in counts.__slots__} == {int}


def test_a_block_that_left_can_come_back() -> None:
    """Content that was evicted is published again under the same key."""
    store = make_store(2)
    keys = set(store.keys_of(ANN, tokens(range(8))))
    for _ in range(3):
        cache(store, range(8))
        assert directory_of(store).held == keys
        cache(store, range(50, 58))
    assert audit(store) == ()
