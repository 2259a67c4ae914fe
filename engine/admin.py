"""Admin calls carried out on the engine's store and scheduler."""

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from stemkv.engine.admin_keep import keep
from stemkv.engine.core_protocol import Later
from stemkv.engine.messages import (
    AdminCall,
    AdminError,
    AdminReply,
    AuditReport,
    DoAudit,
    DoExplain,
    DoFlush,
    DoLocate,
    EngineStats,
    GetAcknowledgements,
    GetBlock,
    GetStats,
    ListBlocks,
    Location,
    TenantStats,
)
from stemkv.engine.scheduler import Scheduler
from stemkv.kvstore.directory.protocol import DirectoryUnavailable
from stemkv.kvstore.explain import explain
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId
from stemkv.kvstore.inspect import get_block, list_blocks
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.store import BlockStore

_NOBODY = Namespace("", b"")


@dataclass(slots=True, eq=False)
class Admin:
    """What operators may ask of one engine, with the counts that the store does not keep.

    audit: audits the store, and ends the requests that hold what is found wrong.
    """

    store: BlockStore
    scheduler: Scheduler
    audit: Callable[[], AuditReport]
    _requests: Counter[str] = field(default_factory=Counter)
    _computed: Counter[str] = field(default_factory=Counter)
    _generated: Counter[str] = field(default_factory=Counter)

    def count_request(self, tenant: str) -> None:
        """Count a request that was accepted."""
        self._requests[tenant] += 1

    def count_generated(self, tenant: str) -> None:
        """Count an output token."""
        self._generated[tenant] += 1

    def call(self, call: AdminCall) -> AdminReply | Later:
        """Carry out a call, but for what the directory is asked: that is done later.

        What is wrong with it, or out of reach, is an `AdminError`.
        """
        match call:
            case GetStats():
                return self._stats()
            case ListBlocks():
                return self._blocks(call)
            case GetBlock():
                return self._block(call)
            case DoFlush():
                return self._flush(call)
            case GetAcknowledgements():
                return self._acknowledgements(call)
            case DoExplain():
                return explain(self.store, call.namespace, _tokens(call.prompt))
            case DoLocate():
                return self._locate(call)
            case DoAudit():
                return self.audit()
            case _:
                return keep(self.store, call)

    def _stats(self) -> EngineStats:
        counts = self.store.pool_counts()
        waiting = self.scheduler.waiting
        return EngineStats(
            capacity_blocks=counts.capacity,
            block_size=self.store.config.block_size,
            block_bytes=self.store.config.block_bytes,
            free_blocks=counts.free,
            in_use_blocks=counts.in_use,
            cached_blocks=counts.cached,
            stale_blocks=counts.stale,
            quarantined_blocks=counts.quarantined,
            tail_blocks=counts.tails,
            evicted_blocks=counts.evicted,
            running=len(self.scheduler.running),
            waiting=len(waiting),
            following=sum(track.following for track in waiting),
            preemptions=self.scheduler.preemptions,
            steps=self.scheduler.steps,
            prefix_cache=self.store.config.prefix_cache,
            directory=type(self.store.directory).__name__,
            directory_current=self.store.directory.current,
            tenants=self._tenants(),
            accounts=self.store.account_counts(),
            miss_ratio_curves=self.store.miss_ratio_curves(),
            policy_hit_shares=self.store.policy_hit_shares(),
        )

    def _tenants(self) -> dict[str, TenantStats]:
        counted = self.store.tenant_counts()
        names = sorted({*counted, *self._requests})
        stats = {}
        for name in names:
            row = TenantStats(requests=self._requests[name], generated=self._generated[name])
            if name in counted:
                of_store = counted[name]
                row = replace(
                    row,
                    lookup=of_store.lookup,
                    hit_full=of_store.hit_full,
                    hit_partial=of_store.hit_partial,
                    computed=of_store.lookup - of_store.hit_full - of_store.hit_partial,
                    cached_blocks=of_store.cached_blocks,
                    evicted_blocks=of_store.evicted_blocks,
                    resumed=of_store.resumed,
                    resumed_hit=of_store.resumed_hit,
                    resumed_computed=of_store.resumed_lookup - of_store.resumed_hit,
                )
            stats[name] = row
        return stats

    def _blocks(self, call: ListBlocks) -> AdminReply:
        if call.limit < 1:
            return AdminError("invalid", f"limit: {call.limit} is less than 1", "limit")
        try:
            return list_blocks(
                self.store,
                tenant=call.tenant,
                adapter=call.adapter,
                salt=call.salt,
                state=call.state,
                min_references=call.min_references,
                cursor=call.cursor,
                limit=call.limit,
            )
        except ValueError as error:
            return AdminError("invalid", str(error), "state")

    def _block(self, call: GetBlock) -> AdminReply:
        try:
            return get_block(self.store, call.key)
        except ValueError as error:
            return AdminError("invalid", str(error), "key")

    def _flush(self, call: DoFlush) -> Later:
        """Flush here at once, then tell the others; who has done it is asked for later."""
        scope = call.namespace or _NOBODY
        flush = Flush(
            flush_id=FlushId(secrets.token_hex(16)),
            kind=call.kind,
            nonce=secrets.token_bytes(16),
            domain=scope.domain,
            adapter=scope.adapter,
            adapter_digest=scope.adapter_digest,
            salt=scope.salt,
            prefix=call.prefix if call.kind is FlushKind.PREFIX else b"",
        )
        report = self.store.flush(flush)
        directory = self.store.directory
        directory.expect(flush)

        def tell() -> AdminReply:
            try:
                directory.announce(flush)
                directory.acknowledge(flush.flush_id)
                done = directory.acknowledgements(flush.flush_id, wait_seconds=0)
            except DirectoryUnavailable as error:
                return replace(report, directory_error=str(error))
            return replace(report, acknowledged=dict(done))

        return Later(tell)

    def _acknowledgements(self, call: GetAcknowledgements) -> Later:
        directory = self.store.directory
        return _asking(lambda: dict(directory.acknowledgements(call.flush_id, wait_seconds=0)))

    def _locate(self, call: DoLocate) -> Later:
        directory, size = self.store.directory, self.store.config.block_size
        prompt = _tokens(call.prompt)
        keys = self.store.keys_of(call.namespace, prompt)

        def ask() -> AdminReply:
            held = directory.locate(keys)
            return Location(len(prompt), tuple((str(h.worker), h.blocks * size) for h in held))

        return _asking(ask)


def _asking(question: Callable[[], AdminReply]) -> Later:
    """Put a question to the directory off; its being out of reach is an answer, too."""

    def ask() -> AdminReply:
        try:
            return question()
        except DirectoryUnavailable as error:
            return AdminError("unavailable", f"the directory cannot be reached: {error}")

    return Later(ask)


def _tokens(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(data, "<i4").astype(np.int32)
