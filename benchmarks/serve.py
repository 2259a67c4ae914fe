"""Time to first token cold and warm, and tokens a second, beside transformers' `generate`.

    python -m benchmarks.serve [--check] [--json FILE]

Starts a real service and times it over HTTP; then does the same prompts with `generate` in this
process. Cold: a system prompt that the service has not seen. Warm: another question under it.
Medians over the repeats. `--check` exits 1 if warm is not 5 times faster than cold.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from rich.console import Console

from benchmarks.baseline import Baseline
from benchmarks.prompts import Message, chat, text_of
from benchmarks.report import Figure, Report, Target
from benchmarks.service import running_service, served_model, stream_chat, throughput
from stemkv.engine.model_fetch import SMOLLM2_135M_INSTRUCT, cache_root, fetch_model

WARM_TARGET = 5.0
REQUEST_SECONDS = 600.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="local folder or hub id (default: the default model)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto")
    add("--system-tokens", type=int, default=1500, help="length of system prompts")
    add("--short-tokens", type=int, default=64, help="length of system prompts for throughput")
    add("--output-tokens", type=int, default=64, help="a stream, for throughput")
    add("--streams", type=int, nargs="+", default=[1, 16], help="at the same time")
    add("--repeats", type=int, default=3, help="of each time to first token")
    add("--serve-flag", action="append", default=[], metavar="FLAG", help="for stemkv serve")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    add("--check", action="store_true", help="exit 1 if a target is fallen short of")
    return parser.parse_args(arguments)


def measure_stemkv(options: argparse.Namespace, model: str, tokenizer: Any) -> dict[str, float]:
    """Return figures of the service by name: seconds, tokens, and tokens a second."""
    flags = ["--device", options.device, "--dtype", options.dtype, *options.serve_flag]
    figures: dict[str, float] = {}
    with (
        running_service(model, flags) as url,
        httpx.Client(base_url=url, timeout=REQUEST_SECONDS) as client,
    ):
        name = served_model(client)
        stream_chat(client, name, chat(text_of(tokenizer, 32, seed=0), 0), 2)  # compiles, warms up
        cold, warm = [], []
        for repeat in range(options.repeats):
            system = text_of(tokenizer, options.system_tokens, seed=1000 + repeat)
            cold.append(stream_chat(client, name, chat(system, 1), 1))
            warm.append(stream_chat(client, name, chat(system, 2), 1))
        figures["cold"] = statistics.median(a.first_token_seconds for a in cold)
        figures["warm"] = statistics.median(a.first_token_seconds for a in warm)
        figures["prompt"] = statistics.median(a.prompt_tokens for a in warm)
        figures["cold_cached"] = statistics.median(a.cached_tokens for a in cold)
        figures["warm_cached"] = statistics.median(a.cached_tokens for a in warm)
        for count in options.streams:
            chats = throughput_chats(options, tokenizer, count)
            figures[f"streams{count}"] = throughput(client, name, chats, options.output_tokens)
    return figures


def measure_baseline(options: argparse.Namespace, model: str) -> dict[str, float]:
    """Return the same figures of transformers' `generate`."""
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    baseline = Baseline(model, device, options.dtype)
    baseline.first_token_seconds(chat(text_of(baseline.tokenizer, 32, seed=0), 0))
    cold, warm = [], []
    for repeat in range(options.repeats):
        system = text_of(baseline.tokenizer, options.system_tokens, seed=1000 + repeat)
        cold.append(baseline.first_token_seconds(chat(system, 1)))
        warm.append(baseline.first_token_seconds(chat(system, 2)))
    figures = {"cold": statistics.median(cold), "warm": statistics.median(warm)}
    for count in options.streams:
        chats = throughput_chats(options, baseline.tokenizer, count)
        figures[f"streams{count}"] = baseline.throughput(chats, options.output_tokens)
    return figures


def throughput_chats(
    options: argparse.Namespace, tokenizer: Any, count: int
) -> list[list[Message]]:
    """Return `count` chats that share nothing, not used for anything else in the run."""
    seeds = range(10_000 * count, 10_000 * count + count)
    return [chat(text_of(tokenizer, options.short_tokens, seed=s), s) for s in seeds]


def report(options: argparse.Namespace, ours: dict[str, float], base: dict[str, float]) -> Report:
    """Put the figures side by side."""
    prompt = f"{ours['prompt']:.0f}-token prompt"
    figures = []
    for kind in ("cold", "warm"):
        note = f"{prompt}, {ours[f'{kind}_cached']:.0f} cached"
        name, ms = f"time to first token, {kind}", (ours[kind] * 1e3, base[kind] * 1e3)
        figures.append(Figure(name, "ms", *ms, lower_is_better=True, note=note))
    note = f"{options.output_tokens} tokens each, prompts of {options.short_tokens}"
    for count in options.streams:
        key, name = f"streams{count}", f"throughput, {count} stream{'s' if count > 1 else ''}"
        figures.append(Figure(name, "tokens/s", ours[key], base[key], note=note))
    speedup = ours["cold"] / ours["warm"]
    return Report(
        title="stemkv over HTTP beside transformers' generate",
        baseline_name="transformers",
        settings={
            "device": options.device,
            "dtype": options.dtype,
            "repeats": options.repeats,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        },
        figures=figures,
        targets=[Target("cold over warm time to first token", "times", WARM_TARGET, speedup)],
    )


def main() -> int:
    """Run it all; returns the exit status."""
    options = parse()
    console = Console()
    model = options.model or str(fetch_model(SMOLLM2_135M_INSTRUCT, cache_root(), console))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ours = measure_stemkv(options, model, tokenizer)
    outcome = report(options, ours, measure_baseline(options, model))
    outcome.show(console)
    if options.json:
        outcome.write(options.json)
    return outcome.status(options.check)


if __name__ == "__main__":
    sys.exit(main())
