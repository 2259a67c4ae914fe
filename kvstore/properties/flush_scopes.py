"""Rule 12: a flush takes exactly what it names, and what it takes is never found again."""

import numpy as np
from hypothesis import strategies as st

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.properties.checks import assert_clean
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission

_SECRET = b"flush"
_BLOCK_SIZE = 4
_PROMPT = np.arange(12, dtype=np.int32)
_BLOCKS = len(_PROMPT) // _BLOCK_SIZE

NAMESPACES: st.SearchStrategy[Namespace] = st.builds(
    Namespace,
    tenant=st.just("t"),
    domain=st.sampled_from([domain_of(_SECRET, tenant=name) for name in "ab"]),
    adapter=st.sampled_from(["", "x"]),
    adapter_digest=st.sampled_from([b"", b"1"]),
    salt=st.sampled_from(["", "s"]),
)

PREFIXES = st.integers(0, len(_PROMPT))
"""How many leading tokens of the one prompt are flushed, where the flush is of a prefix."""


def flush_takes_what_it_names(
    cached: list[Namespace], kind: FlushKind, of: Namespace, prefix: int
) -> None:
    """Check that of one prompt cached in several namespaces, those concerned alone lose it."""
    config = StoreConfig(
        capacity_blocks=_BLOCKS * len(cached),
        block_size=_BLOCK_SIZE,
        max_sequences=1,
        max_tokens=len(_PROMPT),
        secret=_SECRET,
        block_bytes=10,
        partial_hits=False,
    )
    store = BlockStore(config, NullDirectory(), lambda: 0.0)
    for namespace in cached:
        _cache(store, namespace)
    keys = {namespace: store.roots.key_of(namespace) for namespace in cached}
    flush = Flush(
        flush_id=FlushId("f"),
        kind=kind,
        nonce=b"n" * 16,
        domain=of.domain,
        adapter=of.adapter,
        adapter_digest=of.adapter_digest,
        salt=of.salt,
        prefix=_PROMPT[:prefix].astype("<i4").tobytes(),
    )
    report = store.flush(flush)
    lost = 0
    for namespace in dict.fromkeys(cached):
        left = _blocks_left(kind, of, prefix, namespace)
        assert store.lookup(namespace, _PROMPT).full_blocks == left
        renewed = left < _BLOCKS and kind is not FlushKind.PREFIX
        assert (store.roots.key_of(namespace) != keys[namespace]) == renewed
        lost += _BLOCKS - left
    assert (report.blocks, report.bytes, report.in_use) == (lost, 10 * lost, 0)
    assert_clean(store)
    for namespace in cached:
        _cache(store, namespace)
        assert store.lookup(namespace, _PROMPT).full_blocks == _BLOCKS


def _cache(store: BlockStore, namespace: Namespace) -> None:
    got = store.admit(namespace, _PROMPT)
    assert isinstance(got, Admission)
    store.commit(got.sequence, len(_PROMPT))
    store.settle()
    store.release(got.sequence)


def _blocks_left(kind: FlushKind, of: Namespace, prefix: int, namespace: Namespace) -> int:
    """Say how many leading blocks a namespace keeps, in the words of the rule."""
    match kind:
        case FlushKind.ALL:
            concerned = True
        case FlushKind.TENANT:
            concerned = namespace.domain == of.domain
        case FlushKind.ADAPTER:
            concerned = namespace.adapter == of.adapter
        case FlushKind.SALT:
            concerned = (namespace.domain, namespace.salt) == (of.domain, of.salt)
        case FlushKind.PREFIX:
            # The block that holds the prefix's last token goes, and all below it.
            return _BLOCKS if namespace != of else max(0, prefix - 1) // _BLOCK_SIZE
    return 0 if concerned else _BLOCKS
