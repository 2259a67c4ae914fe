"""Rule 13: why a prompt is not reused further."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    Clock,
    cache,
    directory_of,
    flush_of,
    make_store,
    open_,
    tokens,
)

from stemkv.kvstore.explain import explain
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.properties.draws import narrow
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import Explanation


def ask(store: BlockStore, prompt: object, ns=ANN) -> Explanation:
    """Explain a prompt, and see that this changes nothing."""
    before = snapshot(store)
    explanation = explain(store, ns, tokens(list(prompt)))
    assert snapshot(store) == before
    assert explanation.prompt_tokens == len(list(prompt))
    assert explanation.detail.endswith(".")
    assert type(explanation.position) is int
    return explanation


def figures(e: Explanation) -> tuple[str, int, int, int]:
    """Return the reason and how far reuse goes."""
    return (e.reason, e.full_block_tokens, e.partial_tokens, e.position)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (8, ("complete", 8, 0, 7)),
        (9, ("complete", 8, 1, 8)),
        (10, ("complete", 8, 2, 9)),
        (11, ("complete", 8, 2, 10)),
        (4, ("complete", 4, 0, 3)),
        (3, ("complete", 0, 3, 2)),
        (12, ("not_seen", 8, 2, 10)),
    ],
)
def test_complete(length: int, expected: tuple[str, int, int, int]) -> None:
    """If all but the last token is reused, nothing is missing."""
    store = make_store()
    cache(store, range(10))
    assert figures(ask(store, range(length))) == expected


def test_not_seen() -> None:
    """A full block of a namespace in which nothing happened was never there."""
    assert figures(ask(make_store(), range(8))) == ("not_seen", 0, 0, 0)


def test_shorter_than_block() -> None:
    """What is too short to be a block cannot be found, if no tail of it is there."""
    store = make_store(partial_hits=False)
    cache(store, range(8))
    explanation = ask(store, range(11))
    assert figures(explanation) == ("shorter_than_block", 8, 0, 8)
    assert "3 tokens, and a block is 4" in explanation.detail
    assert figures(ask(make_store(), range(3))) == ("shorter_than_block", 0, 0, 0)
    assert figures(ask(make_store(), range(1))) == ("shorter_than_block", 0, 0, 0)


def test_token_differs() -> None:
    """The nearest cached block is named by its token at the first position that differs."""
    store = make_store()
    cache(store, [0, 1, 2, 3, 4, 9, 9, 9])
    cache(store, range(8))
    explanation = ask(store, [*range(6), 60, 7])
    assert figures(explanation) == ("token_differs", 4, 2, 6)
    numbers = (
        explanation.differing_position,
        explanation.expected_token,
        explanation.found_token,
    )
    assert numbers == (6, 6, 60)
    assert {type(n) for n in numbers} == {int}
    assert "token 6 at position 6, the prompt with 60" in explanation.detail


def test_token_differs_at_the_first_token_of_a_block() -> None:
    """A sibling that has nothing in common is still the nearest one."""
    store = make_store()
    cache(store, range(8))
    explanation = ask(store, [*range(4), 50, 51, 52, 53])
    assert figures(explanation) == ("token_differs", 4, 0, 4)
    assert (explanation.differing_position, explanation.expected_token) == (4, 4)


def test_which_token_differs_is_said_of_own_blocks_alone() -> None:
    """Another member's blocks in the group are not compared with."""
    store = make_store()
    cache(store, range(8), CAT)
    prompt = [*range(6), 60, 7]
    assert ask(store, prompt, CAT).reason == "token_differs"
    assert figures(ask(store, prompt, DAN)) == ("not_seen", 4, 0, 4)


def test_evicted() -> None:
    """When it went and for whose need, by the store's own clock."""
    clock = Clock()
    store = make_store(4, clock=clock)
    cache(store, range(16))
    clock.now = 10.0
    cache(store, range(50, 54), BOB)
    clock.now = 12.5
    explanation = ask(store, range(16))
    assert figures(explanation) == ("evicted", 12, 0, 12)
    assert (explanation.evicted_seconds_ago, explanation.evicted_for) == (2.5, "bob")
    assert "evicted 2.5 seconds ago, when 'bob' needed blocks" in explanation.detail


def test_evicted_counts_before_a_token_that_differs() -> None:
    """A block that was there and left is a better reason than a neighbour that is there."""
    store = make_store(2)
    cache(store, range(8))
    cache(store, [*range(4), 60, 61, 62, 63])
    assert ask(store, range(8)).reason == "evicted"
    assert ask(store, [*range(4), 4, 5, 6, 70]).reason == "token_differs"


@pytest.mark.parametrize("kind", [*FlushKind])
def test_flushed(kind: FlushKind) -> None:
    """Whatever the flush was by, the prompt that lost its blocks to it is told so."""
    clock = Clock()
    store = make_store(clock=clock)
    cache(store, range(8))
    store.flush(flush_of(kind, ANN, range(3)))
    clock.now = 3.0
    explanation = ask(store, range(8))
    assert figures(explanation) == ("flushed", 0, 0, 0)
    assert "flushed 3.0 seconds ago" in explanation.detail
    assert explanation.evicted_for is None
    assert ask(store, range(50, 58)).reason == "not_seen"


def test_flushed_further_on() -> None:
    """Blocks that came back since are reused, and the next one is still said to be flushed."""
    store = make_store()
    cache(store, range(12))
    store.flush(flush_of(FlushKind.TENANT))
    cache(store, range(4))
    assert figures(ask(store, range(12))) == ("flushed", 4, 0, 4)


def test_evicted_before_a_flush() -> None:
    """A block that had gone before the flush came was evicted."""
    store = make_store(3)
    cache(store, range(8))
    cache(store, range(50, 58), BOB)
    store.flush(flush_of(FlushKind.TENANT))
    explanation = ask(store, range(8))
    assert explanation.reason == "flushed"
    cache(store, range(4))
    explanation = ask(store, range(8))
    assert (explanation.reason, explanation.evicted_for) == ("evicted", "bob")


SALTED = replace(ANN, salt="s")
ADAPTED = replace(ANN, adapter="x", adapter_digest=b"1")
RETRAINED = replace(ANN, adapter="x", adapter_digest=b"2")


@pytest.mark.parametrize(
    ("holder", "asker", "reason", "words"),
    [
        (ANN, SALTED, "other_salt", "8 tokens are cached under no salt"),
        (SALTED, ANN, "other_salt", "8 tokens are cached under salt 's'"),
        (ANN, ADAPTED, "other_adapter", "8 tokens are cached for no adapter"),
        (ADAPTED, ANN, "other_adapter", "8 tokens are cached for adapter 'x'"),
        (ADAPTED, RETRAINED, "other_adapter", "for other weights of adapter 'x'"),
    ],
)
def test_other_adapter_or_salt(holder, asker, reason: str, words: str) -> None:
    """If the same prompt is cached beside this namespace in the same domain, that is said."""
    store = make_store()
    cache(store, range(8), holder)
    explanation = ask(store, range(8), asker)
    assert figures(explanation) == (reason, 0, 0, 0)
    assert words in explanation.detail


def test_nothing_is_said_of_other_domains() -> None:
    """What another tenant has cached is no reason."""
    store = make_store()
    cache(store, range(8), replace(BOB, salt="s"))
    cache(store, range(8), BOB)
    assert ask(store, range(8)).reason == "not_seen"


def test_another_salt_that_holds_no_more_is_no_reason() -> None:
    """The other namespace must hold more of this prompt than this one does."""
    store = make_store()
    cache(store, range(4))
    cache(store, range(4), SALTED)
    assert ask(store, range(8)).reason == "not_seen"
    cache(store, range(8), SALTED)
    assert figures(ask(store, range(8))) == ("other_salt", 4, 0, 4)


def test_computing() -> None:
    """A block that a request is computing now will be there soon."""
    store = make_store()
    leader = open_(store, range(12))
    assert figures(ask(store, range(8))) == ("computing", 0, 0, 0)
    store.commit(leader, 4)
    assert figures(ask(store, range(8))) == ("computing", 4, 0, 4)
    assert ask(store, range(8), BOB).reason == "not_seen"


def test_cold() -> None:
    """A worker that is cut off hits nothing, whatever it holds."""
    store = make_store()
    cache(store, range(8))
    directory_of(store).current = False
    assert figures(ask(store, range(8))) == ("cold", 0, 0, 0)


def test_disabled() -> None:
    """Without a prefix cache there is nothing to explain."""
    store = make_store(prefix_cache=False)
    assert figures(ask(store, range(8))) == ("disabled", 0, 0, 0)


def test_a_collision_is_not_taken_for_a_departure_of_ones_own() -> None:
    """With a broken hash the answer may be a wrong reason, but never another's tokens."""
    store = make_store(digest=partial(narrow, 0))
    cache(store, range(8), BOB)
    explanation = ask(store, range(8))
    assert (explanation.reason, explanation.full_block_tokens) == ("not_seen", 0)


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to explain."""
    with pytest.raises(ValueError, match="prompt: it has no tokens"):
        explain(make_store(), ANN, tokens([]))


def test_the_explanation_is_what_a_lookup_finds() -> None:
    """Full blocks and partial tokens are those that an admission would get."""
    store = make_store(8)
    made: Callable[[int], list[int]] = lambda n: [(i * i * n) % 3 for i in range(14)]  # noqa: E731
    for n in range(6):
        cache(store, made(n))
    for n in range(9):
        found = store.lookup(ANN, tokens(made(n)))
        explanation = ask(store, made(n))
        assert explanation.full_block_tokens == found.full_blocks * 4
        assert explanation.partial_tokens == found.partial_tokens


def test_in_a_hurry_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few namespaces beside the prompt's own are compared in a hurry, too; many are not."""
    store = make_store()
    cache(store, range(8), SALTED)
    cache(store, [*range(4), 9, 9, 9, 9])
    asked = partial(explain, store, ANN)
    for prompt in (range(8), range(50, 58), [*range(4), 7, 7, 7, 7], range(3)):
        given = tokens([*prompt])
        assert asked(given, hurried=True) == asked(given)
    cache(store, range(4), replace(ANN, salt="newest"))
    monkeypatch.setattr("stemkv.kvstore.explain._NAMESPACES_COMPARED", 1)
    eight = tokens([*range(8)])
    assert (asked(eight).reason, asked(eight, hurried=True).reason) == (
        "other_salt",
        "token_differs",
    )
    monkeypatch.setattr("stemkv.kvstore.explain._NAMESPACES_COMPARED", 2)
    assert asked(eight, hurried=True).reason == "other_salt"
    monkeypatch.setattr("stemkv.kvstore.explain._NAMESPACES_SIFTED", 2)
    assert asked(eight, hurried=True).reason == "token_differs"


def test_the_nearest_of_several() -> None:
    """Of several own blocks the one with the longest common prefix is named, in either mode."""
    store = make_store(32, partial_hits=False)
    for last in (9, 8, 7):
        cache(store, [*range(4), 4, last, last, last])
    cache(store, [*range(4), 4, 5, 6, 9])
    cache(store, [*range(4), 3, 3, 3, 3])
    assert figures(ask(store, range(8))) == ("token_differs", 4, 0, 4)
    assert ask(store, range(8)).differing_position == 7


def test_first_blocks_of_several_tenants_are_told_apart() -> None:
    """What became of a first block is asked for under its own namespace's root, whichever it is."""
    store = make_store(4)
    for namespace in (ANN, BOB, CAT):
        cache(store, range(4), namespace)
    cache(store, range(100, 116), DAN)
    for namespace in (ANN, BOB, CAT):
        explanation = ask(store, range(4), namespace)
        assert (explanation.reason, explanation.evicted_for) == ("evicted", "dan"), namespace


def test_a_first_block_is_asked_for_under_the_root_of_what_is_left() -> None:
    """Where other chains of a namespace are still there, the key is made from its own root's."""
    store = make_store(8)
    for start in (0, 50):
        for namespace in (ANN, BOB):
            cache(store, range(start, start + 4), namespace)
    open_(store, range(100, 124), DAN)
    for namespace in (ANN, BOB):
        assert store.lookup(namespace, tokens(range(50, 54))).full_blocks == 1
        explanation = ask(store, range(4), namespace)
        assert (explanation.reason, explanation.evicted_for) == ("evicted", "dan")
