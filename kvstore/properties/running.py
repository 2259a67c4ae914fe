"""Running one property: so many examples from one seed, and what came of it."""

import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

PACKAGE = Path(__file__).parents[2]
_LONGEST_VALUE = 300
_CITED = re.compile(r"\brule (\d+)\b")
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


@dataclass(frozen=True, slots=True)
class Property:
    """One property. rules: those of the design that it holds. absent: why it can't be run here."""

    name: str
    says: str
    rules: tuple[int, ...]
    body: Drawn | type[RuleBasedStateMachine]
    absent: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A counterexample. rules: those that the violation names, or else all of the property's.

    place: where the check failed, with its source line. values: what the names in it stood for.
    example: what was drawn, as small as it could be made; of a state machine, its calls.
    """

    rules: tuple[int, ...]
    error: str
    place: str
    values: Mapping[str, str]
    example: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one property. examples and steps include those that made a failure smaller."""

    name: str
    examples: int
    steps: int | None
    seconds: float
    failure: Failure | None
    absent: str | None

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

    def example(self) -> None:
        self.examples += 1
        self.tell(self.examples)


def run_property(
    property_: Property, budget: Budget, tell: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run a property; `tell` hears of each example's number. What fails in it is in the outcome."""
    stepwise = not isinstance(property_.body, Drawn)
    if property_.absent is not None:
        return Outcome(property_.name, 0, None, 0.0, None, property_.absent)
    tally, failure, started = _Tally(tell), None, time.perf_counter()
    try:
        _run(property_, budget, tally)
    except Exception as error:  # noqa: BLE001 - whatever a broken store raises is a finding
        failure = _failure(error, property_.rules)
    seconds = time.perf_counter() - started
    steps = tally.steps if stepwise else None
    return Outcome(property_.name, tally.examples, steps, seconds, failure, None)


def _run(property_: Property, budget: Budget, tally: _Tally) -> None:
    settings = hypothesis.settings(
        max_examples=budget.examples,
        stateful_step_count=budget.steps,
        # The same from every folder, on every machine, under every profile.
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    body = property_.body
    if isinstance(body, Drawn):
        test = hypothesis.given(**body.draws)(_counted(body.check, tally))
        for case in reversed(body.cases):
            test = hypothesis.example(**case)(test)
        hypothesis.seed(budget.seed)(settings(test))()
    else:
        machine = hypothesis.seed(budget.seed)(_counted_machine(body, tally))
        run_state_machine_as_test(machine, settings=settings)


def _counted(check: Callable[..., None], tally: _Tally) -> Callable[..., None]:
    @wraps(check)
    def counted(**drawn: Any) -> None:
        tally.example()
        check(**drawn)

    return counted


def _counted_machine(
    machine: type[RuleBasedStateMachine], tally: _Tally
) -> type[RuleBasedStateMachine]:
    class Counted(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            tally.example()
            super().__init__()

        @invariant()
        def counts_a_step(self) -> None:
            tally.steps += 1

    Counted.__name__ = machine.__name__
    return Counted


def _failure(error: Exception, rules: tuple[int, ...]) -> Failure:
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    cited = tuple(sorted({int(number) for number in _CITED.findall(message)}))
    place, values = _place(error.__traceback__)
    example = "\n".join(getattr(error, "__notes__", ()))
    return Failure(cited or rules, message, place, values, example)


def _place(trace: TracebackType | None) -> tuple[str, Mapping[str, str]]:
    """Say where in this package an error came from, and what the names there stood for."""
    ours: tuple[FrameType, int] | None = None
    for frame, line in traceback.walk_tb(trace):
        if PACKAGE in Path(frame.f_code.co_filename).parents and frame.f_code.co_name != "counted":
            ours = (frame, line)
    if ours is None:
        return "", {}
    frame, line = ours
    path = Path(frame.f_code.co_filename)
    summary = traceback.FrameSummary(str(path), line, frame.f_code.co_name)
    place = f"{path.relative_to(PACKAGE)}:{line}, {summary.name}: {summary.line}"
    values = {name: repr(value) for name, value in frame.f_locals.items()}
    shown = {
        name: text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
        for name, text in values.items()
        if not _ADDRESS.search(text)
    }
    return place, shown
