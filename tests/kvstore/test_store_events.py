"""What a store tells in its stream of events, under the lists' order and under a score."""

import pytest
from support.stores import ANN, BOB, Clock, cache, flush_of, grow, make_store, open_, run, tokens

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.policies.eviction import EVICTION

Told = list[tuple[str, str, str]]


@pytest.fixture(params=sorted(EVICTION))
def store(request: pytest.FixtureRequest) -> BlockStore:
    """Four blocks of 4 tokens, and a stream that holds all events of a test."""
    config = StoreConfig(
        capacity_blocks=4,
        block_size=4,
        max_sequences=4,
        max_tokens=64,
        secret=b"s",
        event_blocks=64,
        eviction=request.param,
    )
    return BlockStore(config, RecordingDirectory(), Clock())


def told(store: BlockStore, start: int = 0) -> Told:
    """Return kind, key and account of the events from number start on."""
    return [(e.kind, e.key, e.account) for e in store.events.read(start, 64).events]


def keys(store: BlockStore, count: int) -> list[str]:
    """Return the keys of ann's first blocks, in hex."""
    return [key.hex() for key in store.keys_of(ANN, tokens(range(4 * count)))]


def test_what_is_stored_and_adopted_is_told_once_a_block(store: BlockStore) -> None:
    """A block is stored when it is published, and adopted by each request that reuses it."""
    one, two = keys(store, 2)
    cache(store, range(8))
    assert told(store) == [("stored", one, "ann"), ("stored", two, "ann")]
    sequence = open_(store, range(9))
    assert told(store, 2) == [("adopted", one, "ann"), ("adopted", two, "ann")]
    grow(store, sequence, 9, 10, 11)
    run(store, sequence)
    assert told(store, 4) == [("stored", keys(store, 3)[2], "ann")]


def test_a_copy_is_told_with_its_sources_key_or_none_of_a_tail(store: BlockStore) -> None:
    """A part of a published block names it; a tail has no key to be named by."""
    one, two = keys(store, 2)
    cache(store, range(8))
    open_(store, [*range(6), 60, 61])
    assert told(store, 2) == [("adopted", one, "ann"), ("copied", two, "ann")]


def test_a_tail_that_is_copied_is_told_without_a_key(store: BlockStore) -> None:
    """What a tail holds was never published, so nobody outside knows a name for it."""
    cache(store, range(6))
    open_(store, [*range(6), 60])
    assert told(store, 1) == [("adopted", keys(store, 1)[0], "ann"), ("copied", "", "ann")]


def test_what_is_evicted_is_told_as_removed_from_whom_it_was_taken(store: BlockStore) -> None:
    """The leaf first, and each block with the account that had it, whoever needed the room."""
    one, two = keys(store, 2)
    cache(store, range(8))
    open_(store, range(100, 116), BOB)
    assert told(store, 2) == [("removed", two, "ann"), ("removed", one, "ann")]


def test_blocks_of_two_accounts_are_told_as_each_ones(store: BlockStore) -> None:
    """One request that pushes out two accounts' blocks tells of both."""
    cache(store, range(4))
    cache(store, range(4), BOB)
    theirs = store.keys_of(BOB, tokens(range(4)))[0].hex()
    open_(store, range(100, 116), ANN)
    assert sorted(told(store, 2)) == sorted(
        [("removed", keys(store, 1)[0], "ann"), ("removed", theirs, "bob")]
    )


@pytest.mark.parametrize("kind", [FlushKind.TENANT, FlushKind.PREFIX])
def test_what_is_flushed_is_told_as_flushed(store: BlockStore, kind: FlushKind) -> None:
    """A flush is no eviction, whether its blocks go at once or when they are reclaimed."""
    expected = {("flushed", key, "ann") for key in keys(store, 2)}
    cache(store, range(8))
    store.flush(flush_of(kind, prefix=range(4) if kind is FlushKind.PREFIX else ()))
    open_(store, range(100, 116), BOB)
    assert set(told(store, 2)) == expected


def test_a_store_without_events_tells_nothing() -> None:
    """By default nothing is kept, and nothing numbered."""
    store = make_store()
    cache(store, range(8))
    open_(store, range(9))
    assert store.events.read(0, 10).next == 0
