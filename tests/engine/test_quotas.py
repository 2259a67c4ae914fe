"""Tenants with quotas in one engine: who waits for whom, who is refused, who never waits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cores import ALICE, BOB, SECRET, collect, continuation, hash_core, request, run

from stemkv.engine.core import EngineCore
from stemkv.engine.core_protocol import Later
from stemkv.engine.messages import (
    AdminError,
    DeclarePublic,
    DoFlush,
    DoPin,
    DoUnpin,
    GetStats,
    ListPins,
    ListPublic,
    SetQuotas,
    WithdrawPublic,
)
from stemkv.engine.request import Event, Finished, Request
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.quotas import Quota

GROUP = domain_of(SECRET, tenant="", group="g")
CAROL = Namespace("carol", GROUP, group="g")
DAVE = Namespace("dave", GROUP, group="g")
TENANTS = (ALICE, BOB, CAROL, DAVE, replace(ALICE, salt="s"))


def set_quotas(core: EngineCore, **quotas: Quota) -> object:
    """Put quotas in force by tenant name, "g" for the group; returns the reply."""
    domains = {"alice": ALICE.domain, "bob": BOB.domain, "g": GROUP}
    return core.admin(SetQuotas({domains[name]: q for name, q in quotas.items()}))


def submit(core: EngineCore, *requests: Request) -> None:
    """Queue requests that must be accepted."""
    for each in requests:
        assert core.submit(each) == ()


def running(core: EngineCore) -> set[str]:
    """Return who has a sequence."""
    return {track.job.request.request_id for track in core._scheduler.running}


def drain(core: EngineCore, limit: int = 2000) -> list[Event]:
    """Step until nothing is open."""
    events: list[Event] = []
    for _ in range(limit):
        if not core.has_work():
            return events
        events += core.step()
    raise AssertionError(f"still work after {limit} steps")


def prompt(number: int, length: int) -> list[int]:
    """Make a prompt that no other number begins like."""
    return [(number * 37 + i * (number + 3)) % 250 for i in range(length)]


def test_a_tenant_at_its_cap_holds_up_nobody_else() -> None:
    """Others behind it in the queue are admitted in the same step; it goes on when its own end."""
    core, _ = hash_core(32, max_batch_tokens=64)
    set_quotas(core, alice=Quota(cap=0.25))
    long = [request(f"a{n}", prompt(n, 20), max_tokens=8) for n in range(3)]
    submit(core, *long, request("b", prompt(9, 8), namespace=BOB, max_tokens=4))
    events = core.step()
    assert running(core) == {"a0", "b"}
    outcomes = collect([*events, *drain(core)])
    assert {n for n, o in outcomes.items() if o.finished} == {"a0", "a1", "a2", "b"}


def test_a_big_request_is_not_starved_by_small_ones_of_its_tenant() -> None:
    """Where a quota is what is short, who came later from the same tenant waits behind it."""
    core, _ = hash_core(32, max_batch_tokens=64)
    set_quotas(core, alice=Quota(cap=0.25))
    submit(core, request("first", prompt(1, 12), max_tokens=8))
    core.step()
    submit(core, request("big", prompt(2, 28), max_tokens=4))
    order: list[str] = []
    for n in range(60):
        submit(core, request(f"small{n}", prompt(3 + n, 3), max_tokens=2))
        order += [e.request_id for e in core.step() if isinstance(e, Finished)]
        if "big" in order:
            break
    assert order[0] == "first"
    assert order.index("big") == 1
    drain(core)


def test_an_unfilled_reserve_is_had_at_once_behind_one_who_waits_for_the_pool() -> None:
    """A request that waits for more blocks than are idle could never have had the reserve."""
    core, _ = hash_core(16, max_batch_tokens=64)
    set_quotas(core, bob=Quota(reserve=0.25))
    submit(core, request("a0", prompt(1, 30), max_tokens=12))
    core.step()
    submit(core, request("a1", prompt(2, 40), max_tokens=4))
    submit(core, request("b", prompt(3, 12), namespace=BOB, max_tokens=4))
    submit(core, request("c", prompt(4, 4), namespace=CAROL, max_tokens=1))
    core.step()
    assert running(core) == {"a0", "b"}
    drain(core)


def test_preemption_picks_only_whom_it_helps() -> None:
    """A tenant within its reserve is left alone, though it came last."""
    core, _ = hash_core(16, max_batch_tokens=64)
    set_quotas(core, bob=Quota(reserve=0.5))
    submit(core, request("a0", prompt(1, 14), max_tokens=12))
    submit(core, request("a1", prompt(2, 14), max_tokens=12))
    submit(core, request("b", prompt(3, 24), namespace=BOB, max_tokens=8))
    lost: set[str] = set()
    seen: set[str] = set()
    events: list[Event] = []
    while core.has_work():
        events += core.step()
        ended = {e.request_id for e in events if isinstance(e, Finished)}
        seen |= running(core)
        lost |= seen - running(core) - ended
    assert lost == {"a1"}
    assert core.admin(GetStats()).preemptions >= 1
    outcomes = collect(events)
    for name, number, length, count in (("a0", 1, 14, 12), ("a1", 2, 14, 12), ("b", 3, 24, 8)):
        assert outcomes[name].tokens[0] == continuation(
            prompt(number, length), count, core.info.vocab_size
        )


@pytest.mark.parametrize(
    ("length", "field"), [(20, "prompt"), (12, "max_tokens"), (8, "max_tokens")]
)
def test_what_is_over_a_tenants_share_is_refused_at_once(length: int, field: str) -> None:
    """The error says how many blocks are needed, and how many there are."""
    core, _ = hash_core(16)
    set_quotas(core, alice=Quota(cap=0.25))
    (failed,) = core.submit(request("a", prompt(1, length), max_tokens=12))
    assert failed.kind == "rejected"
    assert failed.field == field
    assert failed.message.startswith(f"{field}: {length} prompt tokens and 12 output tokens need ")
    assert f"need {-(-(length + 11) // 4)} cache blocks of 4 tokens" in failed.message
    assert failed.message.endswith("this tenant can have 4")
    assert not core.has_work()
    assert core.submit(request("b", prompt(1, length), namespace=BOB, max_tokens=12)) == ()
    drain(core)


def test_a_public_prefix_does_not_count_against_a_share() -> None:
    """A prompt that is longer than its tenant's share is served if what is over it is public."""
    core, _ = hash_core(32)
    long = prompt(1, 40)
    assert not isinstance(core.admin(DeclarePublic(np.array(long, "<i4").tobytes())), AdminError)
    set_quotas(core, alice=Quota(cap=0.1))
    (failed,) = core.submit(request("a", [*long, *prompt(2, 16)], max_tokens=2))
    assert failed.message.endswith("need 5 cache blocks of 4 tokens; this tenant can have 3")
    for name in ("cold", "warm"):
        served = run(core, request(name, [*long, 1, 2, 3], max_tokens=6))[name]
        assert served.tokens[0] == continuation([*long, 1, 2, 3], 6, core.info.vocab_size)


def test_a_share_is_what_reserves_of_others_leave() -> None:
    """A tenant without a quota may use what nobody has reserved, and no more."""
    core, _ = hash_core(16)
    set_quotas(core, bob=Quota(reserve=0.75))
    (failed,) = core.submit(request("a", prompt(1, 16), max_tokens=2))
    assert failed.message.endswith("this tenant can have 4")
    assert run(core, request("b", prompt(1, 16), namespace=BOB, max_tokens=2))["b"].finished


def test_a_quota_lowered_while_requests_wait_fails_those_that_never_fit() -> None:
    """They get numbers; what still fits waits for its turn and is answered."""
    core, _ = hash_core(32, max_batch_tokens=64)
    submit(core, request("runs", prompt(1, 8), max_tokens=8))
    submit(core, request("b", prompt(5, 40), namespace=BOB, max_tokens=16))
    events = core.step()
    set_quotas(core, alice=Quota(cap=0.125))
    submit(core, request("fits", prompt(2, 12), max_tokens=2))
    outcomes = collect([*events, *drain(core)])
    assert outcomes["runs"].finished
    assert outcomes["fits"].finished
    submit(core, request("big", prompt(3, 12), max_tokens=4))
    set_quotas(core, alice=Quota(cap=0.0625))
    outcomes = collect(drain(core))
    failed = outcomes["big"].failed
    assert failed is not None
    assert failed.message == "3 blocks needed, 2 to be had by its tenant's quota"


def test_a_quota_lowered_under_a_running_request_ends_it_clearly() -> None:
    """It goes on as long as it needs no further block, and fails alone when it does."""
    core, _ = hash_core(32)
    submit(core, request("a", prompt(1, 8), max_tokens=20))
    submit(core, request("b", prompt(2, 8), namespace=BOB, max_tokens=20))
    events = core.step()
    set_quotas(core, alice=Quota(cap=0.0625))
    outcomes = collect([*events, *drain(core)])
    assert outcomes["b"].finished
    failed = outcomes["a"].failed
    assert failed is not None
    assert failed.message.endswith("blocks needed, 2 to be had by its tenant's quota")
    assert outcomes["a"].tokens[0] == continuation(prompt(1, 8), 20, core.info.vocab_size)[:1]


def test_what_an_admin_call_got_wrong_names_the_field() -> None:
    """Reserves over the pool, unknown keys and numbers are errors, and change nothing."""
    core, _ = hash_core(16)
    over = set_quotas(core, alice=Quota(0.75), bob=Quota(0.5))
    assert isinstance(over, AdminError)
    assert over.field == "reserve"
    for call, field in ((WithdrawPublic("00"), "key"), (DoUnpin(7), "pin_id")):
        reply = core.admin(call)
        assert isinstance(reply, AdminError)
        assert reply.field == field
    reply = core.admin(DeclarePublic(np.arange(3, dtype="<i4").tobytes()))
    assert isinstance(reply, AdminError)
    assert reply.field == "prompt"
    reply = core.admin(DeclarePublic(np.arange(80, dtype="<i4").tobytes()))
    assert isinstance(reply, AdminError)
    assert reply.field == "reserve"


# --- at random ------------------------------------------------------------------------------------

quotas_ = st.builds(
    lambda cap, reserve, weight, pins: Quota(min(cap, reserve), cap, weight, pins),
    cap=st.sampled_from([1.0, 0.5, 0.25, 0.1]),
    reserve=st.sampled_from([0.0, 0.0, 0.2, 0.4]),
    weight=st.sampled_from([1.0, 4.0]),
    pins=st.sampled_from([0.25, 1.0]),
)
prompts_ = st.builds(
    lambda beginning, length, end: (prompt(beginning, length) + end)[:40] or [1],
    beginning=st.integers(0, 2),
    length=st.integers(0, 30),
    end=st.lists(st.integers(0, 2), max_size=6),
)
actions_ = st.sampled_from(
    ["submit"] * 6
    + ["step"] * 6
    + ["quotas"] * 2
    + ["abort", "flush", "declare", "withdraw", "pin", "unpin"]
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_whatever_happens_every_request_ends_and_every_answer_is_right(data: st.DataObject) -> None:
    """Several tenants, quotas that change, pins, public prefixes, flushes and aborts, in any order.

    Each request is answered as by a core without a cache, or fails with a message; none is left.
    """
    core, _ = hash_core(
        data.draw(st.sampled_from([12, 20, 32])),
        data.draw(st.sampled_from([1, 3, 4])) if data.draw(st.booleans()) else 4,
        prefix_cache=data.draw(st.sampled_from([True] * 9 + [False])),
        watched=data.draw(st.booleans()),
    )
    asked: dict[str, tuple[Sequence[int], int, int]] = {}
    gone: set[str] = set()
    events: list[Event] = []
    for number in range(data.draw(st.integers(5, 50))):
        match data.draw(actions_):
            case "submit":
                text, count = data.draw(prompts_), data.draw(st.integers(1, 12))
                choices = data.draw(st.sampled_from([1, 1, 1, 2]))
                new = request(
                    f"r{number}",
                    text,
                    namespace=data.draw(st.sampled_from(TENANTS)),
                    max_tokens=count,
                    n=choices,
                    ignore_eos=True,
                    cache_read=data.draw(st.sampled_from([True] * 5 + [False])),
                    cache_write=data.draw(st.sampled_from([True] * 5 + [False])),
                )
                asked[new.request_id] = (text, count, choices)
                events += core.submit(new)
            case "step":
                for _ in range(data.draw(st.integers(1, 4))):
                    events += core.step()
            case "abort":
                if asked:
                    name = data.draw(st.sampled_from(sorted(asked)))
                    core.abort(name)
                    gone.add(name)
            case other:
                operate(core, other, data)
    events += drain(core)
    outcomes = collect(events)
    for name, (text, count, choices) in asked.items():
        outcome = outcomes[name]
        right = continuation(text, count, core.info.vocab_size)
        if outcome.finished is not None:
            assert [outcome.tokens[i] for i in range(choices)] == [right] * choices
            continue
        assert name in gone or (outcome.failed is not None and outcome.failed.message), name
        for said in outcome.tokens.values():
            assert said == right[: len(said)]
    stats = core.admin(GetStats())
    assert stats.in_use_blocks == 0
    assert all(account.in_use == 0 for account in stats.accounts.values())


def operate(core: EngineCore, action: str, data: st.DataObject) -> None:
    """Do what an operator may do at any time; a refusal is fine."""
    ns = data.draw(st.sampled_from(TENANTS))
    text = np.array(data.draw(prompts_), "<i4").tobytes()
    match action:
        case "quotas":
            domains = st.sampled_from([ALICE.domain, BOB.domain, GROUP])
            core.admin(SetQuotas(data.draw(st.dictionaries(domains, quotas_, max_size=3))))
        case "flush":
            later = core.admin(DoFlush(data.draw(st.sampled_from(FlushKind)), ns, text))
            assert isinstance(later, Later)
        case "declare":
            core.admin(DeclarePublic(text))
        case "withdraw":
            found = core.admin(ListPublic())
            if found:
                core.admin(WithdrawPublic(data.draw(st.sampled_from(found)).key))
        case "pin":
            core.admin(DoPin(ns, text, 1000.0))
        case "unpin":
            pins = core.admin(ListPins())
            if pins:
                core.admin(DoUnpin(pins[0].pin_id))
