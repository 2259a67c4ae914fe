"""Warm a store up, work another one through all kinds of traffic, and print what was compiled then.

    python tests/support/warm_traffic.py POLICY

One line a loop that had no machine code, or not for these types, before a request came.
"""

import importlib
import sys

import numpy as np

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId
from stemkv.kvstore.jit import _SOURCES
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage
from stemkv.kvstore.warm import warm_up

SPACES = [Namespace(tenant, tenant.encode() * 32) for tenant in "abc"]


def compiled_loops() -> dict[str, int]:
    """Return how often each compiled function was compiled."""
    counts = {}
    for source in _SOURCES:
        module = importlib.import_module(f"stemkv.kvstore.{source.removesuffix('.py')}")
        for name, function in vars(module).items():
            if getattr(function, "__module__", "") == module.__name__:
                counts[f"{module.__name__}.{name}"] = len(getattr(function, "signatures", ()))
    return counts


def work(store: BlockStore) -> None:
    """Let three tenants come and go, with forks, quotas, a public prefix, pins and flushes."""
    rng = np.random.default_rng(0)
    store.set_quotas({SPACES[0].domain: Quota(0.2, 0.9, 2.0)})
    public = rng.integers(0, 1000, 40, dtype=np.int32)
    store.declare_public(public)
    last = public
    for i in range(300):
        namespace = SPACES[i % 3]
        prompt = rng.integers(0, 1000, int(rng.integers(5, 600)), dtype=np.int32)
        if i % 3 == 0:
            prompt = np.concatenate([public, prompt])
        if i % 4 == 0:
            prompt = np.concatenate([last[: len(last) // 2], prompt])[:1500]
        last = prompt
        got = store.admit(namespace, prompt)
        if not isinstance(got, Admission):
            continue
        store.take_copies()
        store.commit(got.sequence, len(prompt))
        store.settle()
        batch = np.array([got.sequence], np.int32)
        for _ in range(20):
            store.extend_all(batch, batch)
            store.reserve_all(batch)
            store.take_copies()
            store.commit_all(batch)
            store.settle()
        child = store.fork(got.sequence)
        if not isinstance(child, Shortage):
            store.extend(child, 1)
            store.reserve(child, store.sequences[child].length)
            store.take_copies()
            store.settle()
            store.release(child)
        store.release(got.sequence)
        if i % 17 == 0:
            store.pin(namespace, prompt, PinTerms(10.0, 2))
        if i % 25 == 24:
            kind = FlushKind.TENANT if i % 50 == 24 else FlushKind.PREFIX
            data = prompt[:20].tobytes() if kind is FlushKind.PREFIX else b""
            nonce = i.to_bytes(16, "big")
            store.flush(Flush(FlushId("f"), kind, nonce, domain=namespace.domain, prefix=data))
    assert not audit(store)
    store.account_counts()
    store.miss_ratio_curves()
    store.events.read(0, 10)


def main() -> None:
    """Do it, for the policy of eviction that is named."""
    config = StoreConfig(
        capacity_blocks=200,
        block_size=16,
        max_sequences=8,
        max_tokens=2048,
        secret=bytes(32),
        eviction=sys.argv[1],
        compare_policies=True,
        event_blocks=1000,
        curves=True,
    )
    warm_up(config)
    before = compiled_loops()
    work(BlockStore(config, NullDirectory()))
    for name, count in compiled_loops().items():
        if count != before[name]:
            print(name)


if __name__ == "__main__":
    main()
