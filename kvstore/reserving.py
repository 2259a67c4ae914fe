"""Blocks that a sequence may write to: reserved, exclusive, copied first where they are shared."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import chains
from stemkv.kvstore.allocation import Allocator
from stemkv.kvstore.copies import Copies
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.ops import I32, NONE
from stemkv.kvstore.pool import NO_BLOCKS, Pool
from stemkv.kvstore.sequences import Progress, Sequences, SequenceState
from stemkv.kvstore.values import Shortage


@dataclass(frozen=True, slots=True, eq=False)
class Reserver:
    """Keeps writes to blocks with one holder (rule 5)."""

    pool: Pool
    sequences: Sequences
    allocator: Allocator
    copies: Copies

    def fork(self, first: SequenceState) -> SequenceState:
        """Open a second sequence on the first one's blocks; there must be room for it.

        Nothing that the first had reserved is exclusive any more.
        """
        first.reserved = first.computed
        blocks = self.sequences.table(first)
        self.pool.share(blocks)
        progress = Progress(
            owner=first.owner,
            writes=bool(first.writes),
            computed=first.computed,
            reserved=first.computed,
            published=first.published,
            prompt_blocks=0,
        )
        return self.sequences.open(first.path, progress, self.sequences.tokens(first), blocks)

    def reserve(self, state: SequenceState, stop: int) -> Shortage | None:
        """Make positions computed to stop - 1 writable, or say what is missing."""
        assert stop <= state.length
        if stop <= state.reserved:
            return None
        size = self.pool.block_size
        table = self.sequences.table(state)
        first, last = state.computed // size, -(-stop // size)
        written = range(first, min(last, state.blocks))
        shared = [i for i in written if self.pool.references(int(table[i])) > 1]
        needed = len(shared) + max(0, last - state.blocks)
        shortage = self.allocator.shortage(needed, state.root.account)
        if shortage is not None:
            return shortage
        self.allocator.accounts.pass_time()
        fresh = self.allocator.take(needed, state.root, state.owner)
        for i, block in zip(shared, fresh.tolist(), strict=False):
            self._replace(state, i, block)
        self.sequences.append_blocks(state, fresh[len(shared) :])
        state.reserved = stop
        return None

    def reserve_all(self, batch: I32) -> int:
        """Make all known positions of each sequence writable; say how many could be, in order."""
        sequences, done = self.sequences, 0
        size = self.pool.block_size
        while done < len(batch):
            stop, needed, first = chains.survey_batch(
                self.pool.meta, sequences.rows, sequences.tables, batch, done, size
            )
            fresh = NO_BLOCKS
            if needed:
                state = sequences[SequenceId(int(first))]
                root, owner = state.root, state.owner
                self.allocator.accounts.pass_time()
                granted = self.allocator.grant(int(needed), root, owner)
                if granted is None:
                    room, _ = self.pool.available(root.account)
                    stop, needed = chains.fit_batch(sequences.rows, batch, done, stop, size, room)
                    granted = self.allocator.take(int(needed), root, owner)
                fresh = granted
            if stop > done:
                chains.reserve_batch(
                    sequences.rows, sequences.tables, batch, done, stop, size, fresh
                )
                done = int(stop)
                continue
            state = sequences[SequenceId(int(batch[done]))]
            if self.reserve(state, state.length) is not None:
                return done
            done += 1
        return done

    def slots(self, state: SequenceState, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where positions start to stop - 1 are written to: block * block_size + offset, or -1."""
        assert stop <= state.reserved, f"{state.number}: {stop} is over {state.reserved} reserved"
        size = self.pool.block_size
        positions = np.arange(start, stop)
        blocks = self.sequences.table(state)[positions // size].astype(np.int64)
        slots = blocks * size + positions % size
        slots[positions < state.computed] = NONE
        return slots

    def _replace(self, state: SequenceState, index: int, fresh: int) -> None:
        """Copy-on-write: give a sequence a block of its own in place of a shared one."""
        table = self.sequences.table(state)
        shared = int(table[index])
        table[index] = fresh
        self.pool.unshare(shared)
        filled = state.computed - index * self.pool.block_size
        if filled > 0:
            self.copies.plan(shared, fresh, filled)
