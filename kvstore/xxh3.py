"""XXH3, 128 bits, seed 0, for block keys inside compiled loops: parent key, then tokens.

Written from the algorithm's specification (Collet, xxHash, "XXH3 algorithm overview"); its
results are those of the xxhash package, which the tests hold it to. Takes whole words of 8 bytes,
24 to 1024 bytes of them, which is all that block keys need.
"""

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.jit import compiled

U64 = npt.NDArray[np.uint64]

MIN_WORDS, MAX_WORDS = 3, 128

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
# The secret's word at each byte offset.
_AT = np.array(
    [int.from_bytes(_SECRET[i : i + 8], "little") for i in range(len(_SECRET) - 7)], np.uint64
)

_P32_1, _P32_2, _P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
_P64_1, _P64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3, _P64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_P64_5 = np.uint64(0x27D4EB2F165667C5)
_AVALANCHE = np.uint64(0x165667919E3779F9)
_LOW = np.uint64(0xFFFFFFFF)
_32, _37 = np.uint64(32), np.uint64(37)
_ACCUMULATORS = np.array(
    [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64
)


@compiled
def fold(a: np.uint64, b: np.uint64) -> np.uint64:
    """Low half of the 128-bit product, exclusive-or its high half."""
    a_low, a_high = a & _LOW, a >> _32
    b_low, b_high = b & _LOW, b >> _32
    low, middle = a_low * b_low, a_high * b_low
    cross = (low >> _32) + (middle & _LOW) + a_low * b_high
    high = (middle >> _32) + (cross >> _32) + a_high * b_high
    return ((cross << _32) | (low & _LOW)) ^ high


@compiled
def avalanche(h: np.uint64) -> np.uint64:
    """Spread every bit over all."""
    h = (h ^ (h >> _37)) * _AVALANCHE
    return h ^ (h >> _32)


@compiled
def mix(
    low: np.uint64, high: np.uint64, w: U64, i: int, j: int, s: int
) -> tuple[np.uint64, np.uint64]:
    """Mix two words at i and two at j, with the secret from byte s on, into both halves."""
    low = (low + fold(w[i] ^ _AT[s], w[i + 1] ^ _AT[s + 8])) ^ (w[j] + w[j + 1])
    high = (high + fold(w[j] ^ _AT[s + 16], w[j + 1] ^ _AT[s + 24])) ^ (w[i] + w[i + 1])
    return low, high


@compiled
def finish(low: np.uint64, high: np.uint64, length: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Both halves of the hash from both accumulators, for up to 240 bytes."""
    mixed = low * _P64_1 + high * _P64_4 + length * _P64_2
    return avalanche(low + high), np.uint64(0) - avalanche(mixed)


@compiled
def merge(accumulators: U64, s: int, start: np.uint64) -> np.uint64:
    """One half of the hash from the eight accumulators, for more than 240 bytes."""
    h = start
    for i in range(4):
        h += fold(
            accumulators[2 * i] ^ _AT[s + 16 * i], accumulators[2 * i + 1] ^ _AT[s + 16 * i + 8]
        )
    return avalanche(h)


@compiled
def accumulate(accumulators: U64, w: U64, at: int, s: int) -> None:
    """Take in a stripe of eight words."""
    for i in range(8):
        word = w[at + i]
        keyed = word ^ _AT[s + 8 * i]
        accumulators[i ^ 1] += word
        accumulators[i] += (keyed & _LOW) * (keyed >> _32)


@compiled
def long_hash(w: U64, length: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Low and high half for 241 to 1024 bytes."""
    accumulators = _ACCUMULATORS.copy()
    n = w.shape[0]
    for stripe in range((n * 8 - 1) // 64):
        accumulate(accumulators, w, stripe * 8, stripe * 8)
    accumulate(accumulators, w, n - 8, 121)
    low = merge(accumulators, 11, length * _P64_1)
    return low, merge(accumulators, 117, ~(length * _P64_2))


@compiled
def xxh3_128(w: U64) -> tuple[np.uint64, np.uint64]:
    """Return the low and the high 64 bits of the hash of these words, seed 0."""
    n = w.shape[0]
    length = np.uint64(8 * n)
    low, high = length * _P64_1, np.uint64(0)
    if n > 30:
        return long_hash(w, length)
    if n > 16:
        for i in range(4):
            low, high = mix(low, high, w, 4 * i, 4 * i + 2, 32 * i)
        low, high = avalanche(low), avalanche(high)
        for i in range(4, n // 4):
            low, high = mix(low, high, w, 4 * i, 4 * i + 2, 3 + 32 * (i - 4))
        low, high = mix(low, high, w, n - 2, n - 4, 103)
        return finish(low, high, length)
    if n > 12:
        low, high = mix(low, high, w, 6, n - 8, 96)
    if n > 8:
        low, high = mix(low, high, w, 4, n - 6, 64)
    if n > 4:
        low, high = mix(low, high, w, 2, n - 4, 32)
    low, high = mix(low, high, w, 0, n - 2, 0)
    return finish(low, high, length)


@compiled
def swapped(word: np.uint64) -> np.uint64:
    """Return a word with its bytes in the other order."""
    out = np.uint64(0)
    for _ in range(8):
        out = (out << np.uint64(8)) | (word & np.uint64(255))
        word >>= np.uint64(8)
    return out
