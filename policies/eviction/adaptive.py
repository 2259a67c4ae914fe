"""Several scores, of which the one is followed that would have hit most lately.

The store runs each score in a small cache of its own over a sample of the blocks (SHARDS, FAST
2015), and asks here which of them to follow. Without evidence it is the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stemkv.policies.eviction.lrfu import lrfu
from stemkv.policies.eviction.lru import recency
from stemkv.policies.eviction.protocol import Scored


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Candidates by name, and how the choice is made.

    sample_blocks: size of each candidate's cache. memory_seconds: after which a hit in it counts
    half. margin: share of the lookups by which a candidate must lead to be followed. least: and by
    how many hits, decayed as they are, so that chance alone does not decide.
    """

    candidates: Mapping[str, Scored]
    sample_blocks: int = 512
    memory_seconds: float = 600.0
    margin: float = 0.002
    least: float = 8.0

    def choose(self, hits: Sequence[float], lookups: float, followed: int) -> int:
        """Return the number of the candidate to follow from now on.

        hits: of each candidate's cache. lookups: of blocks in the sample. Both decayed.
        """
        best = max(range(len(hits)), key=hits.__getitem__)
        lead = hits[best] - hits[followed]
        return best if lead > max(self.margin * lookups, self.least) else followed


adaptive = Adaptive(
    {"lru": recency, "lrfu-15": lrfu(15.0), "lrfu-60": lrfu(60.0), "lrfu-240": lrfu(240.0)}
)
"""LRFU, its half-life chosen online; the half-lives in the names are seconds."""
