"""Why a request's prompt was not reused further, seen just before its admission changes the store.

Rule 13: worked out at most once a request, and only where it is asked for.
"""

from dataclasses import dataclass, replace

from stemkv.engine.job import Track
from stemkv.kvstore.explain import explain
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.kvstore.views import Explanation


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """Explains the first admissions of requests that may read the cache. on False: says nothing.

    Costs one more lookup where a prompt is reused whole. Otherwise a fraction of a millisecond,
    most of it for what left the cache lately.
    """

    store: BlockStore
    on: bool

    def look(self, track: Track) -> Explanation | None:
        """Say how far a track's prompt would be reused now; None if that is not of interest."""
        job = track.job
        if not self.on or track.resumed or not job.request.cache_read:
            return None
        namespace, prompt = job.request.namespace, job.request.prompt
        if job.miss is not None:
            # It was short of blocks before: that is no reason to work it out at every step.
            found = self.store.lookup(namespace, prompt)
            full = found.full_blocks * self.store.config.block_size
            if (full, found.partial_tokens) == (
                job.miss.full_block_tokens,
                job.miss.partial_tokens,
            ):
                return job.miss
        return explain(self.store, namespace, prompt, hurried=True)


def missed(seen: Explanation | None, got: Admission) -> Explanation | None:
    """Return what is to be told of an admission, None if all that it needs was there.

    seen: what `look` said. A partial copy may have been given up since, for want of blocks.
    """
    if seen is None or seen.reason == "complete":
        return None
    return replace(
        seen,
        partial_tokens=got.partial_tokens,
        position=min(got.computed, seen.prompt_tokens - 1),
    )
