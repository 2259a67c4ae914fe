"""Running one property: so many examples from one seed, and what came of it."""

import linecache
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.stateful import (
    INVARIANT_MARKER,
    RuleBasedStateMachine,
    invariant,
    run_state_machine_as_test,
)

CHECKS = Path(__file__).parent
PACKAGE = CHECKS.parents[1]
_FEW_STEPS = (2, 4, 8, 16, 32)
_ALL_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
_LONGEST_VALUE = 300
_LINE_BREAK = re.compile(r"\n *")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is tried: examples a property, steps of a state machine's example, the seed."""

    examples: int
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A check of values that are drawn, by their names; cases are tried before, one and all."""

    check: Callable[..., None]
    draws: Mapping[str, strategies.SearchStrategy[Any]]
    cases: Sequence[Mapping[str, Any]] = ()


Place = tuple[FrameType, int]
Setting = int | str
Body = Drawn | type[RuleBasedStateMachine]


@dataclass(frozen=True, slots=True)
class Property:
    """One property. rules: those of the design that it holds. absent: why it can't be run here.

    parts: functions of the check that hold fewer of the rules, by their names. reach: says of one
    example of a state machine what of its settings should be seen to vary.
    """

    name: str
    says: str
    rules: tuple[int, ...]
    body: Body
    absent: str | None = None
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reach: Callable[[Any], Mapping[str, Setting]] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A counterexample. rules: those of the part that failed, or else all of the property's.

    place: where the check failed, with its source line. values: what the names in it stood for.
    example: what was drawn, as small as it could be made; of a state machine, its calls.
    steps: the budget of steps that it was found with.
    """

    rules: tuple[int, ...]
    error: str
    place: str
    values: Mapping[str, str]
    example: str
    steps: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one property. examples and steps include those that made a failure smaller.

    reached: the settings that examples ran with, by their names, in order.
    """

    name: str
    examples: int
    steps: int | None
    seconds: float
    failure: Failure | None
    absent: str | None
    reached: Mapping[str, Sequence[Setting]] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """One word for it."""
        if self.absent is not None:
            return "not run"
        return "held" if self.failure is None else "FAILED"


@dataclass(slots=True)
class _Tally:
    tell: Callable[[int], None]
    examples: int = 0
    steps: int = 0
    reached: dict[str, set[Setting]] = field(default_factory=dict)

    def example(self) -> None:
        self.examples += 1
        self.tell(self.examples)

    def reach(self, settings: Mapping[str, Setting]) -> None:
        for name, value in settings.items():
            self.reached.setdefault(name, set()).add(value)


def run_property(
    property_: Property, budget: Budget, tell: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run a property; `tell` hears of each example's number. What fails in it is in the outcome."""
    stepwise = not isinstance(property_.body, Drawn)
    if property_.absent is not None:
        return Outcome(property_.name, 0, None, 0.0, None, property_.absent)
    tally, started = _Tally(tell), time.perf_counter()
    failure = _smallest(property_, budget, tally)
    seconds = time.perf_counter() - started
    steps = tally.steps if stepwise else None
    reached = {name: sorted(values, key=_in_order) for name, values in tally.reached.items()}
    return Outcome(property_.name, tally.examples, steps, seconds, failure, None, reached)


def _in_order(value: Setting) -> tuple[bool, int, str]:
    return (isinstance(value, str), value if isinstance(value, int) else 0, str(value))


def _smallest(property_: Property, budget: Budget, tally: _Tally) -> Failure | None:
    """Run a property; if it fails, find a small example, in few steps if it has any."""
    if isinstance(property_.body, Drawn):
        return _try(property_, budget, _ALL_PHASES, tally)
    failure = _try(property_, budget, (Phase.explicit, Phase.generate), tally)
    if failure is None:
        return None
    # Looking for a short example afresh takes less time than cutting a long one down.
    for steps in (*_FEW_STEPS, budget.steps):
        if steps <= budget.steps:
            smaller = _try(property_, replace(budget, steps=steps), _ALL_PHASES, tally)
            if smaller is not None:
                return smaller
    return failure


def _try(
    property_: Property, budget: Budget, phases: tuple[Phase, ...], tally: _Tally
) -> Failure | None:
    try:
        _run(property_, _settings(budget, phases), budget.seed, tally)
    except Exception as error:  # noqa: BLE001 - whatever a broken store raises is a finding
        return _failure(error, property_, budget.steps)
    return None


def _settings(budget: Budget, phases: tuple[Phase, ...]) -> hypothesis.settings:
    """Return settings that are the same from every folder and under every profile."""
    return hypothesis.settings(
        max_examples=budget.examples,
        stateful_step_count=budget.steps,
        phases=phases,
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def _run(property_: Property, settings: hypothesis.settings, seed: int, tally: _Tally) -> None:
    body = property_.body
    if isinstance(body, Drawn):
        test = hypothesis.given(**body.draws)(_counted(body.check, tally))
        for case in reversed(body.cases):
            test = hypothesis.example(**case)(test)
        hypothesis.seed(seed)(settings(test))()
    else:
        machine = hypothesis.seed(seed)(_counted_machine(body, tally, property_.reach))
        run_state_machine_as_test(machine, settings=settings)


def _counted(check: Callable[..., None], tally: _Tally) -> Callable[..., None]:
    @wraps(check)
    def counted(**drawn: Any) -> None:
        tally.example()
        check(**drawn)

    return counted


def _counted_machine(
    machine: type[RuleBasedStateMachine],
    tally: _Tally,
    reach: Callable[[Any], Mapping[str, Setting]] | None,
) -> type[RuleBasedStateMachine]:
    class Counted(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            tally.example()
            super().__init__()

        @invariant()
        def counts_a_step(self) -> None:
            tally.steps += 1
            if reach is not None:
                tally.reach(reach(self))

    Counted.__name__ = machine.__name__
    return Counted


def _failure(error: Exception, property_: Property, steps: int) -> Failure:
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    example = _example(error, property_.body)
    check, innermost = _frames(error.__traceback__)
    if check is None:
        place = "" if innermost is None else _words(innermost)
        return Failure(property_.rules, message, place, {}, example, steps)
    place = _words(check)
    if innermost is not None and innermost != check:
        place = f"{_words(innermost)} - called by {place}"
    rules = property_.parts.get(check[0].f_code.co_name, property_.rules)
    return Failure(rules, message, place, _values(check[0]), example, steps)


def _frames(trace: TracebackType | None) -> tuple[Place | None, Place | None]:
    """Return the innermost frames that an error left: of the checks, and of the whole package."""
    check, innermost = None, None
    for frame, line in traceback.walk_tb(trace):
        file = Path(frame.f_code.co_filename)
        if PACKAGE in file.parents and file != Path(__file__):
            innermost = (frame, line)
            check = innermost if CHECKS in file.parents else check
    return check, innermost


def _words(place: Place) -> str:
    frame, line = place
    file = frame.f_code.co_filename
    source = linecache.getline(file, line).strip()
    return f"{Path(file).relative_to(PACKAGE)}:{line}, {frame.f_code.co_name}: {source}"


def _values(frame: FrameType) -> Mapping[str, str]:
    """Show what a frame's names stand for, as far as that is the same in every run."""
    values = {name: repr(v) for name, v in frame.f_locals.items() if name != "self"}
    return {
        name: text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
        for name, text in values.items()
        if not _ADDRESS.search(text)
    }


def _example(error: Exception, body: Body) -> str:
    """Return what hypothesis drew; of a state machine, each call in a line, checks left out."""
    notes: list[str] = getattr(error, "__notes__", [])
    if isinstance(body, Drawn):
        return "\n".join(notes)
    checks = {f"state.{name}()" for name in dir(body) if _is_invariant(getattr(body, name))}
    checks |= {"state.counts_a_step()", "state.teardown()"}
    return "\n".join(_LINE_BREAK.sub(" ", note) for note in notes if note not in checks)


def _is_invariant(attribute: object) -> bool:
    return hasattr(attribute, INVARIANT_MARKER)
