"""Carrying a flush out: roots die at once, branches are cut, and who holds them falls silent."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.allocation import Allocator
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.copies import Copies
from stemkv.kvstore.flush import Flush, FlushKind, FlushReport
from stemkv.kvstore.ghosts import FLUSHED
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.matching import Matcher, end_of
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32
from stemkv.kvstore.pool import NO_BLOCKS, Pool, Tokens
from stemkv.kvstore.publishing import Publisher
from stemkv.kvstore.roots import Root, Roots
from stemkv.kvstore.sequences import Sequences, SequenceState


@dataclass(slots=True, eq=False)
class _Gone:
    """What a flush took so far. by_account: blocks. held: how many something still holds."""

    by_account: Counter[int]
    held: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Flusher:
    """Carries flushes out on one store."""

    config: StoreConfig
    pool: Pool
    roots: Roots
    matcher: Matcher
    sequences: Sequences
    copies: Copies
    publisher: Publisher
    allocator: Allocator
    clock: Callable[[], float]

    def flush(self, flush: Flush) -> FlushReport:
        """Carry a flush out. Sequences that hold flushed blocks keep them, and publish no more.

        By a nonce: in time that grows with the namespaces and the open sequences, not with what is
        cached; the memory is free again step by step, or when it is needed. By prefix: at once.
        """
        gone = _Gone(Counter())
        if flush.kind is FlushKind.PREFIX:
            prefix = np.frombuffer(flush.prefix, "<i4").astype(np.int32)
            space = Namespace("", flush.domain, flush.adapter, flush.adapter_digest, flush.salt)
            self.cut_prefix(space, prefix, gone)
        else:
            self._kill(self.roots.retire(flush), gone)
        blocks = gone.by_account.total()
        names = self.allocator.accounts.names
        return FlushReport(
            flush_id=flush.flush_id,
            blocks=blocks,
            bytes=blocks * self.config.block_bytes,
            in_use=gone.held,
            blocks_by_tenant={names[a]: n for a, n in sorted(gone.by_account.items()) if n},
        )

    def cut_prefix(self, space: Namespace, prefix: Tokens, gone: _Gone) -> None:
        """Flush what begins with a prefix in a namespace, below public blocks too.

        By a walk, not by letting roots die: those that took their places would have the same keys,
        while sequences still hold what was published under these.
        """
        for root in self.roots.of_namespace(space):
            above = np.frombuffer(root.above, "<i4")
            n = min(len(above), len(prefix))
            if np.array_equal(above[:n], prefix[:n]):
                self._silence(partial(self._goes_on_from, root, prefix))
                self._drop(self._branches(root, prefix[n:]), gone)

    def withdraw(self, space: Namespace, public: Tokens) -> None:
        """Flush the end of a public prefix: the last block of `public`, and what goes on from it.

        space: the public namespace.
        """
        gone, root = _Gone(Counter()), self.roots.find(space)
        blocks = len(public) // self.config.block_size
        if root is not None:
            self._silence(
                lambda s: s.public is root and s.entry >= blocks and self._begins(s, public)
            )
            self._drop(self._branches(root, public, tails=True), gone)
        for entered in self.roots.entered_from(space, as_bytes(public)):
            self._silence(partial(self._goes_on_from, entered, public))
            self._drop(self._branches(entered, NO_BLOCKS), gone)

    def _kill(self, dying: list[Root], gone: _Gone) -> None:
        """Let roots be dead, and count what hangs on them."""
        if not dying:
            return
        for root, stale in zip(dying, self.roots.kill(dying, self.clock()), strict=True):
            gone.by_account[root.account] += stale
        self._silence(lambda s: not s.path.alive)
        tables = [self.sequences.table(s) for s in self.sequences if not s.path.alive]
        sources = [c.source for c in self.copies.open()]
        held = np.unique(np.concatenate([*tables, np.array(sources, np.int32)]))
        rows = self.pool.meta[held]
        of = np.isin(rows[:, ops.ROOT], [root.index for root in dying])
        in_tree = np.isin(rows[:, ops.STATE], (ops.PUBLISHED, ops.TAIL))
        for index in rows[of & in_tree, ops.ROOT].tolist():
            gone.by_account[self.roots[index].account] += 1
            gone.held += 1
        self.allocator.pins.forget_dead()
        if not self.pool.stale:
            self.roots.free_dead()

    def _drop(self, blocks: I32, gone: _Gone) -> None:
        """Take cut branches out of everything."""
        if not len(blocks):
            return
        rows = self.pool.meta[blocks]
        for index, n in Counter(rows[:, ops.ROOT].tolist()).items():
            gone.by_account[self.roots[index].account] += n
        published = blocks[rows[:, ops.STATE] == ops.PUBLISHED]
        self.allocator.pins.forget(blocks)
        self.allocator.forget(published, FLUSHED, self.clock())
        gone.held += self.pool.drop(blocks)

    def _branches(self, root: Root, prefix: Tokens, *, tails: bool = False) -> I32:
        """Cut off what begins with a prefix below a root; the block of its last token goes too.

        tails: cut off those, too, that hold the beginning of that block alone.
        """
        size = self.config.block_size
        above = max(0, (len(prefix) - 1) // size)
        path = self.matcher.full_blocks(root, prefix[: above * size])
        if len(path) < above:
            return NO_BLOCKS
        rest, fills = len(prefix) - above * size, self.pool.meta[:, ops.FILL]
        return self.pool.cut_branches(
            b
            for b in self.pool.children(end_of(path, root))
            if self.pool.common_prefix(b, prefix, above * size)
            == (min(rest, fills[b]) if tails else rest)
        )

    def _silence(self, concerned: Callable[[SequenceState], bool]) -> None:
        for state in self.sequences:
            if concerned(state):
                self.publisher.silence(state)

    def _goes_on_from(self, root: Root, prefix: Tokens, state: SequenceState) -> bool:
        return state.root is root and self._begins(state, prefix)

    def _begins(self, state: SequenceState, prefix: Tokens) -> bool:
        return np.array_equal(self.sequences.tokens(state)[: len(prefix)], prefix)
