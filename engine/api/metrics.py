"""Prometheus metrics of the service, on a registry of their own.

The counters see what clients asked for and got, and no label of theirs names a tenant; the gauges
come from the engine at the moment of a scrape, and are left out when it cannot be asked. Those of
accounts name tenants and groups: a scrape is the operator's alone as soon as there is a tenant.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stemkv.engine.messages import AccountCounts, EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """Everything that is counted and timed; times are in seconds, lengths in tokens."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.http_requests = Counter(
            "stemkv_http_requests",
            "Responses sent, by route, method and status (499: the client went away).",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.first_token = self._histogram(
            "stemkv_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.inter_token = self._histogram(
            "stemkv_inter_token_latency_seconds",
            "Between two tokens of one choice.",
            _TOKEN_BUCKETS,
        )
        self.latency = self._histogram(
            "stemkv_request_latency_seconds",
            "From a request's arrival to its last token.",
            _REQUEST_BUCKETS,
        )
        self.prompt_tokens = self._counter(
            "stemkv_prompt_tokens", "Prompt tokens of requests that got a first token."
        )
        self.cached_tokens = self._counter(
            "stemkv_cached_prompt_tokens", "Prompt tokens whose keys and values were reused."
        )
        self.generated_tokens = self._counter(
            "stemkv_generated_tokens", "Tokens generated, aborted requests included."
        )
        self.outcomes = Counter(
            "stemkv_requests",
            "Engine requests that ended: finished, aborted (the client left), or why they failed.",
            ["outcome"],
            registry=self.registry,
        )

    def render(self, stats: EngineStats | None, *, up: bool, ready: bool) -> bytes:
        """Return the exposition: all counters, and the engine's gauges if it could be asked."""
        scrape = CollectorRegistry()
        scrape.register(_EngineGauges(stats, up=up, ready=ready))
        return generate_latest(self.registry) + generate_latest(scrape)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)


@dataclass(frozen=True, slots=True, eq=False)
class _EngineGauges(Collector):
    stats: EngineStats | None
    up: bool
    ready: bool

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that the engine's figures give."""
        yield _gauge("stemkv_engine_up", "Whether the engine answered this scrape.", self.up)
        yield _gauge("stemkv_ready", "Whether requests are taken.", self.ready)
        if self.stats is None:
            return
        stats = self.stats
        blocks = GaugeMetricFamily(
            "stemkv_cache_blocks", "Blocks of the pool, by state.", labels=["state"]
        )
        for state in ("free", "in_use", "cached", "stale", "quarantined"):
            blocks.add_metric([state], getattr(stats, f"{state}_blocks"))
        yield blocks
        yield _gauge("stemkv_cache_capacity_blocks", "Blocks of the pool.", stats.capacity_blocks)
        yield _gauge(
            "stemkv_cache_block_bytes", "Bytes of one block's keys and values.", stats.block_bytes
        )
        requests = GaugeMetricFamily(
            "stemkv_sequences", "Sequences in the engine, by state.", labels=["state"]
        )
        for state in ("running", "waiting", "following"):
            requests.add_metric([state], getattr(stats, state))
        yield requests
        yield _gauge(
            "stemkv_directory_current",
            "Whether this worker knows of every flush that it could have missed.",
            stats.directory_current,
        )
        for name, text in (
            ("evicted_blocks", "Blocks evicted since the engine started."),
            ("preemptions", "Sequences preempted since the engine started."),
            ("steps", "Steps since the engine started."),
        ):
            yield CounterMetricFamily(f"stemkv_{name}", text, value=getattr(stats, name))
        yield from _accounts(stats.accounts)


_ACCOUNT_BLOCKS = (
    ("held", "Blocks charged to an account."),
    ("in_use", "Of the held, those that running sequences use."),
    ("cached", "Of the held, those that are cached and unused."),
    ("pinned", "Of the cached, those that pins keep."),
    ("reserve", "What is never taken from the account for another's sake."),
    ("cap", "What the account never exceeds."),
    ("share", "What eviction leaves to the account while others want more."),
)


def _accounts(accounts: Mapping[str, AccountCounts]) -> Iterator[Metric]:
    """Yield the metrics of tenants by themselves, groups and the operator."""
    for name, text in _ACCOUNT_BLOCKS:
        gauge = GaugeMetricFamily(f"stemkv_account_{name}_blocks", text, labels=["account"])
        for account, counts in accounts.items():
            gauge.add_metric([account], getattr(counts, name))
        yield gauge
    held = CounterMetricFamily(
        "stemkv_account_block_seconds",
        "Blocks held times the seconds, since the engine started.",
        labels=["account"],
    )
    evicted = CounterMetricFamily(
        "stemkv_account_evicted_blocks",
        "Blocks that an account lost to eviction, by the account that needed them.",
        labels=["account", "needed_by"],
    )
    for account, counts in accounts.items():
        held.add_metric([account], counts.block_seconds)
        for other, blocks in counts.evicted_for.items():
            evicted.add_metric([account, other], blocks)
    yield held
    yield evicted


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
