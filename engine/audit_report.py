"""What `stemkv audit` reports: what ran where, what came of it, which rules that holds.

Imports hypothesis by way of the properties: only for where that is known to be installed.
"""

import importlib.metadata
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

import stemkv
from stemkv.engine.cli_tables import rows
from stemkv.kvstore.jit import COMPILES
from stemkv.kvstore.properties.running import Budget, Outcome
from stemkv.kvstore.properties.suite import LIMITS, PROPERTIES, RULES

_HEADINGS = ("property", "rules", "examples", "steps", "seconds", "outcome")
_PROPERTIES = {property_.name: property_ for property_ in PROPERTIES}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of the properties that ran, in their order."""

    budget: Budget
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[Outcome]:
        """The properties that do not hold."""
        return [outcome for outcome in self.outcomes if outcome.failure is not None]

    def to_json(self) -> str:
        """Return everything as JSON; of two runs with one seed, dates and seconds alone differ."""
        return json.dumps(
            {
                "environment": environment(),
                "date": _now(),
                "seed": self.budget.seed,
                "examples": self.budget.examples,
                "steps": self.budget.steps,
                "holds": not self.failures,
                "properties": [self._entry(outcome) for outcome in self.outcomes],
                "rules": [
                    {
                        "rule": number,
                        "title": title,
                        "properties": self._holding(number),
                        "not_covered": self._not_covered(number),
                    }
                    for number, title in RULES.items()
                ],
            },
            indent=1,
            ensure_ascii=False,
        )

    def to_markdown(self) -> str:
        """Return everything as Markdown, tables first."""
        budget = self.budget
        held = f"{len(self.failures)} FAILED" if self.failures else "all hold"
        facts = {
            **environment(),
            "date": _now(),
            "seed": budget.seed,
            "examples a property": budget.examples,
            "steps of a state machine's example": budget.steps,
        }
        parts = [
            f"# stemkv audit: {held}",
            _table(("what", "value"), facts.items()),
            "## Properties",
            _table((*_HEADINGS, "what it says"), self._lines(with_words=True)),
            *self._reached(),
            "## Rules",
            "By their numbers in the design document.",
            _table(
                ("rule", "title", "held by", "not covered here"),
                [
                    (n, title, ", ".join(self._holding(n)) or "-", self._not_covered(n) or "-")
                    for n, title in RULES.items()
                ],
            ),
        ]
        for outcome in self.failures:
            parts += [f"## Failure: {outcome.name}", _fenced(self.told(outcome))]
        return "\n\n".join(parts) + "\n"

    def table(self) -> Table:
        """Return a table of the properties for a terminal."""
        return rows(_HEADINGS, self._lines(with_words=False))

    def told(self, outcome: Outcome) -> str:
        """Tell of one failure: rules, place, values, example, and how to see it again."""
        failure = outcome.failure
        assert failure is not None
        values = [f"  {name} = {value}" for name, value in failure.values.items()]
        return "\n".join(
            [
                f"{outcome.name}: FAILED, {_words_of(failure.rules)}",
                failure.error,
                *([failure.place, *values] if failure.place else []),
                failure.example,
                f"again: {self.command(outcome)}",
            ]
        )

    def command(self, outcome: Outcome) -> str:
        """Return the command that runs one property as it ran here, to the same end."""
        budget, failure = self.budget, outcome.failure
        steps = budget.steps if failure is None else failure.steps
        numbers = {"seed": budget.seed, "examples": budget.examples, "steps": steps}
        flags = [part for flag, value in numbers.items() for part in (f"--{flag}", str(value))]
        prefix = "" if COMPILES else "NUMBA_DISABLE_JIT=1 "
        return prefix + shlex.join(["stemkv", "audit", "--only", outcome.name, *flags])

    def _reached(self) -> list[str]:
        """List what examples were seen to run with, where that is told."""
        return [
            f"`{outcome.name}` ran with {name}: {', '.join(map(str, values))}."
            for outcome in self.outcomes
            for name, values in outcome.reached.items()
        ]

    def _entry(self, outcome: Outcome) -> dict[str, Any]:
        property_ = _PROPERTIES[outcome.name]
        failure = outcome.failure
        return {
            "name": outcome.name,
            "says": property_.says,
            "rules": property_.rules,
            "outcome": outcome.word,
            "examples": outcome.examples,
            "steps": outcome.steps,
            "seconds": round(outcome.seconds, 3),
            "not_run_because": outcome.absent,
            "reached": outcome.reached,
            "failure": None if failure is None else asdict(failure),
            "command": self.command(outcome),
        }

    def _lines(self, *, with_words: bool) -> list[list[object]]:
        lines: list[list[object]] = []
        for outcome in self.outcomes:
            property_ = _PROPERTIES[outcome.name]
            word = outcome.word if outcome.absent is None else f"{outcome.word}: {outcome.absent}"
            rules = ", ".join(map(str, property_.rules))
            seconds = f"{outcome.seconds:.1f}"
            line = [outcome.name, rules, outcome.examples, outcome.steps, seconds, word]
            lines.append([*line, property_.says] if with_words else line)
        return lines

    def _holding(self, number: int) -> list[str]:
        """Name the properties that ran and held a rule."""
        return [
            outcome.name
            for outcome in self.outcomes
            if outcome.word == "held" and number in _PROPERTIES[outcome.name].rules
        ]

    def _not_covered(self, number: int) -> str | None:
        """Say what of a rule this run says nothing of, None if it is held as a whole."""
        ran = {outcome.name: outcome for outcome in self.outcomes}
        left = [
            f"{p.name} {_word(ran.get(p.name))}."
            for p in PROPERTIES
            if number in p.rules and _word(ran.get(p.name)) != "held"
        ]
        return " ".join([*([LIMITS[number]] if number in LIMITS else []), *left]) or None


def environment() -> Mapping[str, str]:
    """Return what ran: versions, platform, compiled or not."""
    packages = ("numba", "numpy", "hypothesis", "xxhash")
    return {
        "stemkv": stemkv.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: importlib.metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "store code": "compiled" if COMPILES else "plain Python (NUMBA_DISABLE_JIT)",
    }


def _word(outcome: Outcome | None) -> str:
    return "was not chosen" if outcome is None else outcome.word


def _words_of(rules: Sequence[int]) -> str:
    named = ", ".join(f"{number} ({RULES[number]})" for number in rules if number in RULES)
    return f"rule{'s' if len(rules) > 1 else ''} {named}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _table(headings: Sequence[str], lines: Any) -> str:
    cells = [
        [str("-" if cell is None else cell).replace("|", r"\|") for cell in ln] for ln in lines
    ]
    rule = ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in ([*headings], rule, *cells))


def _fenced(text: str) -> str:
    # Longer than any run of backquotes inside: an example may hold anything.
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"
