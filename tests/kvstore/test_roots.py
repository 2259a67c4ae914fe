"""Roots come and go with what hangs on them."""

from dataclasses import replace

import pytest
from support.stores import ANN, BOB, cache, flush_of, hit, make_store, open_, tokens

from stemkv.kvstore.audit import audit
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.properties.snapshot import snapshot


def test_thousands_of_salts_do_not_pile_up() -> None:
    """Roots that hold nothing are forgotten: a client's salts cost no lasting memory."""
    store = make_store(8)
    for i in range(2000):
        sequence = open_(store, [i], replace(ANN, salt=str(i)))
        store.commit(sequence, 1)
        store.release(sequence)
    assert len(store.roots) <= 512
    assert len(store.pool.roots) <= 1024
    assert store.pool_counts().cached == 8
    assert hit(store, [1999, 1], replace(ANN, salt="1999")) == (0, 1)
    assert audit(store) == ()


def test_a_root_with_a_cached_block_or_a_sequence_survives_the_sweep() -> None:
    """What is in use or cached is never swept away."""
    store = make_store(16)
    kept = cache(store, range(4), replace(ANN, salt="cached"))
    held = open_(store, range(4), replace(ANN, salt="held"))
    for i in range(2000):
        store.release(open_(store, [i], replace(ANN, salt=str(i)), write=False))
    assert hit(store, range(4), replace(ANN, salt="cached")) == (1, 0)
    assert store.lookup(replace(ANN, salt="held"), tokens(range(4))).leader == held
    assert store.pool.is_published(kept[0])


def test_numbers_of_dead_roots_are_used_again() -> None:
    """Flushing over and over takes no more room than flushing once."""
    store = make_store()
    for i in range(200):
        cache(store, range(8))
        store.flush(flush_of(FlushKind.TENANT, nonce=i.to_bytes(16, "big")))
        assert hit(store, range(8)) == (0, 0)
        store.reclaim()
    assert len(store.pool.roots) == 16


def test_a_dead_root_lives_as_long_as_its_sequences() -> None:
    """Its number is not given away while a sequence still refers to it."""
    store = make_store()
    first = open_(store, range(8))
    dead = store.sequences[first].root
    store.flush(flush_of(FlushKind.ALL))
    second = open_(store, range(8), BOB)
    assert store.sequences[second].root.index != dead.index
    assert store.roots[dead.index] is dead
    store.release(first)
    store.reclaim()
    third = open_(store, range(8))
    assert store.sequences[third].root.index == dead.index
    assert store.sequences[third].root is not dead


def test_looking_leaves_no_root_behind() -> None:
    """Lookups and keys of unknown namespaces make nothing."""
    store = make_store()
    before = snapshot(store)
    store.lookup(BOB, tokens(range(8)))
    store.keys_of(BOB, tokens(range(8)))
    with pytest.raises(ValueError, match="prompt"):
        store.admit(BOB, tokens([]))
    assert snapshot(store) == before


def test_retired_keys_are_kept_for_explanations() -> None:
    """The last four generations' root keys are remembered, newest first."""
    store = make_store()
    keys = []
    for i in range(6):
        cache(store, range(4))
        keys.insert(0, store.roots.key_of(ANN))
        store.flush(flush_of(FlushKind.TENANT, nonce=i.to_bytes(16, "big")))
    assert [key for key, _ in store.roots.retired_keys(ANN)] == keys[:4]


def test_what_was_flushed_is_remembered_for_thousands_of_namespaces() -> None:
    """An explanation can tell a flush of each of them; of too many, memory is given back."""
    store, known, most = make_store(8), 0, 0
    for batch in range(30):
        spaces = [replace(ANN, salt=f"{batch} {i}") for i in range(200)]
        store.roots.kill([store.roots.get(space) for space in spaces], float(batch))
        if batch < 10:
            assert all(store.roots.retired_keys(space) for space in spaces)
        known = len(store.roots._retired)
        most = max(most, known)
    assert 2000 <= most <= 5000
    assert known < most
