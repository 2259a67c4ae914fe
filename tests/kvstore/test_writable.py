"""What a call makes writable is one sequence's own, and no more is taken than that needs."""

import numpy as np
import pytest
from support.stores import (
    ANN,
    BOB,
    cache,
    directory_of,
    flush_of,
    hit,
    make_store,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.audit import audit
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.values import Admission
from stemkv.kvstore.views import PinInfo


def test_a_fork_that_writes_less_than_it_holds_gets_its_own_first_block() -> None:
    """Of a table that is longer than what is reserved, the shared blocks that are written go."""
    store = make_store()
    first = open_(store, range(12))
    second = store.fork(first)
    assert isinstance(second, int)
    before = store.pool_counts().free
    assert store.reserve(second, 4) is None
    ours, theirs = store.table_of(second).tolist(), store.table_of(first).tolist()
    assert ours[0] != theirs[0]
    assert ours[1:] == theirs[1:]
    assert store.pool_counts().free == before - 1
    assert [store.pool.references(b) for b in (ours[0], *theirs)] == [1, 1, 2, 2]
    assert store.take_copies() == ()
    assert audit(store) == ()


def spread(prompt: Tokens) -> Tokens:
    """Return the prompt as a view of every other of twice as many numbers."""
    return np.repeat(prompt, 2)[::2]


def read_only(prompt: Tokens) -> Tokens:
    """Return the prompt as an array that can't be written to."""
    copy = prompt.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize(
    "made",
    [spread, read_only, lambda p: p.astype(np.int64), lambda p: p.astype(">i4")],
    ids=["spread", "read-only", "wide", "big-endian"],
)
def test_prompts_may_be_any_array_of_whole_numbers(made: "type[Tokens]") -> None:
    """Not contiguous, read-only, of other widths: each is the same prompt."""
    store = make_store()
    prompt = made(tokens(range(10)))  # type: ignore[call-arg]
    cache(store, prompt)
    assert hit(store, range(10)) == (2, 2)
    found = store.lookup(ANN, prompt)
    assert (found.full_blocks, found.partial_tokens) == (2, 2)
    assert store.keys_of(ANN, prompt) == store.keys_of(ANN, tokens(range(10)))
    sequence = open_(store, range(10))
    run(store, sequence)
    assert store.lookup(ANN, prompt).full_blocks == 2


def test_children_of_every_block_number_are_found_by_key() -> None:
    """Keys made in Python follow from the parent's, whichever block that is, the first one too."""
    parents = set()
    for others in range(5):
        store = make_store(8, hash_function="sha256")
        if others:
            open_(store, range(100, 100 + 4 * others), BOB)
        parents.add(cache(store, range(8))[0])
        cache(store, [*range(4), *range(20, 24)])
        assert hit(store, range(8)) == (2, 0)
        assert hit(store, [*range(4), *range(20, 24)]) == (2, 0)
    assert len(parents) == 5
    assert 0 in parents or 7 in parents


def test_a_pin_of_nothing_is_all_zeros() -> None:
    """Where nothing is cached, the reply names the namespace, and no pin."""
    store = make_store()
    made = store.pin(ANN, tokens(range(8)), PinTerms(seconds=60.0))
    assert made == PinInfo(0, "ann", "", "", 0, 0, 0.0, 0.0)
    assert store.pinned() == ()


def test_an_admission_says_how_much_is_computed_already() -> None:
    """Full blocks and the part of one more together are what need not be run again."""
    store = make_store()
    cache(store, range(12))
    got = store.admit(ANN, tokens([*range(6), 60, 61, 62]))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens, got.computed) == (4, 2, 6)
    assert store.sequences[got.sequence].computed == 6


@pytest.mark.parametrize("begun", [2, 4])
def test_the_first_block_may_be_a_tail_or_lie_in_a_branch(begun: int) -> None:
    """A tail that is gone on from is freed, and a branch flushed whole, that of number 0 too."""
    store = make_store(8)
    first = open_(store, [500], BOB, write=False)
    assert store.table_of(first).tolist() == [0]
    cache(store, range(4))
    rest = open_(store, range(600, 624), BOB)
    store.release(first)
    assert cache(store, range(4 + begun))[1] == 0
    store.release(rest)
    cache(store, range(8))
    cache(store, [*range(4), *range(90, 94)])
    assert store.pool_counts().cached == 3
    store.flush(flush_of(FlushKind.PREFIX, prefix=range(4)))
    assert (store.pool_counts().cached, hit(store, range(12))) == (0, (0, 0))
    assert audit(store) == ()


@pytest.mark.parametrize("hash_function", ["xxh3_128", "sha256"])
@pytest.mark.parametrize("current", [True, False])
def test_a_twin_is_taken_only_while_no_flush_can_have_been_missed(
    hash_function: str, current: bool
) -> None:
    """Cut off, a block keeps to itself what it holds, and its sequence publishes no more."""
    store = make_store(hash_function=hash_function)
    first, second = open_(store, range(12)), open_(store, range(12), read=False)
    run(store, first)
    ours = store.table_of(first).tolist()
    assert ours[0] == 0
    directory_of(store).current = current
    run(store, second)
    theirs = store.table_of(second).tolist()
    assert (theirs == ours) is current
    assert bool(set(theirs) & set(ours)) is current
    assert store.sequences[second].writes == current


@pytest.mark.parametrize("hash_function", ["xxh3_128", "sha256"])
def test_a_batch_publishes_for_those_that_write(hash_function: str) -> None:
    """Of one step's sequences, whoever does not write leaves nothing behind."""
    store = make_store(hash_function=hash_function)
    batch = np.array([open_(store, range(8)), open_(store, range(8), BOB, write=False)], np.int32)
    assert store.reserve_all(batch) == 2
    store.take_copies()
    store.commit_all(batch)
    store.settle()
    assert hit(store, range(8)) == (2, 0)
    assert hit(store, range(8), BOB) == (0, 0)
    assert store.keys_of(ANN, tokens(range(8))) == [
        store.pool.key(b) for b in store.table_of(SequenceId(int(batch[0]))).tolist()
    ]
    assert audit(store) == ()
