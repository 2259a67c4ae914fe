"""Public prefixes: computed once for all, and nobody sees through them what is another's."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.stores import (
    ANN,
    BOB,
    SECRET,
    Clock,
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

from stemkv.kvstore import ops
from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.explain import explain
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.inspect import list_blocks
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.properties.draws import narrow
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.quotas import OPERATOR, Quota
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Following

SIZE = 4
PUBLIC = [*range(100, 112)]
SALTED = (replace(ANN, salt="s"), replace(ANN, salt="t"))
STRANGERS = [(ANN, BOB), SALTED]


def made(**options: int) -> BlockStore:
    """Make a store with one public prefix of three blocks; events are kept."""
    config = StoreConfig(
        capacity_blocks=options.get("blocks", 32),
        block_size=SIZE,
        max_sequences=8,
        max_tokens=128,
        secret=SECRET,
        event_blocks=1000,
    )
    store = BlockStore(config, RecordingDirectory(), Clock())
    store.declare_public(tokens(PUBLIC))
    return store


def key_of(store: BlockStore, prefix: list[int] = PUBLIC) -> str:
    """Return the name of a declared prefix."""
    (found,) = (p for p in store.public_prefixes() if p.tokens == len(prefix))
    return found.key


def held(store: BlockStore, name: str) -> int:
    """Return how many blocks an account is charged with."""
    counts = store.account_counts().get(name)
    return 0 if counts is None else counts.held


def step(store: BlockStore, *upto: tuple[int, int]) -> None:
    """Run a step that computes each sequence as far as said."""
    store.take_copies()
    for sequence, computed in upto:
        store.commit(sequence, computed)  # type: ignore[arg-type]
    store.settle()
    assert audit(store) == ()


# --- nobody sees another's children ---------------------------------------------------------------


@pytest.mark.parametrize(("mine", "other"), STRANGERS)
def test_two_tenants_below_one_public_parent_share_no_child(
    mine: Namespace, other: Namespace
) -> None:
    """Whole blocks and parts of blocks after the prefix are found by their own namespace alone."""
    store = made()
    secret = [*PUBLIC, *range(8), 8, 9]
    cache(store, secret, mine)
    assert hit(store, secret, mine) == (5, 2)
    assert hit(store, secret, other) == (3, 0)
    assert hit(store, secret[:15], other) == (3, 0)
    told = explain(store, other, tokens(secret))
    assert (told.reason, told.position, told.expected_token) != ("token_differs", 12, 0)
    assert told.full_block_tokens == 12
    assert told.differing_position is None
    ours = set(store.keys_of(mine, tokens(secret))[3:])
    assert ours.isdisjoint(store.keys_of(other, tokens(secret)))
    assert store.keys_of(mine, tokens(secret))[:3] == store.keys_of(other, tokens(secret))[:3]


@pytest.mark.parametrize(("mine", "other"), STRANGERS)
def test_explanations_of_a_stranger_are_those_of_a_first_visitor(
    mine: Namespace, other: Namespace
) -> None:
    """Whatever the other's children did, cached, evicted or flushed, nothing of it is told."""
    secret = tokens([*PUBLIC, *range(8)])
    plain = made()
    cache(plain, PUBLIC, replace(BOB, tenant="third", domain=b"3" * 32))
    expected = explain(plain, BOB, secret)
    store = made()
    cache(store, secret.tolist(), mine)
    if other.domain != mine.domain:
        assert explain(store, other, secret) == expected
        store.flush(flush_of(FlushKind.PREFIX, mine, secret.tolist()))
        assert explain(store, other, secret) == expected
    else:
        assert explain(store, other, secret).reason == "other_salt"


@pytest.mark.parametrize(("mine", "other"), STRANGERS)
def test_nobody_follows_a_strangers_child(mine: Namespace, other: Namespace) -> None:
    """Of two who compute the same after the prefix at one time, none waits for the other."""
    store = made()
    cache(store, PUBLIC, ANN)
    text = [*PUBLIC, *range(8)]
    first = open_(store, text, mine)
    assert store.lookup(other, tokens(text)).leader is None
    second = open_(store, text, other)
    run(store, first, second)
    assert set(store.table_of(first).tolist()) & set(store.table_of(second).tolist()) == set(
        store.table_of(first)[:3].tolist()
    )


def test_lists_reports_and_events_name_only_who_is_concerned() -> None:
    """Blocks listed by tenant, flush reports, events and counts keep ann's and bob's apart."""
    store = made()
    cache(store, [*PUBLIC, *range(8)], ANN)
    cache(store, [*PUBLIC, *range(4)], BOB)
    listed = {n: list_blocks(store, tenant=n).blocks for n in ("ann", "bob", OPERATOR)}
    assert {n: len(blocks) for n, blocks in listed.items()} == {"ann": 2, "bob": 1, OPERATOR: 3}
    assert {b.depth for b in listed["ann"]} == {0, 4}
    stored = [e for e in store.events.read(0, 1000).events if e.kind == "stored"]
    assert [e.account for e in stored] == [OPERATOR] * 3 + ["ann"] * 2 + ["bob"]
    report = store.flush(flush_of(FlushKind.TENANT, ANN))
    assert report.blocks_by_tenant == {"ann": 2}
    assert hit(store, [*PUBLIC, *range(4)], BOB) == (4, 0)
    counts = store.tenant_counts()
    assert (counts["bob"].lookup, counts["bob"].hit_full) == (16, 12)
    assert OPERATOR not in counts


# --- computed once --------------------------------------------------------------------------------


def test_the_public_part_is_computed_once_for_all() -> None:
    """Whoever comes second adopts it, is charged with nothing of it, and counts it as a hit."""
    store = made()
    first = cache(store, [*PUBLIC, 1], ANN)
    second = cache(store, [*PUBLIC, 1], BOB)
    assert first[:3] == second[:3]
    assert (held(store, OPERATOR), held(store, "ann"), held(store, "bob")) == (3, 1, 1)
    assert store.public_prefixes()[0].cached_blocks == 3


def test_of_two_who_arrive_together_one_follows() -> None:
    """The follower goes on by itself where the public part ends, and none of it is run twice."""
    store = made()
    leader = open_(store, [*PUBLIC, 1, 2, 3, 4], ANN)
    got = store.admit(BOB, tokens([*PUBLIC, 1, 2, 3, 4]))
    assert got == Following(leader)
    step(store, (leader, 4))
    assert store.admit(BOB, tokens([*PUBLIC, 1, 2, 3, 4])) == Following(leader)
    step(store, (leader, 12))
    got = store.admit(BOB, tokens([*PUBLIC, 1, 2, 3, 4]))
    assert isinstance(got, Admission)
    assert got.computed == 12


def test_a_follower_takes_over_when_its_leader_leaves() -> None:
    """What the leader published is there; the rest is the follower's to compute."""
    store = made()
    leader = open_(store, PUBLIC, ANN)
    step(store, (leader, 6))
    store.release(leader)
    got = store.admit(BOB, tokens(PUBLIC))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens) == (4, 2)
    run(store, got.sequence)
    assert held(store, "bob") == 0


@pytest.mark.parametrize("ends", ["withdrawn", "declared"])
def test_declaring_and_withdrawing_under_a_leader_holds_up_nobody(ends: str) -> None:
    """A follower asks again after a step, and finds another way."""
    store = make_store(32)
    if ends == "withdrawn":
        store.declare_public(tokens(PUBLIC))
    leader = open_(store, PUBLIC, ANN)
    assert (store.lookup(BOB, tokens(PUBLIC)).leader is not None) == (ends == "withdrawn")
    if ends == "withdrawn":
        store.withdraw_public(key_of(store))
    else:
        store.declare_public(tokens(PUBLIC))
    second = open_(store, PUBLIC, BOB)
    run(store, leader, second)
    assert hit(store, PUBLIC, BOB) == (3, 0)
    store.release(leader)
    store.release(second)
    assert audit(store) == ()


def test_public_blocks_stay_while_a_tenant_thrashes() -> None:
    """Room is set aside for them, and nobody's need takes it."""
    store = made(blocks=12)
    cache(store, PUBLIC, ANN)
    for n in range(40):
        cache(store, [*range(1000 * n, 1000 * n + 4 * (n % 9 + 1))], BOB)
        assert hit(store, PUBLIC, BOB) == (3, 0)
    assert store.pool_counts().evicted > 100


# --- where a chain enters the tenant's domain -----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (PUBLIC[:3], 0),
        (PUBLIC[:4], 1),
        (PUBLIC[:10], 2),
        (PUBLIC, 3),
        ([*PUBLIC, 1], 3),
        ([*PUBLIC, 1, 2, 3, 4], 3),
        ([*PUBLIC[:8], 1, 2, 3, 4], 2),
        ([*PUBLIC[:6], 1, 2, 3, 4], 1),
        ([1, *PUBLIC], 0),
    ],
)
def test_a_chain_enters_the_domain_where_the_common_blocks_end(text: list[int], entry: int) -> None:
    """Leading whole blocks of the prefix are the operator's, all after them the tenant's."""
    store = made()
    blocks = cache(store, text, ANN)
    roots = store.pool.meta[blocks, ops.ROOT]
    owners = [store.accounts.names[store.roots[r].account] for r in roots.tolist()]
    assert owners == [OPERATOR] * entry + ["ann"] * (len(blocks) - entry)
    full = len(text) // SIZE
    assert hit(store, text, BOB) == (entry, 0)
    assert hit(store, text, ANN) == (full, len(text) % SIZE)


def test_keys_of_different_ways_into_a_domain_differ() -> None:
    """The same block after one public block and after two has two keys."""
    store = made()
    after_one = store.keys_of(ANN, tokens([*PUBLIC[:4], 1, 2, 3, 4]))
    after_two = store.keys_of(ANN, tokens([*PUBLIC[:8], 1, 2, 3, 4]))
    alone = store.keys_of(ANN, tokens([1, 2, 3, 4]))
    assert len({after_one[-1], after_two[-1], alone[-1]}) == 3


@pytest.mark.parametrize("bits", [0, 1, 2])
def test_public_blocks_whose_keys_collide_have_ways_of_their_own(bits: int) -> None:
    """Under a broken hash, what hangs on one public prefix is not found below another."""
    for n in range(20):
        store = make_store(32, digest=partial(narrow, bits))
        first, second = [n, 1, 1, 1], [n + 50, 2, 2, 2]
        store.declare_public(tokens(first))
        store.declare_public(tokens(second))
        cache(store, [*first, 7, 7, 7, 7, 8, 8], ANN)
        assert hit(store, [*second, 7, 7, 7, 7, 8, 8], ANN) == (0, 0)
        cache(store, [*second, 7, 7, 7, 7, 8, 8], ANN)


# --- withdrawing ----------------------------------------------------------------------------------


def test_withdrawing_leaves_what_others_need() -> None:
    """Of nested and overlapping prefixes, only the blocks of the one that is withdrawn go."""
    store = make_store(32)
    longer, fork = [*PUBLIC, *range(8)], [*PUBLIC[:8], 1, 1, 1, 1]
    for prefix in (PUBLIC, longer, fork):
        store.declare_public(tokens(prefix))
        cache(store, [*prefix, 5, 5, 5, 5], ANN)
    assert held(store, OPERATOR) == 6
    store.withdraw_public(key_of(store, longer))
    assert held(store, OPERATOR) == 4
    assert hit(store, longer, BOB) == (3, 0)
    assert hit(store, [*PUBLIC, 5, 5, 5, 5], ANN) == (4, 0)
    assert hit(store, [*longer, 5, 5, 5, 5], ANN) == (3, 0)
    for key in [p.key for p in store.public_prefixes()]:
        store.withdraw_public(key)
        assert audit(store) == ()
    assert held(store, OPERATOR) == held(store, "ann") == 0
    assert store.pool_counts().free == 32
    assert hit(store, PUBLIC, ANN) == (0, 0)


def test_withdrawing_a_prefix_that_a_longer_one_begins_with_takes_nothing() -> None:
    """Its blocks are the longer one's too, and stay public."""
    store = made()
    store.declare_public(tokens(PUBLIC[:4]))
    cache(store, [*PUBLIC, 1, 2, 3, 4], ANN)
    store.withdraw_public(key_of(store, PUBLIC[:4]))
    assert hit(store, [*PUBLIC, 1, 2, 3, 4], ANN) == (4, 0)
    assert [p.tokens for p in store.public_prefixes()] == [12]


def test_a_part_of_a_withdrawn_block_goes_too() -> None:
    """A tail that was left in the place of a public block is nobody's any more."""
    store = made(blocks=8)
    store.declare_public(tokens(PUBLIC[:4]))
    sequence = open_(store, PUBLIC, ANN)
    step(store, (sequence, 6))
    store.release(sequence)
    assert held(store, OPERATOR) == 2
    store.withdraw_public(key_of(store))
    assert held(store, OPERATOR) == 1
    assert audit(store) == ()
    open_(store, [*range(28)], BOB)


def test_a_running_request_goes_on_while_its_prefix_is_withdrawn() -> None:
    """It keeps its blocks, publishes no more, and leaves nothing behind."""
    store = made()
    sequence = open_(store, [*PUBLIC, 1, 2, 3, 4], ANN)
    run(store, sequence)
    before = store.table_of(sequence).tolist()
    store.withdraw_public(key_of(store))
    grow(store, sequence, *range(4))
    run(store, sequence)
    assert store.table_of(sequence).tolist()[:4] == before
    assert hit(store, [*PUBLIC, 1, 2, 3, 4], ANN) == (0, 0)
    store.release(sequence)
    store.reclaim()
    assert store.pool_counts().free == 32
    assert directory_of(store).held == set()


@pytest.mark.parametrize("how", ["withdrawn", "flushed by a prefix inside"])
def test_what_comes_again_under_its_old_keys_is_told_of_rightly(how: str) -> None:
    """While a running request holds what was flushed, its copies are stored, hit and kept."""
    store = made()
    text = [*PUBLIC, *range(8)]
    running = open_(store, text, ANN)
    run(store, running)
    if how == "withdrawn":
        store.withdraw_public(key_of(store))
        store.declare_public(tokens(PUBLIC))
    else:
        store.flush(flush_of(FlushKind.PREFIX, ANN, PUBLIC[:4]))
    cache(store, text, ANN)
    keys = set(store.keys_of(ANN, tokens(text)))
    assert directory_of(store).held == keys
    store.release(running)
    store.reclaim()
    assert directory_of(store).held == keys
    assert hit(store, text, ANN) == (5, 0)
    last = {e.key: e.kind for e in store.events.read(0, 1000).events if e.kind != "adopted"}
    assert {last[key.hex()] for key in keys} == {"stored"}


def test_an_unknown_key_is_refused() -> None:
    """The error names the field, and nothing has changed."""
    store = made()
    before = snapshot(store)
    with pytest.raises(ValueError, match=r"^key: no public prefix is named 'beef'$"):
        store.withdraw_public("beef")
    with pytest.raises(ValueError, match=r"^prompt: 3 tokens are fewer than a block of 4$"):
        store.declare_public(tokens(PUBLIC[:3]))
    assert snapshot(store) == before


# --- flushes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "prefix", "left"),
    [
        (FlushKind.TENANT, [], 3),
        (FlushKind.PREFIX, PUBLIC[:2], 3),
        (FlushKind.PREFIX, PUBLIC, 3),
        (FlushKind.PREFIX, [*PUBLIC, 0], 3),
        (FlushKind.PREFIX, [*PUBLIC, 0, 1, 2, 3, 4], 4),
        (FlushKind.PREFIX, [*PUBLIC, 9], 5),
        (FlushKind.PREFIX, [9, *PUBLIC], 5),
    ],
)
def test_a_tenants_flush_takes_its_own_below_a_public_prefix(
    kind: FlushKind, prefix: list[int], left: int
) -> None:
    """What is public stays, and so does what is another's."""
    store = made()
    text = [*PUBLIC, *range(8)]
    cache(store, text, ANN)
    cache(store, text, BOB)
    report = store.flush(flush_of(kind, ANN, prefix))
    assert report.blocks_by_tenant == ({} if left == 5 else {"ann": 5 - left})
    assert hit(store, text, ANN) == (left, 0)
    assert hit(store, text, BOB) == (5, 0)


@pytest.mark.parametrize("kind", [FlushKind.ALL, FlushKind.ADAPTER])
def test_a_flush_that_concerns_the_public_renews_its_keys(kind: FlushKind) -> None:
    """The prefix stays public under other keys, works again, and is withdrawn by the new one."""
    store = made()
    text = [*PUBLIC, 1, 2, 3, 4]
    cache(store, text, ANN)
    old = store.keys_of(ANN, tokens(text)), key_of(store)
    running = open_(store, text, ANN)
    report = store.flush(flush_of(kind, ANN))
    assert report.blocks_by_tenant == {OPERATOR: 3, "ann": 1}
    assert set(store.keys_of(ANN, tokens(text))).isdisjoint(old[0])
    assert key_of(store) != old[1]
    assert hit(store, text, ANN) == (0, 0)
    cache(store, text, BOB)
    assert hit(store, text, ANN) == (3, 0)
    store.release(running)
    store.withdraw_public(key_of(store))
    store.reclaim()
    assert store.pool_counts().free + store.pool_counts().cached == 32


# --- odd stores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hash_function", ["xxh3_128", "sha256"])
@pytest.mark.parametrize("size", [1, 3, 5, 16])
def test_any_block_size_and_hash_function(size: int, hash_function: str) -> None:
    """The public part is shared as far as it fills whole blocks."""
    store = make_store(64, size, hash_function=hash_function)
    store.declare_public(tokens(range(20)))
    cache(store, [*range(20), 1, 2, 3], ANN)
    assert hit(store, [*range(20), 1, 2, 3], BOB) == (20 // size, 0)
    full, partial = hit(store, [*range(20), 1, 2, 3], ANN)
    assert full * size + partial == 23


def test_without_a_cache_nothing_is_shared() -> None:
    """A public prefix may be declared all the same, and changes no answer."""
    store = make_store(32, prefix_cache=False)
    store.declare_public(tokens(PUBLIC))
    cache(store, PUBLIC, ANN)
    assert hit(store, PUBLIC, BOB) == (0, 0)
    assert store.pool_counts().free == 32


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("write", [False, True])
def test_who_does_not_read_or_write_leaves_the_public_part_right(read: bool, write: bool) -> None:
    """It computes what it may not read, and leaves nothing that it may not write."""
    store = made()
    cache(store, [*PUBLIC, 1, 2, 3, 4], ANN, read=read, write=write)
    assert hit(store, PUBLIC, BOB) == (3 * write, 0)
    cache(store, [*PUBLIC, 1, 2, 3, 4], BOB, read=read, write=write)
    assert held(store, OPERATOR) == 3 * write
    assert np.count_nonzero(store.pool.live()) == 5 * write


@pytest.mark.parametrize("cap", [0.25, 1.0])
def test_a_cold_public_prefix_is_nothing_that_its_first_visitor_pays_for(cap: float) -> None:
    """Public blocks are taken from the room set aside for them, computed or not."""
    store = made(blocks=20)
    long = list(range(500, 500 + 9 * 4))
    store.declare_public(tokens(long))
    store.set_quotas({ANN.domain: Quota(cap=cap)})
    # 12 of 20 blocks are set aside, so that ten more would not fit.
    sequence = open_(store, [*long, 1, 2, 3, 4], ANN)
    assert (held(store, OPERATOR), held(store, "ann")) == (9, 1)
    assert audit(store) == ()
    run(store, sequence)
    store.release(sequence)
    assert (held(store, OPERATOR), held(store, "ann")) == (9, 1)
    assert hit(store, [*long, 9], BOB) == (9, 0)


def test_what_leaves_nothing_for_others_pays_for_itself() -> None:
    """What is not to be published, or is more than is set aside, is charged to who computes it."""
    store, blocks = made(), len(PUBLIC) // SIZE
    first = open_(store, [*PUBLIC, 1], ANN, write=False)
    assert (held(store, OPERATOR), held(store, "ann")) == (0, blocks + 1)
    second = open_(store, [*PUBLIC, 1], BOB, read=False)
    assert (held(store, OPERATOR), held(store, "bob")) == (blocks, 1)
    third = open_(store, [*PUBLIC, 2], replace(ANN, salt="s"), read=False)
    assert (held(store, OPERATOR), held(store, "ann")) == (blocks, 2 * (blocks + 1))
    run(store, first, second, third)
    for sequence in (first, second, third):
        store.release(sequence)
    assert held(store, OPERATOR) == blocks
    assert audit(store) == ()
