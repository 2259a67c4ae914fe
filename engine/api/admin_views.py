"""From the engine's figures to the admin API's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from stemkv.engine.api.admin_schemas import (
    BlockBody,
    CacheReport,
    CurvePoint,
    OrdersFigures,
    PoolFigures,
    QueueFigures,
    TenantFigures,
)
from stemkv.engine.api.standing import StandingOrders
from stemkv.engine.messages import BlockInfo, EngineStats, MissRatioPoint, TenantStats
from stemkv.engine.request import EngineInfo


def cache_report(stats: EngineStats, info: EngineInfo, orders: StandingOrders) -> CacheReport:
    """Return the answer of `GET /admin/v1/cache`."""
    return CacheReport(
        worker=info.worker,
        model=info.model,
        prefix_cache=stats.prefix_cache,
        directory=stats.directory,
        directory_current=stats.directory_current,
        pool=PoolFigures(
            capacity=stats.capacity_blocks,
            free=stats.free_blocks,
            in_use=stats.in_use_blocks,
            cached=stats.cached_blocks,
            stale=stats.stale_blocks,
            quarantined=stats.quarantined_blocks,
            tails=stats.tail_blocks,
            evicted=stats.evicted_blocks,
            block_size_tokens=stats.block_size,
            block_bytes=stats.block_bytes,
            capacity_bytes=stats.capacity_blocks * stats.block_bytes,
        ),
        queue=QueueFigures(
            running=stats.running,
            waiting=stats.waiting,
            following=stats.following,
            preemptions=stats.preemptions,
            steps=stats.steps,
        ),
        tenants={
            name: _tenant(figures, stats.block_bytes) for name, figures in stats.tenants.items()
        },
        policy_hit_shares=dict(stats.policy_hit_shares),
        miss_ratio_curves=curves(stats.miss_ratio_curves),
        orders=OrdersFigures(
            quotas=len(orders.quotas),
            public_prefixes=len(orders.public),
            current=orders.current,
            problems=dict(orders.problems),
        ),
    )


def curves(found: Mapping[str, Sequence[MissRatioPoint]]) -> dict[str, list[CurvePoint]]:
    """Return miss-ratio curves by account, in order of size."""
    return {
        account: [CurvePoint(**asdict(point)) for point in sorted(points, key=lambda p: p.factor)]
        for account, points in sorted(found.items())
    }


def block_body(block: BlockInfo) -> BlockBody:
    """Return one block as the API shows it."""
    return BlockBody(**asdict(block))


def _tenant(stats: TenantStats, block_bytes: int) -> TenantFigures:
    return TenantFigures(
        lookup_tokens=stats.lookup,
        hit_full_tokens=stats.hit_full,
        hit_partial_tokens=stats.hit_partial,
        hit_rate=stats.saved / stats.lookup if stats.lookup else None,
        computed_tokens=stats.computed,
        generated_tokens=stats.generated,
        requests=stats.requests,
        cached_blocks=stats.cached_blocks,
        cached_bytes=stats.cached_blocks * block_bytes,
        evicted_blocks=stats.evicted_blocks,
        saved_tokens=stats.saved,
        resumed=stats.resumed,
        resumed_hit_tokens=stats.resumed_hit,
        resumed_computed_tokens=stats.resumed_computed,
    )
