"""The tests that mutants are run with: what each reaches, how long it takes, and running them."""

import contextlib
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, Phase, settings
from mutants import Mutant

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "stemkv" / "kvstore")
MEMORY_BYTES = 6 << 30


@dataclass(slots=True)
class Reach:
    """Seconds that each test took, and which tests reach which lines."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def tests(self, mutant: Mutant, *, whole_file: bool, limit: float) -> list[str]:
        """Return the tests that a mutant is run with, the quick ones first."""
        lines = self.lines.get(mutant.path, {})
        wanted = lines if whole_file else range(mutant.first, mutant.last + 1)
        found = {test for line in wanted for test in lines.get(line, ())}
        if not found and whole_file:
            found = {test for test, seconds in self.seconds.items() if seconds < 0.1}
        chosen: list[str] = []
        used = 0.0
        for test in sorted(found, key=lambda t: (self.seconds[t], t)):
            used += self.seconds[test]
            if chosen and used > limit:
                break
            chosen.append(test)
        return chosen


class Config:
    """What mutation.toml says."""

    def __init__(self, path: Path) -> None:
        data = tomllib.loads(path.read_text())
        self.tests: list[str] = data["tests"]
        self.plain = os.environ.get("NUMBA_DISABLE_JIT") == "1"
        self.ignore: list[str] = data["ignore"] + data["slow"]["ignore"] * self.plain
        self.deselect: list[str] = data["slow"]["deselect"] * self.plain
        self.loops: list[str] = data["loops"]
        self.longest: int = data["longest_seconds"]
        self.seconds: float = data["seconds"]
        self.examples: int = data["examples"]
        self.machine: tuple[int, int] = data["machine_examples"], data["machine_steps"]
        self.seed: int = data["seed"]
        self.sample: dict[str, int] = data["sample"]

    def arguments(self) -> list[str]:
        """Return pytest's arguments but for the tests."""
        quiet = ["-q", "-p", "no:cacheprovider", "--noconftest", "--capture=no", "-m", "not slow"]
        return [
            *(*quiet, f"--timeout={self.longest}"),
            *(f"--ignore={path}" for path in self.ignore),
            *(f"--deselect={path}" for path in self.deselect),
        ]

    def hasten(self, items: Sequence[pytest.Item]) -> None:
        """Have tests of hypothesis try few examples, always the same, and shrink none."""

        def less(given: settings, examples: int, steps: int) -> settings:
            return settings(
                given,
                max_examples=min(given.max_examples, examples),
                stateful_step_count=steps,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=list(HealthCheck),
            )

        own = "_hypothesis_internal_use_settings"
        for item in items:
            assert isinstance(item, pytest.Function)
            given = getattr(item.obj, own, None) or settings.default
            assert given is not None
            if hasattr(item.obj, own):
                setattr(item.obj, own, less(given, self.examples, given.stateful_step_count))
            for name, value in list(vars(item.module).items()):
                if isinstance(value, settings):
                    setattr(item.module, name, less(value, *self.machine))


class Runner:
    """A plugin of pytest that does its own in place of the loop over all tests."""

    def __init__(self, config: Config, loop: Callable[["Runner"], object]) -> None:
        self.config = config
        self.loop = loop
        self.items: dict[str, pytest.Item] = {}
        self.failed = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run nothing but the own loop."""
        if session.testsfailed:
            self.failed = "collection"
        else:
            self.config.hasten(session.items)
            if self.config.plain:
                hash_inside()
            self.items = {item.nodeid: item for item in session.items}
        try:
            self.loop(self)
        except Exception as error:  # noqa: BLE001 - told to whoever waits, who is no test
            traceback.print_exc()
            self.failed = repr(error)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    def run(self, tests: Sequence[str]) -> str:
        """Run tests until one fails, and name it."""
        for test in tests:
            item = self.items[test]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self.failed:
                break
        return self.failed


def hash_inside() -> None:
    """Have keys made inside the loops as in compiled ones; the hash itself is the package's."""
    from stemkv.kvstore import chains, matching

    def xxh3_128(words: np.ndarray) -> tuple[np.uint64, np.uint64]:
        digest = xxhash.xxh3_128_digest(words.tobytes())
        low, high = (int.from_bytes(half, "big") for half in (digest[8:], digest[:8]))
        return np.uint64(low), np.uint64(high)

    chains.xxh3_128 = xxh3_128
    matching.COMPILES = True


def pytest_run(config: Config, tests: Sequence[str], loop: Callable[[Runner], object]) -> Runner:
    """Collect tests and do something in place of running them."""
    runner = Runner(config, loop)
    code = pytest.main([*config.arguments(), *tests], plugins=[runner])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        runner.failed = runner.failed or f"pytest: {code!r}"
    return runner


def in_fork(work: Callable[[], Any], limit: float | None = None) -> Any:
    """Do something in a forked process and return what it returns, None if it takes longer."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if not child:
            os.setsid()
            try:
                with Path(os.devnull).open("w") as nothing:
                    if limit is not None:
                        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                        os.dup2(nothing.fileno(), 1)
                        os.dup2(nothing.fileno(), 2)
                    pickle.dump(work(), answer)
                    answer.flush()
            except BaseException as error:  # noqa: BLE001 - whatever a mutant does is an answer
                answer.seek(0)
                pickle.dump(f"{type(error).__name__}: {error}", answer)
                answer.flush()
            finally:
                os._exit(0)
        end = None if limit is None else time.monotonic() + limit
        pause = 0.002
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if end is not None and time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(pause)
            pause = min(0.05, pause * 1.2)
        answer.seek(0)
        try:
            return pickle.load(answer)  # noqa: S301 - our own child's
        except (EOFError, pickle.UnpicklingError):
            return "died"


def measure(config: Config) -> Reach:
    """Run all tests once and note what each reaches."""
    reach = Reach()
    where = [f"{ROOT}/kvstore/*", f"{PACKAGE}/*"]
    cover = coverage.Coverage(data_file=None, include=where, config_file=False)

    problems: list[str] = []

    def loop(runner: Runner) -> None:
        if runner.failed:
            problems.append("tests can't be collected")
        for test in runner.items:
            cover.start()
            cover.switch_context(test)
            start = time.monotonic()
            runner.failed = ""
            failed = runner.run([test])
            seconds = time.monotonic() - start
            cover.stop()
            if not failed:
                reach.seconds[test] = seconds
            else:
                why = "fails without any change" if seconds < config.longest else "takes too long"
                print(f"left out, since it {why}: {test}", file=sys.stderr, flush=True)

    pytest_run(config, config.tests, loop)
    assert not problems, problems
    data = cover.get_data()
    for file in data.measured_files():
        path = Path(file).resolve().relative_to(ROOT).as_posix()
        lines = reach.lines.setdefault(path, {})
        for line, tests in data.contexts_by_lineno(file).items():
            lines.setdefault(line, set()).update(t for t in tests if t in reach.seconds)
    return reach
