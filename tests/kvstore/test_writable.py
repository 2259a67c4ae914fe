"""What a call makes writable is one sequence's own, and no more is taken than that needs."""

import numpy as np
import pytest
from support.stores import ANN, cache, hit, make_store, open_, run, tokens

from stemkv.kvstore.audit import audit
from stemkv.kvstore.pool import Tokens


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
