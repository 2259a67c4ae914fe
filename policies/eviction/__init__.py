"""Who is evicted: which cached blocks give way when the free ones do not suffice.

Adding a policy is one file here and one line in `EVICTION`.
"""

from collections.abc import Mapping

from stemkv.policies.eviction.adaptive import Adaptive, adaptive
from stemkv.policies.eviction.lru import Recency, lru
from stemkv.policies.eviction.protocol import Scored

EvictionPolicy = Recency | Scored | Adaptive

EVICTION: Mapping[str, EvictionPolicy] = {
    "lru": lru,
    "adaptive": adaptive,
}
"""Name -> policy."""
