"""Philox-4x32-10: random numbers by position instead of by history.

A usual generator carries a state from draw to draw, so that a request's text would depend on how many draws came
before. Philox is a keyed scrambling of a counter: the draw of (seed, position) is the same alone, in a batch of 64,
after a preemption that recomputes the sequence, or on another worker; there is no state to keep, move or lose. Source:
Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2 and section 3.3.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["philox4x32", "uniform", "uniform_one"]

UInt64Array = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio and √3 − 1, as fractions of 2³²
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: UInt64Array, key: UInt64Array) -> UInt64Array:
    """Scramble counters [N, 4] under keys [N, 2] → [N, 4]; words of 32 bits, held in 64 for their products."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=1)


def uniform(seeds: UInt64Array, counters: UInt64Array) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair of 64-bit seed and 64-bit counter: two arrays [N] → [N], 53 bits each."""
    zero = np.zeros_like(counters)
    counter = np.stack([counters & _LOW, counters >> _HALF, zero, zero], axis=1)
    words = philox4x32(counter, np.stack([seeds & _LOW, seeds >> _HALF], axis=1))
    bits = (words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def uniform_one(seed: int, counter: int) -> float:
    """The same for one pair. Up to sixteen of these cost less than the calls that NumPy needs for any number."""
    c0, c1, c2, c3 = counter & 0xFFFFFFFF, counter >> 32, 0, 0
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & 0xFFFFFFFF, (first >> 32) ^ c3 ^ k1, first & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return float((c0 << 21) | (c1 >> 11)) * 2.0**-53
