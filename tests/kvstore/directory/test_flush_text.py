"""Flushes survive being written and read; nothing else passes for one."""

import json

import pytest
from hypothesis import given
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


@given(FLUSHES)
def test_round_trip(flush: Flush) -> None:
    """Any flush comes back as it was."""
    assert decode_flush(encode_flush(flush).encode()) == flush


def changed(**fields: object) -> bytes:
    """Return a flush's text with some fields changed."""
    text = encode_flush(Flush(FlushId("f"), FlushKind.ALL, b"n" * 16))
    return json.dumps({**json.loads(text), **fields}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        changed(v=2),
        changed(kind="everything"),
        changed(nonce="00"),
        changed(nonce=5),
        changed(domain="xyz"),
        changed(id=7),
        changed(salt=None),
    ],
)
def test_other_text_is_refused(text: bytes) -> None:
    """Text of another version, or that is not a flush, is an error of its own kind."""
    with pytest.raises(FlushTextError):
        decode_flush(text)
