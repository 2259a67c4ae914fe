"""Decode attention on a CPU: each sequence's one query over its cached blocks, read in place.

Work is cut into units of one key/value head and at most CHUNK positions at fixed multiples of
CHUNK, and units are shared among the threads. As the cuts depend on nothing but the position, a
sequence's result does not depend on what else is in the batch, nor on the number of threads.
Partial results merge as in flash-decoding (Dao et al., 2023); sums run online in float32
(Milakov and Gimelshein, 2018).
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from stemkv.kernels.cpu_rows import Rows
from stemkv.kernels.jit import by_type, inlined, parallel, serial

CHUNK = 256  # positions; long enough that a merge costs little, short enough to balance threads

_FLOAT16_INFINITY = np.int32(0x7C00)
_FLOAT32_INFINITY = np.int32(0x7F800000)
_TWO_TO_112 = np.float32(2.0**112)  # difference of the two formats' exponent biases: 127 - 15


class Context(NamedTuple):
    """One layer's cache as the kernels see it; the batch's tables [sequences, max_blocks]."""

    keys: Rows
    values: Rows
    block_tables: npt.NDArray[np.int32]
    block_size: int
    kv_heads: int


class Unit(NamedTuple):
    """Positions start .. end - 1 of a sequence, for one key/value head."""

    sequence: int
    head: int
    start: int
    end: int


def widen(source: Any, target: Any) -> None:
    """Write the values of one row of carrier bits to target [n], as float32, exactly.

    Inside kernels numba puts the loop for the carrier's type in its place; this body is what runs
    with NUMBA_DISABLE_JIT=1.
    """
    if source.dtype == np.uint16:
        target[:] = (source.astype(np.uint32) << 16).view(np.float32)
    elif source.dtype == np.int16:
        target[:] = source.view(np.float16)
    else:
        target[:] = source


def _widen_float32(source: Any, target: Any) -> None:
    for index in range(target.shape[0]):
        target[index] = source[index]


def _widen_bfloat16(source: Any, target: Any) -> None:
    for index in range(target.shape[0]):
        bits = np.uint32(np.uint32(source[index]) << np.uint32(16))
        target[index] = bits.view(np.float32)


def _widen_float16(source: Any, target: Any) -> None:
    # The bits moved into float32's place are the value times 2**-112, subnormals included;
    # infinity and NaN need float32's largest exponent instead.
    for index in range(target.shape[0]):
        bits = np.int32(source[index])
        magnitude = np.int32(bits & np.int32(0x7FFF))
        moved = np.int32(magnitude << np.int32(13))
        scaled = np.float32(moved.view(np.float32) * _TWO_TO_112).view(np.int32)
        special = np.int32(moved | _FLOAT32_INFINITY)
        chosen = special if magnitude >= _FLOAT16_INFINITY else scaled
        signed = np.int32(chosen | (bits & np.int32(-0x80000000)))
        target[index] = signed.view(np.float32)


@by_type(widen)
def _overload_widen(source: Any, target: Any) -> Any:
    del target
    loops = {
        numba.types.float32: _widen_float32,
        numba.types.uint16: _widen_bfloat16,
        numba.types.int16: _widen_float16,
    }
    return loops.get(source.dtype)


@inlined
def exp(x: np.float32) -> np.float32:
    """Return e**x in float32 for x <= 0 (0 .. -87; below, about 1e-38), to about 1e-7.

    Written out so that it vectorises: a call into the maths library does not. NaN stays NaN.
    """
    bounded = np.float32(-87.0) if x < np.float32(-87.0) else x
    power = bounded * np.float32(1.4426950408889634)
    whole = np.floor(power + np.float32(0.5))
    part = power - whole
    # Taylor series of 2**part on -0.5 .. 0.5; the next term is below 6e-9.
    value = np.float32(1.5252733804059838e-05)
    value = value * part + np.float32(1.5403530393381606e-04)
    value = value * part + np.float32(1.3333558146428443e-03)
    value = value * part + np.float32(9.6181291076284770e-03)
    value = value * part + np.float32(5.5504108664821580e-02)
    value = value * part + np.float32(2.4022650695910072e-01)
    value = value * part + np.float32(6.9314718055994530e-01)
    value = value * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return np.float32(value * bits.view(np.float32))


@inlined
def capped(score: np.float32, cap: np.float32) -> np.float32:
    """Return cap * tanh(score / cap)."""
    size = np.float32(abs(score))
    small = exp(np.float32(-2.0) * size / cap)
    bent = cap * (np.float32(1.0) - small) / (np.float32(1.0) + small)
    return np.float32(-bent) if score < np.float32(0.0) else np.float32(bent)


@serial
def _score_rows(queries: Any, rows: Any, count: int, scores: Any) -> None:
    """scores[g, t] = queries[g] · rows[t], for the first count rows."""
    width = queries.shape[1]
    fours = count - count % 4
    for g in range(queries.shape[0]):
        query = queries[g]
        for t in range(0, fours, 4):
            row0, row1, row2, row3 = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
            sum0 = sum1 = sum2 = sum3 = np.float32(0.0)
            for d in range(width):
                sum0 += query[d] * row0[d]
                sum1 += query[d] * row1[d]
                sum2 += query[d] * row2[d]
                sum3 += query[d] * row3[d]
            scores[g, t] = sum0
            scores[g, t + 1] = sum1
            scores[g, t + 2] = sum2
            scores[g, t + 3] = sum3
        for t in range(fours, count):
            row = rows[t]
            total = np.float32(0.0)
            for d in range(width):
                total += query[d] * row[d]
            scores[g, t] = total


@serial
def _mix_rows(weights: Any, rows: Any, count: int, mixed: Any) -> None:
    """mixed[g] += sum over t of weights[g, t] * rows[t], for the first count rows."""
    width = mixed.shape[1]
    fours = count - count % 4
    for g in range(mixed.shape[0]):
        target = mixed[g]
        for t in range(0, fours, 4):
            row0, row1, row2, row3 = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
            weight0, weight1 = weights[g, t], weights[g, t + 1]
            weight2, weight3 = weights[g, t + 2], weights[g, t + 3]
            for d in range(width):
                target[d] += (weight0 * row0[d] + weight1 * row1[d]) + (
                    weight2 * row2[d] + weight3 * row3[d]
                )
        for t in range(fours, count):
            row = rows[t]
            weight = weights[g, t]
            for d in range(width):
                target[d] += weight * row[d]


@serial
def _weigh(scores: Any, count: int, softcap: np.float32, mixed: Any, peak_and_sum: Any) -> None:
    """Turn scores [heads, count] into weights; move what was summed to the new peak."""
    for g in range(scores.shape[0]):
        row = scores[g]
        if softcap > np.float32(0.0):
            for t in range(count):
                row[t] = capped(row[t], softcap)
        peak = peak_and_sum[g, 0]
        for t in range(count):
            peak = max(peak, row[t])
        shrink = exp(peak_and_sum[g, 0] - peak)
        total = np.float32(0.0)
        for t in range(count):
            weight = exp(row[t] - peak)
            row[t] = weight
            total += weight
        peak_and_sum[g, 1] = peak_and_sum[g, 1] * shrink + total
        if peak != peak_and_sum[g, 0]:
            peak_and_sum[g, 0] = peak
            for d in range(mixed.shape[1]):
                mixed[g, d] *= shrink


@serial
def _attend_unit(
    queries: Any, context: Any, unit: Any, softcap: np.float32, mixed: Any, peak_and_sum: Any
) -> None:
    """Fill mixed [heads, head_dim] and peak_and_sum [heads, 2] with one unit's partial result.

    queries: float32 [heads, head_dim], already scaled: the query heads of one key/value head.
    """
    heads, width = queries.shape
    keys, values, block_size = context.keys, context.values, context.block_size
    rows = np.empty((block_size, width), np.float32)
    scores = np.empty((heads, block_size), np.float32)
    mixed[:] = np.float32(0.0)
    peak_and_sum[:, 0] = np.float32(-np.inf)
    peak_and_sum[:, 1] = np.float32(0.0)
    position = unit.start
    while position < unit.end:
        block = np.int64(context.block_tables[unit.sequence, position // block_size])
        offset = position % block_size
        count = min(block_size - offset, unit.end - position)
        first = block * keys.outer + unit.head * keys.middle + offset * keys.inner
        for t in range(count):
            begin = first + t * keys.inner
            widen(keys.flat[begin : begin + width], rows[t])
        _score_rows(queries, rows, count, scores)
        _weigh(scores, count, softcap, mixed, peak_and_sum)
        first = block * values.outer + unit.head * values.middle + offset * values.inner
        for t in range(count):
            begin = first + t * values.inner
            widen(values.flat[begin : begin + width], rows[t])
        _mix_rows(scores, rows, count, mixed)
        position += count


@serial
def _merge(mixed: Any, peak_and_sum: Any, sinks: Any, output: Any) -> None:
    """Merge the partial results of one sequence's chunks.

    mixed: [chunks, heads, head_dim]. peak_and_sum: [chunks, heads, 2]. sinks: [heads], or empty.
    output: [heads, head_dim].
    """
    chunks, heads, width = mixed.shape
    for h in range(heads):
        peak = sinks[h] if sinks.shape[0] else np.float32(-np.inf)
        for c in range(chunks):
            peak = max(peak, peak_and_sum[c, h, 0])
        total = exp(sinks[h] - peak) if sinks.shape[0] else np.float32(0.0)
        for d in range(width):
            output[h, d] = np.float32(0.0)
        for c in range(chunks):
            shrink = exp(peak_and_sum[c, h, 0] - peak)
            total += peak_and_sum[c, h, 1] * shrink
            for d in range(width):
                output[h, d] += mixed[c, h, d] * shrink
        inverse = np.float32(1.0) / total
        for d in range(width):
            output[h, d] *= inverse


@serial
def _chunk_ends(context_lens: Any, sliding_window: int) -> Any:
    """Return int64 [sequences + 1]: sequence s has chunks ends[s] .. ends[s + 1] - 1."""
    ends = np.zeros(context_lens.shape[0] + 1, np.int64)
    for s in range(context_lens.shape[0]):
        first = max(np.int64(0), context_lens[s] - sliding_window) // CHUNK
        ends[s + 1] = ends[s] + (context_lens[s] + CHUNK - 1) // CHUNK - first
    return ends


@parallel
def decode(
    query: Any,
    context: Context,
    context_lens: Any,
    sliding_window: int,
    softcap: np.float32,
    sinks: Any,
) -> Any:
    """Return attention [sequences, heads, head_dim] in float32, one query a sequence.

    query: float32 [sequences, heads, head_dim], contiguous, already scaled. context_lens: int64
    [sequences], each at least 1. sliding_window: positions that a query sees, itself included; a
    number no context reaches means all. softcap: 0 means none. sinks: float32 [heads], or empty.
    """
    sequences, heads, width = query.shape
    keys, values, block_tables, block_size, kv_heads = context
    keys_flat, keys_outer, keys_middle, keys_inner = keys
    values_flat, values_outer, values_middle, values_inner = values
    group = heads // kv_heads
    ends = _chunk_ends(context_lens, sliding_window)
    chunks = ends[sequences]
    mixed = np.empty((chunks, heads, width), np.float32)
    peak_and_sum = np.empty((chunks, heads, 2), np.float32)
    output = np.empty((sequences, heads, width), np.float32)
    for item in numba.prange(chunks * kv_heads):
        chunk = item // kv_heads
        head = item % kv_heads
        s = np.searchsorted(ends, chunk, side="right") - 1
        low = max(np.int64(0), context_lens[s] - sliding_window)
        begin = (low // CHUNK + chunk - ends[s]) * CHUNK
        # numba hands a thread no nested tuples, so the context is put together again here.
        part = Context(
            Rows(keys_flat, keys_outer, keys_middle, keys_inner),
            Rows(values_flat, values_outer, values_middle, values_inner),
            block_tables,
            block_size,
            kv_heads,
        )
        unit = Unit(s, head, max(low, begin), min(context_lens[s], begin + CHUNK))
        mine = slice(head * group, (head + 1) * group)
        _attend_unit(
            query[s, mine], part, unit, softcap, mixed[chunk, mine], peak_and_sum[chunk, mine]
        )
    for s in range(sequences):
        spread = slice(ends[s], ends[s + 1])
        _merge(mixed[spread], peak_and_sum[spread], sinks, output[s])
    return output
