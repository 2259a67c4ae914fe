"""Carrying a flush out: cut the branches, silence who holds them, account for what went."""

from dataclasses import dataclass

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.allocation import Allocator
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind, FlushReport
from stemkv.kvstore.ghosts import FLUSHED
from stemkv.kvstore.matching import Matcher, end_of
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32
from stemkv.kvstore.pool import NO_BLOCKS, Pool
from stemkv.kvstore.publishing import Publisher
from stemkv.kvstore.roots import Roots
from stemkv.kvstore.sequences import Sequences


@dataclass(frozen=True, slots=True, eq=False)
class Flusher:
    """Carries flushes out on one store."""

    config: StoreConfig
    pool: Pool
    roots: Roots
    matcher: Matcher
    sequences: Sequences
    publisher: Publisher
    allocator: Allocator

    def flush(self, flush: Flush) -> FlushReport:
        """Carry a flush out. Sequences that hold flushed blocks keep them, and publish no more."""
        by_prefix = flush.kind is FlushKind.PREFIX
        gone = self._cut_prefix(flush) if by_prefix else self._cut_roots(flush)
        rows = self.pool.meta[gone]
        self.allocator.forget(gone[rows[:, ops.STATE] == ops.PUBLISHED], FLUSHED)
        names = self.allocator.owners.names
        owned = np.bincount(rows[:, ops.OWNER], minlength=len(names)).tolist()
        held = self.pool.drop(gone)
        return FlushReport(
            flush_id=flush.flush_id,
            blocks=len(gone),
            bytes=len(gone) * self.config.block_bytes,
            in_use=held,
            blocks_by_tenant={name: n for name, n in zip(names, owned, strict=True) if n},
        )

    def _cut_roots(self, flush: Flush) -> I32:
        dying = self.roots.retire(flush)
        for state in self.sequences:
            if not state.root.alive:
                self.publisher.silence(state)
        gone = self.pool.cut_roots(root.index for root in dying)
        self.roots.free_dead(dying)
        return gone

    def _cut_prefix(self, flush: Flush) -> I32:
        prefix = np.frombuffer(flush.prefix, "<i4").astype(np.int32)
        namespace = Namespace("", flush.domain, flush.adapter, flush.adapter_digest, flush.salt)
        root = self.roots.find(namespace)
        if root is None:
            return NO_BLOCKS
        for state in self.sequences:
            if state.root is root:
                known = self.sequences.tokens(state)[: len(prefix)]
                if np.array_equal(known, prefix):
                    self.publisher.silence(state)
        # The block that holds the prefix's last token goes, and all before it stay.
        size = self.config.block_size
        above = max(0, (len(prefix) - 1) // size)
        path = self.matcher.full_blocks(root, prefix[: above * size])
        if len(path) < above:
            return NO_BLOCKS
        rest = len(prefix) - above * size
        return self.pool.cut_branches(
            b
            for b in self.pool.children(end_of(path, root))
            if self.pool.common_prefix(b, prefix, above * size) == rest
        )
