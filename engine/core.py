"""`EngineCore`: requests in, events out, one step at a time.

Plan, execute, sample, apply. Knows no process and no HTTP; `build_core` makes one from settings.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence

from stemkv.engine.admin import Admin
from stemkv.engine.auditing import Auditor
from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.core_protocol import Later
from stemkv.engine.detokenizer import Detokenizer
from stemkv.engine.job import Job, Track
from stemkv.engine.messages import AdminCall, AdminReply, AuditReport
from stemkv.engine.misses import Misses
from stemkv.engine.model import LoadedModel, load_model, make_layout, pool_blocks
from stemkv.engine.output import accept
from stemkv.engine.request import (
    Delta,
    EngineInfo,
    Event,
    Failed,
    Finished,
    Request,
    Started,
    Usage,
)
from stemkv.engine.runner import ModelRunner
from stemkv.engine.sampler import RowSampling, Sampled, derive_seed, sample
from stemkv.engine.scheduler import NothingFitsError, Scheduled, Scheduler
from stemkv.engine.token_table import TokenTable
from stemkv.engine.warm import warm_up as warm_up_runner
from stemkv.kernels.select import BackendUnavailable, select_backend
from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.factory import make_directory
from stemkv.kvstore.directory.protocol import Directory, DirectoryMismatch
from stemkv.kvstore.repair import RepairError
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Shortage
from stemkv.kvstore.warm import warm_up as warm_up_store
from stemkv.policies.eviction import EVICTION
from stemkv.policies.ordering import ORDERING

logger = logging.getLogger(__name__)

_EVENT_BLOCKS = 100_000
"""Events of the cache that are kept for those who follow: some seconds of a busy service."""


class AuditFailedError(Exception):
    """The store breaks its own rules: nothing that it says can be trusted any more."""


class EngineCore:
    """One engine over a loaded model, its runner and its store.

    All calls come from one thread. Events of one request come in order: `Started`, `Delta`s,
    then `Finished` or `Failed`.
    """

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, runner: ModelRunner, store: BlockStore
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._runner = runner
        self._store = store
        misses = Misses(store, config.explain_misses)
        self._scheduler = Scheduler(
            store, ORDERING[config.ordering], config.max_batch_tokens, misses
        )
        self._table = TokenTable(loaded.tokenizer)
        self._jobs: dict[str, Job] = {}
        self._arrivals = 0
        self._admin = Admin(store, self._scheduler, self._repair)
        self._auditor = Auditor(store, config.audit_seconds)
        # Failures that an audit between two steps has brought, told by the next step.
        self._untold: list[Event] = []
        self._beyond_repair: str | None = None
        self._info = _info(config, loaded, runner, store)

    @property
    def info(self) -> EngineInfo:
        """What the front needs to know; constant."""
        return self._info

    def submit(self, request: Request) -> tuple[Event, ...]:
        """Queue a request; returns a `Failed` at once for one that can never run."""
        failure = self._refusal(request)
        if failure is not None:
            return (failure,)
        self._arrivals += 1
        job = Job(request, self._arrivals)
        params = request.sampling
        seed = secrets.randbits(63) if params.seed is None else params.seed
        # The tail of the prompt is all that a detokenizer looks at.
        prompt_end = request.prompt[-64:].tolist()
        for index in range(params.n):
            detokenizer = Detokenizer(self._table, prompt_end, params, request.skip_special_tokens)
            job.tracks.append(Track(job, index, derive_seed(seed, index), detokenizer))
        self._jobs[request.request_id] = job
        self._admin.count_request(request.namespace.tenant)
        self._scheduler.add(job.tracks[0])
        return ()

    def abort(self, request_id: str) -> None:
        """End a request without further events, its blocks released; unknown ids are ignored."""
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._close(job)

    def has_work(self) -> bool:
        """Whether a step is to be run: a request is open, or there is something to tell."""
        return bool(self._jobs or self._untold or self._beyond_repair)

    def step(self) -> list[Event]:
        """Run one step over all that is open.

        A failure of one request is its `Failed`; one of the step itself fails every request in
        it, and the engine goes on. Raises AuditFailedError if an audit has found what cannot be
        repaired; in debug mode, if it has found anything.
        """
        if self._beyond_repair is not None:
            raise AuditFailedError(self._beyond_repair)
        if self._untold:
            told, self._untold = self._untold, []
            return told
        self._apply_flushes()
        try:
            scheduled = self._scheduler.plan()
        except NothingFitsError as error:
            return [self._fail(error.track.job, str(error))]
        if scheduled is None:
            return []
        try:
            drawn = self._run(scheduled)
        except Exception as error:
            logger.exception("a step failed")
            events = self._fail_step(scheduled, f"the step failed: {type(error).__name__}")
        else:
            self._scheduler.committed(scheduled)
            events = self._apply(scheduled.sampled, drawn)
        if self._config.debug_audit:
            self._audit()
        return events

    def admin(self, call: AdminCall) -> AdminReply | Later:
        """Carry out an admin call, or begin it; what is wrong with it is an `AdminError`."""
        return self._admin.call(call)

    def idle(self) -> None:
        """Carry out flushes that were ordered elsewhere, and what the store has put off.

        From time to time, audit the store; what is found is repaired, and told by the next step.
        """
        self._apply_flushes()
        self._store.reclaim()
        if self._auditor.due:
            self._repair()

    def close(self) -> None:
        """End all requests, and leave the directory."""
        for request_id in tuple(self._jobs):
            self.abort(request_id)
        self._store.directory.close()

    # --- a step ------------------------------------------------------------------------------

    def _run(self, scheduled: Scheduled) -> list[list[Sampled]]:
        """Execute a plan and draw a token for each sampled track, one a choice at the fork."""
        logits = self._runner.execute(scheduled.plan)
        rows: list[int] = []
        samplings: list[RowSampling] = []
        counts: list[int] = []
        for row, track in enumerate(scheduled.sampled):
            drawing = [track] if track.job.forked else track.job.tracks
            rows += [row] * len(drawing)
            counts.append(len(drawing))
            params = track.job.request.sampling
            samplings += [RowSampling(params, t.seed, track.length) for t in drawing]
        if len(rows) != logits.shape[0]:
            logits = logits[rows]
        drawn = iter(sample(logits, samplings))
        return [[next(drawn) for _ in range(count)] for count in counts]

    def _apply(self, sampled: Sequence[Track], drawn: Sequence[Sequence[Sampled]]) -> list[Event]:
        events: list[Event] = []
        for track, tokens in zip(sampled, drawn, strict=True):
            if track.job.request.request_id not in self._jobs:
                continue  # another choice of it has failed in this step
            try:
                events += self._advance(track, tokens)
            except Exception as error:
                logger.exception("request %s failed", track.job.request.request_id)
                events.append(self._fail(track.job, type(error).__name__))
        return events

    def _advance(self, track: Track, tokens: Sequence[Sampled]) -> list[Event]:
        """Append what was drawn to a track, or to all of a job's tracks at the fork."""
        job = track.job
        error = next((t.error for t in tokens if t.error is not None), None)
        if error is not None:
            return [self._fail(job, error)]
        events: list[Event] = []
        if not job.forked:
            assert job.cached_tokens is not None
            events.append(Started(job.request.request_id, job.cached_tokens, job.miss))
            self._fork(job)
        drawing = [track] if len(tokens) == 1 else job.tracks
        for choice, token in zip(drawing, tokens, strict=True):
            events.append(self._accept(choice, token))
        if job.finished:
            del self._jobs[job.request.request_id]
            events.append(Finished(job.request.request_id, _usage(job)))
        return events

    def _fork(self, job: Job) -> None:
        """Let the choices of a request go on from its one prefill."""
        job.forked = True
        first = job.tracks[0]
        assert first.sequence is not None
        for track in job.tracks[1:]:
            track.resumed = True
            got = self._store.fork(first.sequence)
            if isinstance(got, Shortage):
                self._scheduler.add(track)  # it comes back through the cache
            else:
                track.sequence, track.done = got, first.done
                self._scheduler.start(track)

    def _accept(self, track: Track, drawn: Sampled) -> Delta:
        output = accept(track, drawn, self._table, self._loaded.eos_token_ids)
        self._admin.count_generated(track.job.request.namespace.tenant)
        if output.finish_reason is not None:
            track.finished = True
            self._scheduler.remove(track)
        elif track.sequence is not None:
            self._store.extend(track.sequence, drawn.token)
        return Delta(
            request_id=track.job.request.request_id,
            index=track.index,
            text=output.text,
            token_ids=(drawn.token,),
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )

    # --- failure -------------------------------------------------------------------------------

    def _fail_step(self, scheduled: Scheduled, message: str) -> list[Event]:
        """Fail every request of a step that raised: what it wrote is unknown, and not committed."""
        self._store.settle(ran=False)
        jobs = {id(track.job): track.job for track, _ in scheduled.rows}
        return [self._fail(job, message) for job in jobs.values()]

    def _fail(self, job: Job, message: str) -> Failed:
        self._jobs.pop(job.request.request_id, None)
        self._close(job)
        return Failed(job.request.request_id, "internal", message)

    def _close(self, job: Job) -> None:
        for track in job.tracks:
            if not track.finished:
                track.finished = True
                self._scheduler.remove(track)

    def _repair(self) -> AuditReport:
        """Audit the store and repair it; requests that hold what is inconsistent fail alone."""
        sequences = len(self._store.sequences)
        try:
            found, seconds = self._auditor.run()
        except RepairError as error:
            self._beyond_repair = str(error)
            raise
        lost = frozenset(found.sequences)
        jobs = [
            job
            for job in self._jobs.values()
            if any(track.sequence in lost for track in job.tracks)
        ]
        self._untold += [
            self._fail(job, "its cache blocks were found inconsistent") for job in jobs
        ]
        return self._auditor.report(found, seconds, sequences, len(jobs))

    def _audit(self) -> None:
        violations = audit(self._store)
        if violations:
            raise AuditFailedError("; ".join(map(str, violations)))

    # --- admission -----------------------------------------------------------------------------

    def _refusal(self, request: Request) -> Failed | None:
        """Say why a request can never run, None if it can."""
        request_id, params = request.request_id, request.sampling
        prompt, limit = len(request.prompt), self._info.max_model_len

        def rejected(message: str, field: str) -> Failed:
            return Failed(request_id, "rejected", message, field)

        if request_id in self._jobs:
            return rejected(f"request_id: {request_id!r} is in use", "request_id")
        if not prompt:
            return rejected("prompt: it has no tokens", "prompt")
        if int(request.prompt.min()) < 0 or int(request.prompt.max()) >= self._info.vocab_size:
            bad = _first_outside(request.prompt, self._info.vocab_size)
            return rejected(
                f"prompt: token id {bad} is not in 0..{self._info.vocab_size - 1}", "prompt"
            )
        if params.max_tokens < 1 or params.n < 1:
            name = "max_tokens" if params.max_tokens < 1 else "n"
            return rejected(f"{name}: {getattr(params, name)} is less than 1", name)
        if prompt + params.max_tokens > limit:
            return rejected(
                f"max_tokens: {prompt} prompt tokens and {params.max_tokens} output tokens are "
                f"more than the model's {limit}",
                "prompt" if prompt >= limit else "max_tokens",
            )
        # The last output token is never run, so it needs no room.
        blocks = -(-(prompt + params.max_tokens - 1) // self._info.block_size)
        if blocks > self._info.capacity_blocks:
            return rejected(
                f"max_tokens: {prompt} prompt tokens and {params.max_tokens} output tokens need "
                f"{blocks} cache blocks of {self._info.block_size} tokens; the pool has "
                f"{self._info.capacity_blocks}",
                "prompt" if prompt > self._info.longest_prompt else "max_tokens",
            )
        share, public = self._store.limit(request.namespace), 0
        if request.cache_write:
            public = blocks - self._store.own_blocks(
                request.namespace, request.prompt, prompt + params.max_tokens - 1
            )
        if blocks - public > share:
            field = (
                "prompt" if -(-prompt // self._info.block_size) - public > share else "max_tokens"
            )
            return rejected(
                f"{field}: {prompt} prompt tokens and {params.max_tokens} output tokens need "
                f"{blocks - public} cache blocks of {self._info.block_size} tokens; this tenant "
                f"can have {share}",
                field,
            )
        if len(self._jobs) >= self._config.max_queue + self._config.max_running:
            return Failed(request_id, "overloaded", f"{len(self._jobs)} requests are open")
        return None

    def _apply_flushes(self) -> None:
        directory = self._store.directory
        for flush in directory.pending_flushes():
            report = self._store.flush(flush)
            directory.acknowledge(flush.flush_id)
            logger.info("flush %s by %s: %d blocks", flush.flush_id, flush.kind, report.blocks)


def build_core(config: EngineConfig) -> EngineCore:
    """Load the model, make its cache, join the directory.

    Raises ConfigError (ModelError for the model) if a setting cannot be honoured.
    """
    if config.eviction not in EVICTION:
        known = ", ".join(EVICTION)
        raise ConfigError(f"eviction: {config.eviction!r} is not one of {known}")
    loaded = load_model(config.model, config.dtype, config.device)
    try:
        backend = select_backend(config.kernels, loaded.device)
    except BackendUnavailable as error:
        raise ConfigError(f"kernels: {error}") from error
    limit = min(config.max_model_len or loaded.max_model_len, loaded.max_model_len)
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len: {config.max_model_len} is more than the model's {limit} positions"
        )
    layout = make_layout(loaded, config.block_size)
    blocks = pool_blocks(layout, config.kv_memory, loaded.device)
    # What no set of running sequences can fill is not worth holding.
    widest = -(-limit // config.block_size)
    logger.info(
        "cache: %d blocks of %d tokens; a sequence has up to %d", blocks, config.block_size, widest
    )
    cache = layout.allocate(blocks, loaded.device)
    runner = ModelRunner(loaded, cache, layout, backend)
    store_config = StoreConfig(
        capacity_blocks=blocks,
        block_size=config.block_size,
        max_sequences=config.max_running,
        max_tokens=limit,
        secret=config.secret,
        fingerprint=loaded.fingerprint,
        kv_dtype=str(layout.dtype),
        block_bytes=layout.block_bytes,
        hash_function=config.hash_function,
        eviction=config.eviction,
        keep_free=int(config.keep_free * blocks),
        compare_policies=True,
        event_blocks=_EVENT_BLOCKS,
        curves=True,
        prefix_cache=config.prefix_cache,
    )
    warm_up_store(store_config)
    warm_up_runner(runner, config.max_batch_tokens)
    store = BlockStore(store_config, _directory(config, loaded))
    return EngineCore(config, loaded, runner, store)


def _directory(config: EngineConfig, loaded: LoadedModel) -> Directory:
    try:
        return make_directory(
            config.redis_url,
            deployment=config.deployment,
            secret=config.secret,
            fingerprint=loaded.fingerprint,
            lease_seconds=config.lease_seconds,
        )
    except DirectoryMismatch as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"redis_url: {error}") from error


def _info(
    config: EngineConfig, loaded: LoadedModel, runner: ModelRunner, store: BlockStore
) -> EngineInfo:
    limits = store.config
    return EngineInfo(
        model=config.served_model_name or loaded.name,
        fingerprint=loaded.fingerprint,
        max_model_len=limits.max_tokens,
        longest_prompt=min(limits.max_tokens - 1, limits.capacity_blocks * limits.block_size),
        vocab_size=loaded.vocab_size,
        block_size=limits.block_size,
        capacity_blocks=limits.capacity_blocks,
        block_bytes=limits.block_bytes,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        kernels=runner.kernels,
        worker=store.directory.worker,
    )


def _usage(job: Job) -> Usage:
    return Usage(
        prompt_tokens=len(job.request.prompt),
        completion_tokens=sum(len(track.outputs) for track in job.tracks),
        cached_tokens=job.cached_tokens or 0,
    )


def _first_outside(prompt: Iterable[int], vocab_size: int) -> int:
    return next(int(token) for token in prompt if not 0 <= token < vocab_size)
