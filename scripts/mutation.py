"""Mutation testing of kvstore: changes one thing at a time and sees whether a test fails.

    python scripts/mutation.py OUT.jsonl [kvstore/pins.py ...]
    NUMBA_DISABLE_JIT=1 python scripts/mutation.py OUT.jsonl [kvstore/chains.py ...]

The first takes the files of plain Python, the second those of compiled loops, which it runs as
plain Python. Nothing is written beside OUT.jsonl: a mutant lives in the memory of a forked process.
pytest collects once; for each mutant a fork puts the changed functions in place and runs the tests
that reach the changed line. What a module or a class does when it is made can't be put in place:
such mutants are imported anew, in a fork. docs/mutation-testing.md says what came of it,
scripts/mutation.toml what is mutated and by which tests it is judged.
"""

import argparse
import gc
import importlib.machinery
import json
import os
import pickle
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mutants import Code, Mutant, changed_functions, functions_of, mutants_of, shown
from mutation_tests import PACKAGE, ROOT, Config, Reach, Runner, in_fork, measure, pytest_run

KILLED, SURVIVED, TIMED_OUT, NOT_REACHED = "killed", "survived", "timed out", "not reached"

Place = tuple[str, str, str, int]
"""A mutant's file, operator, line and column."""


def put_in_place(
    functions: dict[tuple[str, str], list[Any]], file: str, changed: dict[str, list[Code]]
) -> None:
    """Give functions their changed code."""
    for name, codes in changed.items():
        for function in functions.get((file, name), ()):
            for code in codes:
                if function.__code__.co_firstlineno == code.co_firstlineno:
                    function.__code__ = code


def import_changed(file: str, source: str) -> None:
    """Have a file imported as if it had this content."""
    read = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Code | None:
        if Path(self.path).resolve() == Path(file).resolve():
            return compile(source, file, "exec")
        return read(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]


@dataclass(slots=True)
class Judge:
    """Judges mutants, and writes a line for each."""

    config: Config
    reach: Reach
    out: Path

    def judge_all(self, mutants: Sequence[Mutant], rest: Path) -> None:
        """Judge mutants: the tests are collected once, and again for those that need it.

        rest: a file to be used, and removed.
        """

        def collected() -> str:
            loop = lambda runner: self.here(runner, mutants, rest)  # noqa: E731
            return pytest_run(self.config, self.config.tests, loop).failed

        failed = in_fork(collected)
        assert not failed, failed
        self.anew(pickle.loads(rest.read_bytes()))  # noqa: S301 - written below
        rest.unlink()

    def here(self, runner: Runner, mutants: Sequence[Mutant], rest: Path) -> None:
        """Judge those mutants that change functions only, the tests being collected.

        The others go to a file.
        """
        if not self.config.plain:
            # So that forks find all that is compiled loaded.
            quick = [test for test, seconds in self.reach.seconds.items() if seconds < 1]
            assert not runner.run(quick), runner.failed
        gc.collect()
        functions = functions_of(gc.get_objects(), PACKAGE)
        gc.freeze()
        others: list[Mutant] = []
        for mutant in mutants:
            file, source = place_of(mutant)
            text = mutant.source(source)
            changed = changed_functions(compile(source, file, "exec"), compile(text, file, "exec"))
            if changed is None:
                others.append(mutant)
                continue
            tests = self.reach.tests(mutant, whole_file=False, limit=self.config.seconds)

            def work(changed: Any = changed, file: str = file, tests: Any = tests) -> str:
                put_in_place(functions, file, changed)
                return runner.run(tests)

            self.judge(mutant, tests, work, shown(source, text))
        rest.write_bytes(pickle.dumps(others))

    def anew(self, mutants: Sequence[Mutant]) -> None:
        """Judge mutants, each with an import of its own."""
        for mutant in mutants:
            file, source = place_of(mutant)
            text = mutant.source(source)
            tests = self.reach.tests(mutant, whole_file=True, limit=self.config.seconds)

            def work(file: str = file, text: str = text, tests: Any = tests) -> str:
                import_changed(file, text)
                return pytest_run(self.config, tests, lambda runner: runner.run(tests)).failed

            self.judge(mutant, tests, work, shown(source, text))

    def judge(
        self,
        mutant: Mutant,
        tests: Sequence[str],
        work: Callable[[], str],
        lines: tuple[str, str],
    ) -> None:
        """Run a mutant and write down what came of it."""
        start = time.monotonic()
        limit = 8 + 4 * sum(self.reach.seconds[test] for test in tests)
        failed = in_fork(work, limit) if tests else ""
        verdict = KILLED if failed else SURVIVED if tests else NOT_REACHED
        record = {
            **asdict(mutant),
            "text": place_of(mutant)[1].splitlines()[mutant.line - 1].strip(),
            "verdict": TIMED_OUT if failed is None else verdict,
            "by": failed,
            "tests": len(tests),
            "seconds": round(time.monotonic() - start, 2),
            "before": lines[0],
            "after": lines[1],
        }
        with self.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def place_of(mutant: Mutant) -> tuple[str, str]:
    """Return the file's name as modules have it, and what is in it."""
    path = ROOT / mutant.path
    return str(ROOT / "stemkv" / mutant.path), path.read_text()


def chosen(config: Config, paths: Sequence[str], only: set[Place]) -> list[Mutant]:
    """Return the mutants of these files: those asked for, a sample, or all."""
    found: list[Mutant] = []
    for path in paths:
        source = (ROOT / path).read_text()
        mutants = list(mutants_of(path, source))
        size = config.sample.get(path, len(mutants))
        if only:
            lines = source.splitlines()
            mutants = [m for m in mutants if place_in(m, lines) in only]
        elif size < len(mutants):
            mutants = random.Random(f"{config.seed} {path}").sample(mutants, size)  # noqa: S311
        found += mutants
    return found


def place_in(mutant: Mutant, lines: Sequence[str]) -> Place:
    """Name a mutant so that it is found again when lines above it have changed."""
    return mutant.path, mutant.operator, lines[mutant.line - 1].strip(), mutant.column


def survivors(results: Path) -> set[Place]:
    """Return what survived, by a file of results."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    return {
        (r["path"], r["operator"], r["text"], r["column"])
        for r in records
        if r["verdict"] in (SURVIVED, NOT_REACHED)
    }


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Mutation testing of kvstore.")
    parser.add_argument("out", type=Path, help="file of results, one JSON object a line")
    parser.add_argument("paths", nargs="*", help="files to mutate; kvstore/*.py unless given")
    parser.add_argument("--again", type=Path, help="only what survived, by such a file of results")
    parser.add_argument("--resume", action="store_true", help="keep what OUT has, do the rest")
    parser.add_argument("--reach", type=Path, help="keep what tests reach in this file")
    parser.add_argument("--seconds", type=float, help="of tests for each mutant, at most")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Judge mutants by several processes."""
    options = parsed()
    out = options.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    reach_file = options.reach.resolve() if options.reach else None
    only = survivors(options.again) if options.again else set()
    done: set[tuple[object, ...]] = set()
    if options.resume and out.exists():
        records = [json.loads(line) for line in out.read_text().splitlines()]
        done = {(r["path"], r["operator"], r["occurrence"]) for r in records}
    else:
        out.unlink(missing_ok=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.chdir(ROOT)
    config = Config(Path(__file__).with_name("mutation.toml"))
    config.seconds = options.seconds or config.seconds
    if reach_file and reach_file.exists():
        reach = pickle.loads(reach_file.read_bytes())  # noqa: S301 - written below
    else:
        reach = in_fork(lambda: measure(config))
        assert isinstance(reach, Reach), reach
        if reach_file:
            reach_file.write_bytes(pickle.dumps(reach))
    every = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "kvstore").glob("*.py"))
    paths = [p for p in options.paths or every if (p in config.loops) == config.plain]
    mutants = chosen(config, paths, only)
    mutants = [m for m in mutants if (m.path, m.operator, m.occurrence) not in done]
    random.Random(config.seed).shuffle(mutants)  # noqa: S311 - so that processes end together
    print(f"{len(mutants)} mutants, {len(reach.seconds)} tests", flush=True)
    judge = Judge(config, reach, out)
    children = []
    for number in range(options.processes):
        child = os.fork()
        if not child:
            with Path(os.devnull).open("w") as nothing:
                os.dup2(nothing.fileno(), 1)
            judge.judge_all(mutants[number :: options.processes], out.with_suffix(f".{number}"))
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise SystemExit(f"a process has failed: {statuses}")
    tell(out)


def tell(out: Path) -> None:
    """Print what survived, and how many of each verdict there are."""
    records = [json.loads(line) for line in out.read_text().splitlines()]
    for r in sorted(records, key=lambda r: (r["path"], r["line"])):
        if r["verdict"] != KILLED:
            print(f"{r['path']}:{r['line']} {r['verdict']}: {r['before']} -> {r['after']}")
    print(dict(Counter(r["verdict"] for r in records)))


if __name__ == "__main__":
    import numba  # noqa: F401 - loaded once for all forks
    import numpy  # noqa: F401

    main()
