"""From written to cached: full blocks enter the index, a partly filled last one stays as a tail."""

from dataclasses import dataclass

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.copies import Copies
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.events import EventStream
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.keys import PackedKeys, as_bytes
from stemkv.kvstore.leaders import Leaders
from stemkv.kvstore.matching import Matcher
from stemkv.kvstore.ops import I32
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import Place, Pool
from stemkv.kvstore.sequences import Sequences, SequenceState


@dataclass(frozen=True, slots=True, eq=False)
class Publisher:
    """Puts what sequences have written where others find it."""

    pool: Pool
    matcher: Matcher
    sequences: Sequences
    leaders: Leaders
    copies: Copies
    directory: Directory
    owners: Owners
    events: EventStream

    def publish(self, state: SequenceState) -> None:
        """Publish a sequence's full blocks; one that has a published twin is swapped for it."""
        if self.matcher.hashes_inside:
            self._publish_inside(state)
            return
        size = self.pool.block_size
        tokens = self.sequences.tokens(state)
        data = as_bytes(tokens[: state.computed])
        stored: list[int] = []
        while state.published < state.computed // size:
            i = state.published
            parent = self.sequences.parent(state, i)
            key = self.matcher.key(parent, state.root_of(i), data, i)
            twin = self.pool.find_twin(tokens, i * size, parent, key)
            # A twin from before this worker was cut off may have been flushed meanwhile.
            if twin == ops.COLLISION or (twin >= 0 and not self.directory.current):
                state.writes = False
                break
            if twin >= 0:
                self._swap(state, i, twin)
            else:
                block = int(self.sequences.table(state)[i])
                place = self._place(state, i * size, (i + 1) * size)
                self.pool.drop_covered_tail(place)
                self.pool.publish(block, place, key)
                stored.append(block)
            state.published += 1
        self._tell(np.array(stored, np.int32))

    def publish_all(self, batch: I32) -> None:
        """Take all that is reserved for these sequences as computed, and publish full blocks."""
        size = self.pool.block_size
        if self.matcher.hashes_inside:
            operator, may_swap = self.owners.operator, self.directory.current
            stored = self.pool.commit_batch(self.sequences, batch, operator, may_swap)
            self._tell(stored)
        else:
            for number in batch.tolist():
                state = self.sequences[SequenceId(number)]
                state.computed = state.reserved
                if state.writes and state.published < state.computed // size:
                    self.publish(state)
        if self.leaders.all():
            for number in map(SequenceId, batch.tolist()):
                if self.leaders.leads(number):
                    self.lead(self.sequences[number])

    def _publish_inside(self, state: SequenceState) -> None:
        """Do the same in the pool's own loop."""
        stop = state.computed // self.pool.block_size
        operator, may_swap = self.owners.operator, self.directory.current
        self._tell(self.pool.publish_row(self.sequences, state.number, stop, operator, may_swap))

    def _tell(self, stored: I32) -> None:
        if len(stored):
            if self.directory.listens:
                self.directory.record(PackedKeys(self.pool.keys_of(stored).tobytes()), ())
            if self.events.on:
                for account, mine in self.pool.by_account(stored):
                    self.events.record("stored", account, self.pool.keys_of(mine))

    def keep_tail(self, state: SequenceState) -> None:
        """Leave a closing sequence's partly filled last block in the tree, if it says more."""
        size = self.pool.block_size
        i, fill = divmod(state.computed, size)
        if not fill or not state.writes:
            return
        assert state.published == i
        block = int(self.sequences.table(state)[i])
        # Not if a fork goes on writing to it, nor if what it should hold was never copied.
        if self.pool.references(block) > 1 or self.copies.awaited(block):
            return
        place = self._place(state, i * size, state.computed)
        if self.pool.drop_covered_tail(place) < fill:
            self.pool.make_tail(block, place)

    def lead(self, state: SequenceState) -> None:
        """Let others know which block a sequence computes next, if its prompt has one more."""
        self.leaders.stop(state.number)
        i = state.published
        if not state.writes or i >= state.prompt_blocks:
            return
        size = self.pool.block_size
        block = self.sequences.tokens(state)[i * size : (i + 1) * size]
        self.leaders.start(state.number, (self.sequences.parent(state, i), as_bytes(block)))

    def silence(self, state: SequenceState) -> None:
        """Let a sequence publish nothing further."""
        state.writes = False
        self.leaders.stop(state.number)

    def _place(self, state: SequenceState, start: int, stop: int) -> Place:
        i = start // self.pool.block_size
        parent, tokens = self.sequences.parent(state, i), self.sequences.tokens(state)
        owner = state.owner if i >= state.entry else self.owners.operator
        return Place(tokens, start, stop, parent, state.root_of(i).index, owner)

    def _swap(self, state: SequenceState, index: int, twin: int) -> None:
        """Let a sequence hold the published twin of its block instead of the block itself."""
        entry = self.sequences.table(state)[index : index + 1]
        own = entry.copy()
        entry[0] = twin
        self.pool.reference(entry.copy())
        self.pool.dereference(own)
