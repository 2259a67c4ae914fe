"""Flushes survive being written and read; nothing else passes for one."""

import json
from typing import Any

import pytest
from hypothesis import given

from stemkv.kvstore.directory.flush_text import FlushTextError, decode_flush, encode_flush
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId
from stemkv.kvstore.properties.flush_text import (
    DAMAGE,
    FLUSHES,
    flush_comes_back,
    other_text_is_refused_or_read,
)


@given(FLUSHES)
def test_round_trip(flush: Flush) -> None:
    """Any flush comes back as it was."""
    flush_comes_back(flush)


@given(FLUSHES, DAMAGE)
def test_changed_text_is_refused_or_read(flush: Flush, damage: dict[str, Any]) -> None:
    """Whatever stands in the text's fields, it is refused in one way or is a flush's own text."""
    other_text_is_refused_or_read(flush, damage)


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
