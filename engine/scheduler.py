"""Who runs in the next step, and with how many tokens: continuous batching with chunked prefill.

Pure bookkeeping: `plan` returns a frozen `StepPlan`, `committed` takes the news that it has run.
A step mixes decodes and prefill chunks under a token budget; decodes go first, so that a long
prompt never holds up those who are already being answered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stemkv.engine.job import Track
from stemkv.engine.misses import Misses, missed
from stemkv.engine.plan import CopyPlan, StepPlan
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Copy, Following, Shortage
from stemkv.policies.ordering import OrderingPolicy


class NothingFitsError(Exception):
    """Nothing runs, and yet the next request gets no blocks: `track` can never run."""

    def __init__(self, track: Track, shortage: Shortage) -> None:
        what, whose = shortage.what, "in all"
        if what == "quota":
            what, whose = "blocks", "by its tenant's quota"
        super().__init__(f"{shortage.needed} {what} needed, {shortage.available} to be had {whose}")
        self.track = track


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A step: the plan, which track runs how many rows, and whose rows are sampled, in order."""

    plan: StepPlan
    rows: tuple[tuple[Track, int], ...]
    sampled: tuple[Track, ...]


@dataclass(slots=True, eq=False)
class Scheduler:
    """The waiting and the running tracks.

    max_batch_tokens: rows of one step. misses: explains first admissions. preemptions counts since
    the start.
    """

    store: BlockStore
    order: OrderingPolicy
    max_batch_tokens: int
    misses: Misses
    waiting: list[Track] = field(default_factory=list)
    running: list[Track] = field(default_factory=list)
    preemptions: int = 0
    steps: int = 0

    def add(self, track: Track) -> None:
        """Let a track wait for its first or next admission."""
        self.waiting.append(track)

    def start(self, track: Track) -> None:
        """Take over a track that already has a sequence (a fork)."""
        assert track.sequence is not None
        self.running.append(track)

    def remove(self, track: Track) -> None:
        """Forget a track and close its sequence; what it computed stays cached."""
        if track.sequence is None:
            if track in self.waiting:
                self.waiting.remove(track)
            return
        self.running.remove(track)
        self.store.release(track.sequence)
        track.sequence = None

    def plan(self) -> Scheduled | None:
        """Decide the next step, None if there is nothing to run.

        Raises NothingFitsError; the tracks are as before.
        """
        chosen: dict[Track, int] = {}
        preempted = self.preemptions
        self._continue(chosen)
        if self.preemptions == preempted:
            self._admit(chosen)
        if not chosen:
            return None
        self.steps += 1
        # Decodes first, as the attention batch wants them.
        rows = sorted(chosen.items(), key=lambda item: item[1] > 1)
        return self._build(rows)

    def committed(self, scheduled: Scheduled) -> None:
        """Take in that a step's keys and values are written."""
        whole: list[SequenceId] = []
        for track, rows in scheduled.rows:
            assert track.sequence is not None
            track.done += rows
            if track.remaining:
                self.store.commit(track.sequence, track.done)
            else:
                whole.append(track.sequence)
        self.store.commit_all(np.array(whole, np.int32))
        self.store.settle()

    # --- choosing ----------------------------------------------------------------------------

    def _continue(self, chosen: dict[Track, int]) -> None:
        """Run what runs already: decodes, then the prefills that were begun."""
        budget = self.max_batch_tokens
        decodes = [t for t in self.running if t.remaining == 1]
        prefills = [t for t in self.running if t.remaining > 1]
        # Where decodes alone are over the budget, those that waited longest go first.
        decodes.sort(key=lambda t: (t.last_step, self.order(t)))
        prefills.sort(key=self.order)
        self._decode(decodes[:budget], chosen)
        for track in prefills:
            free = budget - sum(chosen.values())
            if free <= 0:
                break
            if track.sequence is None:
                continue  # preempted for one before it
            rows = min(free, track.remaining)
            if self._reserve(track, track.done + rows, chosen):
                chosen[track] = rows

    def _decode(self, tracks: Sequence[Track], chosen: dict[Track, int]) -> None:
        """Reserve a row each for as many of these tracks as get one, all at once if blocks last."""
        left = list(tracks)
        while left:
            batch = np.array([track.sequence for track in left], np.int32)
            got = self.store.reserve_all(batch)
            chosen.update(dict.fromkeys(left[:got], 1))
            short, left = left[got : got + 1], left[got + 1 :]
            for track in short:
                if self._reserve(track, track.length, chosen):
                    chosen[track] = 1
            left = [track for track in left if track.sequence is not None]

    def _admit(self, chosen: dict[Track, int]) -> None:
        """Start waiting tracks in order, as long as budget, blocks and sequences suffice."""
        free = self.max_batch_tokens - sum(chosen.values())
        short: set[bytes] = set()
        held_up = False
        for track in sorted(self.waiting, key=self.order):
            if free <= 0:
                return
            request = track.job.request
            if request.namespace.domain in short:
                continue
            # What is reserved for others is nothing that those who wait longer could ever have.
            if held_up and not self.store.is_reserved(request.namespace, self._blocks(track)):
                continue
            # Before the admission takes blocks from others, and becomes a leader itself.
            seen = self.misses.look(track)
            got = self.store.admit(
                request.namespace,
                track.tokens(),
                read=request.cache_read,
                write=request.cache_write,
                again=track.resumed,
            )
            track.following = isinstance(got, Following)
            if not track.resumed:
                track.job.miss = None if track.following else seen
            if isinstance(got, Shortage):
                if not self.running or self._never_fits(track):
                    raise NothingFitsError(track, got)
                # Whoever comes later must not pass by, or this one might never start. Where a
                # quota is what is short, that goes for those of the same account alone.
                if got.what == "sequences":
                    return
                held_up = held_up or got.what == "blocks"
                short.add(request.namespace.domain)
            if isinstance(got, Admission):
                self._begin(track, got)
                rows = min(free, track.remaining)
                chosen[track] = rows
                free -= rows

    def _begin(self, track: Track, admission: Admission) -> None:
        self.waiting.remove(track)
        self.running.append(track)
        track.sequence = admission.sequence
        track.done = min(admission.computed, track.length - 1)
        if track.job.cached_tokens is None:
            track.job.cached_tokens = track.done
            track.job.miss = missed(track.job.miss, admission)
        track.resumed = True

    def _reserve(self, track: Track, stop: int, chosen: dict[Track, int]) -> bool:
        """Get blocks for a running track, preempting the last in order; False: that was itself."""
        assert track.sequence is not None
        while self.store.reserve(track.sequence, stop) is not None:
            needing = track.sequence
            victim = max(
                (
                    other
                    for other in self.running
                    if other.sequence is not None and self.store.makes_room(other.sequence, needing)
                ),
                key=self.order,
            )
            self._preempt(victim)
            chosen.pop(victim, None)
            if victim is track:
                return False
        return True

    def _never_fits(self, track: Track) -> bool:
        """Whether quotas, which may have changed while it waited, forbid a track for good."""
        return self._blocks(track) > self.store.limit(track.job.request.namespace)

    def _blocks(self, track: Track) -> int:
        """How many blocks of its account's hold the tokens that a track knows."""
        request = track.job.request
        if not request.cache_write:
            return -(-track.length // self.store.config.block_size)
        return self.store.own_blocks(request.namespace, request.prompt, track.length)

    def _preempt(self, track: Track) -> None:
        self.remove(track)
        track.done = 0
        self.waiting.append(track)
        self.preemptions += 1

    # --- writing the plan ----------------------------------------------------------------------

    def _build(self, rows: Sequence[tuple[Track, int]]) -> Scheduled:
        token_ids, positions, slots, tables, contexts = [], [], [], [], []
        sample_rows: list[int] = []
        sampled: list[Track] = []
        at = 0
        for track, count in rows:
            assert track.sequence is not None
            stop = track.done + count
            token_ids.append(self.store.tokens_of(track.sequence)[track.done : stop])
            positions.append(np.arange(track.done, stop))
            slots.append(self.store.slots(track.sequence, track.done, stop))
            tables.append(self.store.table_of(track.sequence))
            contexts.append(stop)
            at += count
            if stop == track.length:
                sample_rows.append(at - 1)
                sampled.append(track)
            track.last_step = self.steps
        plan = StepPlan(
            token_ids=np.concatenate(token_ids).astype(np.int64),
            positions=np.concatenate(positions),
            slots=np.concatenate(slots),
            query_lens=tuple(count for _, count in rows),
            context_lens=tuple(contexts),
            block_tables=_padded(tables),
            decodes=sum(count == 1 for _, count in rows),
            copies=_copy_plan(self.store.take_copies()),
            sample_rows=np.array(sample_rows, np.int64),
        )
        return Scheduled(plan, tuple(rows), tuple(sampled))


def _padded(
    tables: Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]],
) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    """Stack block tables to int32 [sequences, widest], padded with 0."""
    padded = np.zeros((len(tables), max(len(table) for table in tables)), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def _copy_plan(copies: Iterable[Copy]) -> CopyPlan:
    columns = np.array([*copies], np.int64).reshape(-1, 3).T
    source, destination, tokens = np.ascontiguousarray(columns)
    return CopyPlan(source, destination, tokens)
