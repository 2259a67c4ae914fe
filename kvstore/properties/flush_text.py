"""Flushes survive being written and read; nothing else passes for one."""

import json
from typing import Any

from hypothesis import strategies as st

from stemkv.kvstore.directory.flush_text import FlushTextError, decode_flush, encode_flush
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId

FLUSHES = st.builds(
    Flush,
    flush_id=st.text(min_size=1).map(FlushId),
    kind=st.sampled_from(FlushKind),
    nonce=st.binary(min_size=16, max_size=16),
    domain=st.binary(max_size=32),
    adapter=st.text(),
    adapter_digest=st.binary(max_size=32),
    salt=st.text(),
    prefix=st.binary(max_size=40),
)

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=8),
    st.sampled_from(["00", "0" * 31, "0" * 32, "all"]),
    st.just([]),
)

DAMAGE: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(sorted(json.loads(encode_flush(Flush(FlushId("f"), FlushKind.ALL, b""))))),
    _VALUES,
    max_size=3,
)
"""Fields of the text to replace."""


def flush_comes_back(flush: Flush) -> None:
    """Check that any flush comes back as it was."""
    assert decode_flush(encode_flush(flush).encode()) == flush


def other_text_is_refused_or_read(flush: Flush, damage: dict[str, Any]) -> None:
    """Check that text with other fields is refused in the one way, or says what comes out."""
    text = json.dumps({**json.loads(encode_flush(flush)), **damage}).encode()
    try:
        read = decode_flush(text)
    except FlushTextError:
        return
    flush_comes_back(read)


def flush_text_holds(flush: Flush, damage: dict[str, Any]) -> None:
    """Check both of the above."""
    flush_comes_back(flush)
    other_text_is_refused_or_read(flush, damage)
