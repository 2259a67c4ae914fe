"""Calls on a batch of sequences do what the calls on each of them do, to the last bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.keys import Digest
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage

SPACES = [Namespace("a", b"a" * 32), Namespace("b", b"b" * 32), Namespace("c", b"a" * 32)]


def build(capacity: int, digest: Digest | None) -> BlockStore:
    """Return a store with blocks of 2 tokens and a clock that stands still."""
    config = StoreConfig(
        capacity_blocks=capacity, block_size=2, max_sequences=5, max_tokens=16, secret=bytes(32)
    )
    return BlockStore(config, NullDirectory(), lambda: 0.0, digest)


def state(store: BlockStore) -> Any:
    """Return everything that a store's calls change."""
    pool = store.pool
    arrays = (pool.meta, pool.tokens, pool.keys, pool.table, pool.roots, pool.accounts)
    return snapshot(
        [
            *arrays,
            store._open.rows,
            store._open.history,
            store._open.tables,
            store.owners.evicted,
            dict(store.leaders.all()),
            store.copies.open(),
        ]
    )


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    """Draw prompts, forks, and which tokens each of some steps appends."""
    token = st.integers(0, 1)
    return {
        "capacity": draw(st.integers(4, 14)),
        "broken": draw(st.booleans()),
        "prompts": draw(
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.lists(token, min_size=1, max_size=6), st.booleans()
                ),
                min_size=1,
                max_size=3,
            )
        ),
        "forks": draw(st.lists(st.integers(0, 2), max_size=2)),
        "steps": draw(st.lists(st.lists(token, min_size=5, max_size=5), max_size=9)),
    }


def begin(store: BlockStore, story: dict[str, Any]) -> list[SequenceId]:
    """Open the story's sequences, prefilled."""
    opened: list[SequenceId] = []
    for space, prompt, write in story["prompts"]:
        got = store.admit(SPACES[space], np.array(prompt, np.int32), write=write)
        if isinstance(got, Admission):
            store.take_copies()
            store.commit(got.sequence, len(prompt))
            store.settle()
            opened.append(got.sequence)
    for which in story["forks"]:
        if which < len(opened):
            fork = store.fork(opened[which])
            if not isinstance(fork, Shortage):
                opened.append(fork)
    return opened


def weak(data: bytes) -> bytes:
    """Hash to one of two keys."""
    return bytes(15) + bytes([data[-4] & 1])


@settings(max_examples=250, deadline=None, print_blob=True)
@given(stories())
def test_a_batch_is_its_sequences_one_by_one(story: dict[str, Any]) -> None:
    """Appending, reserving and committing as a batch and singly lead to equal stores."""
    digest = weak if story["broken"] else None
    together, singly = (build(story["capacity"], digest) for _ in range(2))
    batch = begin(together, story)
    assert begin(singly, story) == batch
    numbers = np.array(batch, np.int32)
    for tokens in story["steps"]:
        together.extend_all(numbers, np.array(tokens[: len(batch)], np.int32))
        got = together.reserve_all(numbers)
        for sequence, token in zip(batch, tokens, strict=False):
            singly.extend(sequence, token)
        done = 0
        for sequence in batch:
            if singly.reserve(sequence, len(singly.tokens_of(sequence))) is not None:
                break
            done += 1
        assert got == done
        assert state(together) == state(singly)
        if got < len(batch):
            break
        assert together.take_copies() == singly.take_copies()
        together.commit_all(numbers)
        for sequence in batch:
            singly.commit(sequence, len(singly.tokens_of(sequence)))
        together.settle()
        singly.settle()
        assert state(together) == state(singly)
        assert audit(together) == ()


def test_a_full_sequence_is_named_and_nothing_appended() -> None:
    """Where one sequence of a batch is full, none of them gets a token."""
    store = build(20, None)
    batch = [store.admit(SPACES[0], np.arange(n, dtype=np.int32), read=False) for n in (3, 16)]
    numbers = np.array([a.sequence for a in batch if isinstance(a, Admission)], np.int32)
    with pytest.raises(ValueError, match=f"sequence {numbers[1]} already has max_tokens = 16"):
        store.extend_all(numbers, np.array([1, 2], np.int32))
    assert [len(store.tokens_of(SequenceId(n))) for n in numbers.tolist()] == [3, 16]


def test_an_empty_batch_does_nothing() -> None:
    """No sequence at all is a batch too."""
    store = build(4, None)
    nobody = np.empty(0, np.int32)
    before = state(store)
    store.extend_all(nobody, nobody)
    assert store.reserve_all(nobody) == 0
    store.commit_all(nobody)
    assert state(store) == before
