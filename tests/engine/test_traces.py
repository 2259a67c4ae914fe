"""Reading traces: both formats, any order, and one line for what is wrong."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from stemkv.engine.traces import TraceError, read_trace


def write_lines(path: Path, *records: object) -> Path:
    """Write JSON lines, gzipped if the name says so."""
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def request(milliseconds: float, *ids: int) -> dict[str, object]:
    """Make a record as Mooncake's are."""
    return {"timestamp": milliseconds, "input_length": 512 * len(ids), "hash_ids": [*ids]}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_lines_become_chains_in_order_of_time(tmp_path: Path, name: str) -> None:
    """Requests are sorted by their timestamps, and milliseconds become seconds."""
    path = write_lines(tmp_path / name, request(2500, 7, 8), request(1000, 7), request(3000, 9))
    trace = read_trace(path)
    assert trace.seconds.tolist() == [1.0, 2.5, 3.0]
    assert trace.offsets.tolist() == [0, 1, 3, 4]
    assert trace.blocks.tolist() == [0, 0, 1, 2]
    assert (trace.accesses, trace.distinct, trace.longest) == (4, 3, 2)


def test_an_archive_says_the_same_as_lines(tmp_path: Path) -> None:
    """The NumPy format holds the same trace."""
    path = tmp_path / "trace.npz"
    np.savez(path, off=[0, 1, 3, 4], ids=np.array([7, 7, 8, 9], np.int32), t=[1.0, 2.5, 3.0])
    trace = read_trace(path)
    assert trace.blocks.tolist() == [0, 0, 1, 2]
    assert trace.seconds.tolist() == [1.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ([1], "line 2"),
        ({"timestamp": 1}, "line 2"),
        ({"timestamp": "x", "hash_ids": [1]}, "line 2"),
        ({"timestamp": 1, "hash_ids": [1.5]}, "hash_ids"),
        ({"timestamp": 1, "hash_ids": ["a"]}, "hash_ids"),
        ({"timestamp": 1, "hash_ids": [[1], [2]]}, "hash_ids"),
        ({"timestamp": 1, "hash_ids": [2**70]}, "hash_ids"),
        ({"timestamp": 1, "hash_ids": [[1], 2]}, "line 2"),
        ({"timestamp": float("inf"), "hash_ids": [1]}, "timestamp"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, record: object, named: str) -> None:
    """The error names the file and the line, or the field."""
    path = write_lines(tmp_path / "trace.jsonl", request(0, 1), record)
    with pytest.raises(TraceError, match=named) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_files_that_are_no_traces_are_told(tmp_path: Path) -> None:
    """Absent, empty, binary, cut off: each is one TraceError that names the file."""
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "plain.jsonl.gz").write_bytes(b"not gzip")
    whole = gzip.compress(b'{"timestamp": 0, "hash_ids": [1]}\n' * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_bytes(b"not an archive")
    np.savez(tmp_path / "other.npz", x=[1])
    np.savez(tmp_path / "bad.npz", off=[0, 9], ids=[1, 2], t=[0.0])
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 7
    for name in [*names, "absent.jsonl", "absent.npz"]:
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)
