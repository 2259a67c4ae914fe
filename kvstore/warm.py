"""Run every compiled loop once, so that no request waits for a compiler."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import ops
from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId, SequenceId
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.repair import repair
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage

_NAMESPACE = Namespace("warm-up", b"")


def warm_up(config: StoreConfig) -> None:
    """Compile the store's loops by working a store of ten blocks through all of its calls."""
    size = config.block_size
    small = replace(
        config,
        capacity_blocks=10,
        max_sequences=4,
        max_tokens=6 * size,
        keep_free=min(config.keep_free, 1),
        prefix_cache=True,
    )
    store = BlockStore(small, NullDirectory())
    prompt = np.arange(2 * size + size // 2, dtype=np.int32)
    for tokens in (prompt, prompt[:-1], np.concatenate([prompt[:size], prompt])):
        sequence = _run(store, tokens)
        child = store.fork(sequence)
        assert not isinstance(child, Shortage)
        for member in (sequence, child):
            store.extend(member, int(member))
            store.reserve(member, len(tokens) + 1)
        store.take_copies()
        store.settle()
        pair = np.array([sequence, child], np.int32)
        for step in range(size + 1):
            store.extend_all(pair, pair + step)
            store.reserve_all(pair)
            store.take_copies()
            store.commit_all(pair)
            store.settle()
        store.release(sequence)
        store.release(child)
    store.release(_run(store, np.arange(6 * size, dtype=np.int32)[::-1]))
    store.release(_run(store, prompt))
    assert not audit(store)
    _keep(store, prompt)
    _fill(store)
    _repair(store, prompt)
    # So that the prompt's first block is not the newest, and must be looked up by its key.
    store.release(_run(store, prompt[::-1].copy()))
    for kind in (FlushKind.PREFIX, FlushKind.ALL):
        store.flush(Flush(FlushId("warm-up"), kind, b"", prefix=prompt[: size + 1].tobytes()))
    # While there is something to sweep, blocks are taken step by step.
    store.release(_run(store, np.arange(6 * size, dtype=np.int32)))
    store.reclaim()


def _fill(store: BlockStore) -> None:
    """Let so many blocks come and go that samples of them grow."""
    size = store.config.block_size
    for start in range(0, 600 * size, 6 * size):
        store.release(_run(store, np.arange(start, start + 6 * size, dtype=np.int32)))


def _keep(store: BlockStore, prompt: npt.NDArray[np.int32]) -> None:
    """Go through what operators may keep: a pin, a public prefix, and what they are told."""
    store.pin(_NAMESPACE, prompt, PinTerms(1.0))
    public = store.declare_public(prompt[::-1][: store.config.block_size])
    for tokens in (prompt[::-1].copy(), prompt[::-1].copy(), prompt):
        store.release(_run(store, tokens))
    # Others take their blocks around the pin, which may give way.
    store.release(_run(store, np.arange(6 * store.config.block_size, dtype=np.int32)[::-1].copy()))
    for pin in store.pinned():
        store.unpin(pin.pin_id)
    store.account_counts()
    store.miss_ratio_curves()
    store.withdraw_public(public.key)


def _repair(store: BlockStore, prompt: npt.NDArray[np.int32]) -> None:
    """Audit the store in order, and with a fault in it that is repaired."""
    sequence = _run(store, prompt)
    assert not audit(store)
    store.pool.accounts[ops.POOL, ops.FREED] += 1
    assert repair(store).violations
    store.release(sequence)


def _run(store: BlockStore, tokens: npt.NDArray[np.int32]) -> SequenceId:
    admission = store.admit(_NAMESPACE, tokens)
    assert isinstance(admission, Admission)
    store.take_copies()
    store.commit(admission.sequence, len(tokens))
    store.settle()
    return admission.sequence
