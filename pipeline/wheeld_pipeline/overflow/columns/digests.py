"""Keys as 128 bits: SipHash-2-4-128 under the overflow's secret, for many keys at once.

The rows of a shard are found by these bits alone. Keys come from untrusted users, so the hash is
keyed: without the secret, nobody finds two keys with the same digest.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), and the authors' reference
code for 128 bits of output.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

SECRET_BYTES: Final = 16
BLOCK: Final = 1 << 14
"""Keys at a time: the arrays of a block stay in the processor's cache."""
Words = npt.NDArray[np.uint64]
_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def digests(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64],
    secret: bytes,
) -> tuple[Words, Words]:  # fmt: skip
    """The digests, two words each, of keys that lie in one buffer: key n begins at `starts[n]` of
    `data` and has `sizes[n]` bytes. `secret` has 16 bytes.
    """
    first, second = np.empty(len(starts), np.uint64), np.empty(len(starts), np.uint64)
    # A word may begin at any byte and reach behind the last key.
    padded = np.concatenate([data, np.zeros(16, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    order = np.argsort(sizes // 8, kind="stable")  # keys of as many words lie together
    for begin in range(0, len(order), BLOCK):
        some = order[begin : begin + BLOCK]
        first[some], second[some] = _block(words, starts[some], sizes[some], secret)
    return first, second


def _block(
    words: Words, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], secret: bytes
) -> tuple[Words, Words]:
    k0, k1 = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    masks = (k0, k1 ^ 0xEE, k0, k1)
    v = [np.full(len(starts), c ^ m, np.uint64) for c, m in zip(_START, masks, strict=True)]
    whole = sizes // 8  # rising: those that still have whole words are at the end
    for at in range(int(whole[-1])):
        more = int(np.searchsorted(whole, at, "right"))
        part = [one[more:] for one in v]
        _take(part, words[starts[more:] + 8 * at])
        for one, new in zip(v, part, strict=True):
            one[more:] = new
    rest = (sizes % 8).astype(np.uint64)
    mask = (np.uint64(1) << (rest * np.uint64(8))) - np.uint64(1)
    length = sizes.astype(np.uint64) << np.uint64(56)
    _take(v, (words[starts + 8 * whole] & mask) | length)
    v[2] ^= np.uint64(0xEE)
    first = _finish(v)
    v[1] ^= np.uint64(0xDD)
    return first, _finish(v)


def _take(v: list[Words], word: Words) -> None:
    v[3] = v[3] ^ word
    _rounds(v, 2)
    v[0] = v[0] ^ word


def _finish(v: list[Words]) -> Words:
    _rounds(v, 4)
    out: Words = v[0] ^ v[1] ^ v[2] ^ v[3]
    return out


def _rounds(v: list[Words], count: int) -> None:
    v0, v1, v2, v3 = v
    for _ in range(count):
        v0 = v0 + v1
        v1 = _left(v1, 13) ^ v0
        v0 = _left(v0, 32)
        v2 = v2 + v3
        v3 = _left(v3, 16) ^ v2
        v0 = v0 + v3
        v3 = _left(v3, 21) ^ v0
        v2 = v2 + v1
        v1 = _left(v1, 17) ^ v2
        v2 = _left(v2, 32)
    v[:] = v0, v1, v2, v3


def _left(word: Words, bits: int) -> Words:
    out: Words = (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))
    return out
