"""What a prompt finds: rules 1 to 4, 6 and 7."""

from functools import partial

import pytest
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    cache,
    directory_of,
    flush_of,
    grow,
    hit,
    make_store,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.audit import audit
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.properties.draws import narrow
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.values import Admission, Following


def test_full_blocks_of_a_released_prompt_are_found() -> None:
    """A second prompt adopts the leading blocks that it shares, the very same ones."""
    store = make_store()
    first = cache(store, range(12))
    got = store.admit(ANN, tokens([*range(8), 99, 98, 97]))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens, got.computed) == (8, 0, 8)
    assert store.table_of(got.sequence)[:2].tolist() == first[:2]
    assert store.table_of(got.sequence)[2] not in first[:2]


def test_nothing_is_found_before_it_is_written() -> None:
    """A block is published by the commit that says it is written, not by its reservation."""
    store = make_store()
    sequence = open_(store, range(12))
    assert hit(store, range(12)) == (0, 0)
    store.commit(sequence, 7)
    assert hit(store, range(12)) == (1, 0)
    store.commit(sequence, 12)
    assert hit(store, range(12)) == (3, 0)


def test_whole_prompt_cached_leaves_the_last_token_to_run_unwritten() -> None:
    """All positions count as computed, and none of them has a slot to write to."""
    store = make_store()
    cache(store, range(8))
    got = store.admit(ANN, tokens(range(8)))
    assert isinstance(got, Admission)
    assert got.computed == 8
    assert store.slots(got.sequence, 7, 8).tolist() == [-1]
    grow(store, got.sequence, 8)
    assert store.reserve(got.sequence, 9) is None
    block = int(store.table_of(got.sequence)[2])
    assert store.slots(got.sequence, 7, 9).tolist() == [-1, block * 4]


def test_slots_are_block_times_size_plus_offset() -> None:
    """Positions map through the block table."""
    store = make_store()
    sequence = open_(store, range(6))
    a, b = store.table_of(sequence).tolist()
    expected = [a * 4, a * 4 + 1, a * 4 + 2, a * 4 + 3, b * 4, b * 4 + 1]
    assert store.slots(sequence, 0, 6).tolist() == expected


def test_tenants_share_nothing_unless_their_group_says_so() -> None:
    """Another domain, salt or adapter finds nothing; another member of the group finds it all."""
    store = make_store()
    cache(store, range(8))
    cache(store, range(8), CAT)
    assert hit(store, range(8), BOB) == (0, 0)
    assert hit(store, range(8), DAN) == (2, 0)


def test_partial_hits_are_of_the_tenants_own_blocks() -> None:
    """In a group, full blocks are shared, and parts of blocks are not."""
    store = make_store()
    cache(store, range(11), CAT)
    assert hit(store, [*range(10), 99], CAT) == (2, 2)
    assert hit(store, [*range(10), 99], DAN) == (2, 0)
    assert hit(store, [*range(6), 99, 98], CAT) == (1, 2)
    assert hit(store, [*range(6), 99, 98], DAN) == (1, 0)


def test_part_of_a_block_is_reused_by_copying_it() -> None:
    """The copy goes from the cached block to the first own one, as many tokens as are equal."""
    store = make_store()
    table = cache(store, range(8))
    got = store.admit(ANN, tokens([0, 1, 2, 3, 4, 5, 99]))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens) == (4, 2)
    own = int(store.table_of(got.sequence)[1])
    assert own != table[1]
    assert store.take_copies() == ((table[1], own, 2),)
    store.settle()
    assert store.slots(got.sequence, 4, 7).tolist() == [-1, -1, own * 4 + 2]


def test_the_longest_of_several_parts_is_chosen() -> None:
    """Of several children the one with the longest common prefix is copied, tails included."""
    store = make_store()
    cache(store, [0, 1, 2, 3, 4, 9, 9, 9])
    cache(store, [0, 1, 2, 3, 4, 5, 6])
    cache(store, [0, 1, 2, 3, 4, 5, 8, 8])
    assert hit(store, [0, 1, 2, 3, 4, 5, 6, 7]) == (1, 3)


def test_only_the_32_most_recent_children_are_searched() -> None:
    """A part that was used before 32 others is not found; using it again brings it back."""
    store = make_store(64)
    cache(store, [0, 0, 0, 0])
    for first in range(1, 32):
        cache(store, [first] * 4)
    assert hit(store, [0, 0, 0, 7]) == (0, 3)
    cache(store, [32] * 4)
    assert hit(store, [0, 0, 0, 7]) == (0, 0)
    cache(store, [0, 0, 0, 0])
    assert hit(store, [0, 0, 0, 7]) == (0, 3)


def test_a_tail_is_replaced_by_what_goes_on_from_it() -> None:
    """A longer tail or a full block takes the place of the tail that it begins with."""
    store = make_store()
    cache(store, range(6))
    assert store.pool_counts().tails == 1
    cache(store, range(7))
    assert store.pool_counts().tails == 1
    assert hit(store, range(8)) == (1, 3)
    cache(store, range(8))
    assert store.pool_counts().tails == 0
    assert hit(store, range(8)) == (2, 0)


def test_a_tail_that_says_nothing_new_is_not_kept() -> None:
    """What another tail or block already begins with is freed on release."""
    store = make_store()
    cache(store, range(7))
    used = store.pool_counts().free
    cache(store, range(6))
    assert store.pool_counts().free == used


@pytest.mark.parametrize("flag", ["prefix_cache", "partial_hits"])
def test_switches(flag: str) -> None:
    """Without the cache nothing is found or published; without partial hits, full blocks only."""
    store = make_store(**{flag: False})
    cache(store, range(7))
    expected = {"prefix_cache": (0, 0), "partial_hits": (1, 0)}[flag]
    assert hit(store, range(7)) == expected
    assert store.pool_counts().cached == expected[0]
    assert len(directory_of(store).held) == expected[0]


def test_read_and_write_flags() -> None:
    """A request that does not read reuses nothing; one that does not write leaves nothing."""
    store = make_store()
    cache(store, range(8), write=False)
    assert store.pool_counts().cached == 0
    cache(store, range(8))
    sequence = open_(store, range(8), read=False)
    assert store.sequences[sequence].computed == 0


def test_a_worker_that_is_cut_off_hits_nothing() -> None:
    """While the directory is not current, nothing is reused, not even as a twin."""
    store = make_store()
    table = cache(store, range(8))
    directory_of(store).current = False
    assert hit(store, range(8)) == (0, 0)
    sequence = open_(store, range(8))
    run(store, sequence)
    assert set(store.table_of(sequence).tolist()).isdisjoint(table)
    store.release(sequence)
    directory_of(store).current = True
    assert hit(store, range(8)) == (2, 0)
    assert store.pool_counts().cached == 2


# --- rule 2: verified --------------------------------------------------------------------------


def test_a_collision_costs_time_and_never_an_answer() -> None:
    """With a hash that knows one key only, one block is published, and no prompt gets another's."""
    store = make_store(digest=partial(narrow, 0))
    cache(store, range(8))
    assert store.pool_counts().cached == 1
    assert hit(store, range(8)) == (1, 0)
    assert hit(store, [9, 9, 9, 9]) == (0, 0)
    cache(store, [9, 9, 9, 9, 8, 8, 8, 8])
    assert hit(store, [9, 9, 9, 9]) == (0, 0)
    assert hit(store, range(8), BOB) == (0, 0)
    assert store.pool_counts().cached == 1


def test_a_sequence_that_collides_leads_nobody() -> None:
    """Others do not follow one that can publish no more."""
    store = make_store(digest=partial(narrow, 0))
    cache(store, [9, 9, 9, 9])
    sequence = open_(store, range(12))
    assert isinstance(store.admit(ANN, tokens(range(12))), Following)
    store.commit(sequence, 4)
    assert isinstance(store.admit(ANN, tokens(range(12))), Admission)


# --- rule 4: followers -------------------------------------------------------------------------


def test_a_prompt_follows_who_computes_its_next_block() -> None:
    """It is told the leader, holds nothing, and goes on with what the leader has published."""
    store = make_store()
    leader = open_(store, range(12))
    before = snapshot(store)
    assert store.admit(ANN, tokens([*range(8), 99])) == Following(leader)
    assert snapshot(store) == before
    store.commit(leader, 4)
    assert store.admit(ANN, tokens([*range(8), 99])) == Following(leader)
    store.commit(leader, 8)
    got = store.admit(ANN, tokens([*range(8), 99]))
    assert isinstance(got, Admission)
    assert got.full_tokens == 8


def test_who_shares_no_further_block_does_not_follow() -> None:
    """Another next block, another namespace, a request that does not read: none has to wait."""
    store = make_store()
    open_(store, range(8))
    assert isinstance(store.admit(ANN, tokens([0, 1, 2, 99])), Admission)
    assert isinstance(store.admit(ANN, tokens([0, 1, 2])), Admission)
    assert isinstance(store.admit(BOB, tokens(range(8))), Admission)
    assert isinstance(store.admit(ANN, tokens(range(8)), read=False), Admission)


def test_a_follower_takes_over_when_the_leader_leaves() -> None:
    """A leader that is released is followed no more."""
    store = make_store()
    leader = open_(store, range(8))
    assert store.admit(ANN, tokens(range(8))) == Following(leader)
    store.release(leader)
    heir = open_(store, range(8))
    assert store.admit(ANN, tokens(range(8))) == Following(heir)


@pytest.mark.parametrize("kind", [*FlushKind])
def test_a_leader_that_a_flush_silenced_leads_no_more(kind: FlushKind) -> None:
    """Who publishes nothing further is followed by nobody."""
    store = make_store()
    leader = open_(store, range(8))
    assert store.lookup(ANN, tokens(range(8))).leader == leader
    store.flush(flush_of(kind, ANN, range(3)))
    assert store.lookup(ANN, tokens(range(8))).leader is None
    assert isinstance(store.admit(ANN, tokens(range(8))), Admission)
    assert audit(store) == ()


def test_who_does_not_write_leads_nobody() -> None:
    """A request that leaves nothing in the cache is no leader."""
    store = make_store()
    open_(store, range(8), write=False)
    assert isinstance(store.admit(ANN, tokens(range(8))), Admission)


def test_output_tokens_are_not_waited_for() -> None:
    """Only full blocks of the prompt have a leader."""
    store = make_store()
    sequence = open_(store, range(6))
    run(store, sequence)
    grow(store, sequence, 6)
    assert store.lookup(ANN, tokens(range(8))).leader is None


# --- rule 7: twins -----------------------------------------------------------------------------


def test_twins_in_one_step_become_one_block() -> None:
    """Two sequences that compute the same block end up holding the first one's."""
    store = make_store()
    a, b = open_(store, range(8)), open_(store, range(8), read=False)
    free = store.pool_counts().free
    run(store, a, b)
    assert store.table_of(a).tolist() == store.table_of(b).tolist()
    assert store.pool_counts().free == free + 2
    assert len(directory_of(store).held) == 2


def test_outputs_that_meet_are_published_once() -> None:
    """Blocks of generated tokens are published, and found by a prompt that contains them."""
    store = make_store()
    for _ in range(2):
        sequence = open_(store, range(3))
        run(store, sequence)
        for token in range(3, 8):
            grow(store, sequence, token)
            run(store, sequence)
        store.release(sequence)
    assert store.pool_counts().cached == 2
    assert hit(store, range(8)) == (2, 0)


# --- counts ------------------------------------------------------------------------------------


def test_lookups_are_counted_once_a_request() -> None:
    """A request that comes back after preemption is not counted again; plain numbers come out."""
    store = make_store()
    cache(store, range(8))
    store.release(open_(store, [*range(6), 99]))
    store.release(open_(store, range(8), again=True))
    counts = store.tenant_counts()["ann"]
    assert (counts.lookup, counts.hit_full, counts.hit_partial) == (15, 4, 2)
    assert counts.cached_blocks == 2
    values = (counts.lookup, counts.hit_full, counts.cached_blocks, counts.evicted_blocks)
    assert {type(v) for v in values} == {int}


def test_a_prompt_must_fit_a_sequence() -> None:
    """An empty prompt and one over the limit are refused with both numbers."""
    store = make_store(max_tokens=8)
    with pytest.raises(ValueError, match=r"0 tokens are not in 1\.\.8"):
        store.admit(ANN, tokens([]))
    with pytest.raises(ValueError, match=r"9 tokens are not in 1\.\.8"):
        store.admit(ANN, tokens(range(9)))
    sequence = open_(store, range(8))
    with pytest.raises(ValueError, match="max_tokens = 8"):
        store.extend(sequence, 1)
