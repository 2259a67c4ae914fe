"""What block bookkeeping costs, beside vLLM's `KVCacheManager`.

    python -m benchmarks.store [--peer-python PYTHON] [--check] [--json FILE]

A pool of 100,000 blocks of 16 tokens, full of cached prompts. Timed: admitting a prompt that is
all cached (hash, look up, adopt), admitting a new one (hash, miss, take blocks from others,
publish), releasing it, the bookkeeping of one decode step of 64 sequences, and the audit of all
rules while those are open, which has no peer. Medians of the repeats; a decode step is a mean over
many, so that steps that take and publish blocks count.
vLLM runs in `--peer-python` (any interpreter that can import vllm), with its own defaults.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.report import Figure, Report, Target
from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.kvstore.warm import warm_up

BLOCK_SIZE = 16
LENGTHS = (512, 4096, 32768)
FILL_TOKENS = 4096
MARGIN_TOKENS = 4096  # what a sequence may grow beyond the longest prompt
TARGETS = {
    "hit": dict(zip(LENGTHS, (10.0, 20.0, 50.0), strict=True)),
    "new": dict(zip(LENGTHS, (4.0, 6.0, 10.0), strict=True)),
    "release": dict(zip(LENGTHS, (2.5, 5.0, 15.0), strict=True)),
}
DECODE_TARGET = 20.0
BYTES_TARGET = 160.0
AUDIT_TARGET_MS = 50.0
NAMES = {"hit": "admit a full hit", "new": "admit a new prompt", "release": "release"}

Prompt = npt.NDArray[np.int32]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--capacity", type=int, default=100_000, help="blocks of the pool")
    add("--batch", type=int, default=64, help="sequences of a decode step")
    add("--repeats", type=int, default=25, help="of each call")
    add("--seed", type=int, default=0, help="of the tokens")
    add("--peer-python", default=sys.executable, help="an interpreter that has vllm")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    add("--check", action="store_true", help="exit 1 if a target is fallen short of")
    return parser.parse_args(arguments)


class Subject:
    """A store whose pool is full of cached prompts."""

    def __init__(self, capacity: int, batch: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        config = StoreConfig(
            capacity_blocks=capacity,
            block_size=BLOCK_SIZE,
            max_sequences=batch + 1,
            max_tokens=max(LENGTHS) + MARGIN_TOKENS,
            secret=bytes(32),
        )
        warm_up(config)
        self.store = BlockStore(config, NullDirectory())
        self._namespace = Namespace("tenant", bytes(32))
        for _ in range(-(-capacity * BLOCK_SIZE // FILL_TOKENS)):
            self.store.release(self.admit(self.prompt(FILL_TOKENS)))

    def prompt(self, length: int) -> Prompt:
        """Return random tokens that nothing holds."""
        return self._rng.integers(0, 50_000, length, dtype=np.int32)

    def admit(self, prompt: Prompt) -> SequenceId:
        """Open a sequence, and publish it as if its step had run."""
        admission = self.store.admit(self._namespace, prompt)
        assert isinstance(admission, Admission)
        self.store.take_copies()
        self.store.commit(admission.sequence, len(prompt))
        self.store.settle()
        return admission.sequence

    def lengthen(self, running: npt.NDArray[np.int32], step: int) -> None:
        """Do a decode step's bookkeeping: a token more each, written and, where full, published."""
        self.store.extend_all(running, np.full(len(running), step, np.int32))
        assert self.store.reserve_all(running) == len(running)
        self.store.take_copies()
        self.store.commit_all(running)
        self.store.settle()


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return our figures by name: microseconds, ns for decode, ms for the audit, bytes."""
    subject = Subject(options.capacity, options.batch, options.seed)
    figures = {"bytes": subject.store.pool.bytes / options.capacity}
    gc.freeze()
    for length in LENGTHS:
        times: dict[str, list[float]] = {"new": [], "release": [], "hit": []}
        for _ in range(options.repeats):
            prompt = subject.prompt(length)
            begun = time.perf_counter()
            sequence = subject.admit(prompt)
            admitted = time.perf_counter()
            subject.store.release(sequence)
            released = time.perf_counter()
            sequence = subject.admit(prompt)
            hit = time.perf_counter()
            subject.store.release(sequence)
            for name, seconds in zip(
                times, (admitted - begun, released - admitted, hit - released), strict=True
            ):
                times[name].append(seconds * 1e6)
        figures |= {f"{name}{length}": statistics.median(t) for name, t in times.items()}
    running = np.array(
        [subject.admit(subject.prompt(600 + i)) for i in range(options.batch)], np.int32
    )
    steps = []
    for step in range(20 * options.repeats):
        begun = time.perf_counter()
        subject.lengthen(running, step)
        steps.append((time.perf_counter() - begun) * 1e9 / options.batch)
    figures["decode"] = statistics.mean(steps)
    figures["audit"] = statistics.median(audit_ms(subject.store) for _ in range(options.repeats))
    return figures


def audit_ms(store: BlockStore) -> float:
    """Audit a store that must be in order; return how long that took, in milliseconds."""
    begun = time.perf_counter()
    violations = audit(store)
    took = (time.perf_counter() - begun) * 1e3
    assert not violations, violations[0]
    return took


def measure_peer(options: argparse.Namespace) -> dict[str, float] | str:
    """Return vLLM's figures by the same names, or why there are none."""
    script = Path(__file__).with_name("store_peer.py")
    numbers = (options.capacity, BLOCK_SIZE, options.repeats, options.seed, options.batch)
    command = [options.peer_python, str(script), *map(str, (*numbers, *LENGTHS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        return f"vLLM is missing or failed: {last[0]}"
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def report(options: argparse.Namespace, ours: dict[str, float], peer: dict[str, float]) -> Report:
    """Put the figures side by side."""
    figures, targets = [], []
    for kind, name in NAMES.items():
        for length in LENGTHS:
            key = f"{kind}{length}"
            figure = Figure(
                f"{name}, {length:,} tokens", "us", ours[key], peer.get(key), lower_is_better=True
            )
            figures.append(figure)
            if figure.ratio is not None:
                required = TARGETS[kind][length]
                targets.append(Target(f"{figure.name}, over vLLM", "times", required, figure.ratio))
    decode = Figure(
        f"decode step of {options.batch}, a sequence",
        "ns",
        ours["decode"],
        peer.get("decode"),
        lower_is_better=True,
    )
    memory = Figure(
        "a cached block", "bytes", ours["bytes"], peer.get("bytes"), lower_is_better=True
    )
    audited = Figure("audit of the full pool", "ms", ours["audit"], lower_is_better=True)
    if decode.ratio is not None:
        targets.append(Target("decode step, over vLLM", "times", DECODE_TARGET, decode.ratio))
    targets.append(
        Target("a cached block, of 160 bytes", "times", 1.0, BYTES_TARGET / ours["bytes"])
    )
    targets.append(
        Target("audit of the full pool, of 50 ms", "times", 1.0, AUDIT_TARGET_MS / ours["audit"])
    )
    return Report(
        title="Block bookkeeping beside vLLM's KVCacheManager",
        baseline_name="vLLM",
        settings={"capacity": options.capacity, "repeats": options.repeats, "seed": options.seed},
        figures=[*figures, decode, memory, audited],
        targets=targets,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = parse(arguments)
    console = Console()
    ours = measure(options)
    peer = measure_peer(options)
    if isinstance(peer, str):
        console.print(peer)
        peer = {}
    result = report(options, ours, peer)
    result.show(console)
    if options.json is not None:
        result.write(options.json)
    return int(options.check and not all(target.met for target in result.targets))


if __name__ == "__main__":
    sys.exit(main())
