"""Workload traces: requests with a time, each a chain of block ids from the root to the tail.

Two formats are read. JSON lines, gzipped or not, as Mooncake published them (Qin et al., FAST
2025): {"timestamp": milliseconds, "hash_ids": [...], ...}. NumPy archives: `off` [requests + 1]
offsets into `ids`, and `t` [requests] seconds.
"""

import gzip
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stemkv.policies.eviction.optimal import number_chains

I64 = npt.NDArray[np.int64]


class TraceError(Exception):
    """A trace cannot be read; one line with the file, the place and the cause."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of time.

    offsets: int64 [requests + 1], where each request's chain starts in blocks. blocks: int64, a
    number from 0 for each distinct block; a block is its id and all that precede it. seconds:
    float64 [requests].
    """

    offsets: I64
    blocks: I64
    seconds: npt.NDArray[np.float64]

    @property
    def accesses(self) -> int:
        """Blocks of all requests."""
        return len(self.blocks)

    @property
    def distinct(self) -> int:
        """Different blocks."""
        return int(self.blocks.max()) + 1

    @property
    def longest(self) -> int:
        """Blocks of the longest request."""
        return int(np.diff(self.offsets).max())


def read_trace(path: Path) -> Trace:
    """Read a trace; raises TraceError."""
    try:
        offsets, ids, seconds = _read_npz(path) if path.suffix == ".npz" else _read_lines(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not len(ids):
        raise TraceError(f"{path}: no request has a block")
    order = np.argsort(seconds, kind="stable")
    if (order[1:] < order[:-1]).any():
        chains = [ids[offsets[r] : offsets[r + 1]] for r in order]
        offsets = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])])
        ids, seconds = np.concatenate(chains), seconds[order]
    return Trace(offsets, number_chains(offsets, ids), seconds)


def _read_lines(path: Path) -> tuple[I64, I64, npt.NDArray[np.float64]]:
    lengths, chains, seconds = [0], [np.empty(0, np.int64)], []
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    chain, when = _parse(line, f"{path}, line {number}")
                    chains.append(chain)
                    lengths.append(len(chain))
                    seconds.append(when)
        except (UnicodeDecodeError, EOFError) as error:
            raise TraceError(f"{path}: not text: {error}") from error
    return np.cumsum(lengths), np.concatenate(chains), np.array(seconds)


def _parse(line: str, where: str) -> tuple[I64, float]:
    try:
        record: Any = json.loads(line)
        chain = np.array(record["hash_ids"])
        when = float(record["timestamp"]) / 1000
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise TraceError(f'{where}: not {{"timestamp": ms, "hash_ids": [...]}}') from error
    if chain.ndim != 1 or (len(chain) and chain.dtype.kind != "i"):
        raise TraceError(f"{where}: hash_ids: not a list of integers of 64 bits")
    if not np.isfinite(when):
        raise TraceError(f"{where}: timestamp: {when} is not finite")
    return chain.astype(np.int64), when


def _read_npz(path: Path) -> tuple[I64, I64, npt.NDArray[np.float64]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            offsets, ids, seconds = (np.asarray(arrays[name]) for name in ("off", "ids", "t"))
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: not an archive of off, ids and t: {error}") from error
    integers = offsets.dtype.kind in "iu" and ids.dtype.kind in "iu" and seconds.dtype.kind in "iuf"
    if not integers or any(array.ndim != 1 for array in (offsets, ids, seconds)):
        raise TraceError(f"{path}: off and ids are not lists of integers, or t not of numbers")
    fits = len(offsets) == len(seconds) + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
    if not fits or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise TraceError(f"{path}: off does not cut ids into one chain for each of t")
    if not np.isfinite(seconds).all():
        raise TraceError(f"{path}: t: not all finite")
    return offsets.astype(np.int64), ids.astype(np.int64), seconds.astype(np.float64)
