"""The storages of `gradxform/wrappers/storage.py` in NumPy float64."""

import ml_dtypes
import numpy as np

from tests.references.base import Reference


def in_blocks(reference, signed, block=256, mantissa=3, bits=8):
    """A rule whose slots are rounded to floats of a few bits, up to the largest of each block.

    `signed` says of each slot whether it has a sign. An array without dimensions is left alone.
    """

    def kept(x, is_signed):
        if not x.ndim or not x.size:
            return x
        n, out = x.shape[-1], np.empty_like(x)
        for start in range(0, n, block):
            part = x[..., start : start + block]
            top = np.max(np.abs(part), axis=-1, keepdims=True)
            share = part / np.where(top == 0, 1, top)
            out[..., start : start + block] = top * few_bits(share, is_signed, mantissa, bits)
        return out

    def step(g, slots, p, t):
        u, new = reference.step(g, slots, p, t)
        return u, tuple(kept(x, s) for x, s in zip(new, signed, strict=True))

    return Reference(reference.start, step)


def few_bits(x, is_signed, mantissa, bits):
    """The nearest of the numbers of a code up to 1: `2**mantissa` to each power of two."""
    count = 2 ** (bits - is_signed) - 1
    octaves, part = np.divmod(np.arange(count), 2**mantissa)
    numbers = np.concatenate([[0], np.sort((1 - part / 2 ** (mantissa + 1)) * 2.0**-octaves)])
    size = np.abs(x)
    above = np.clip(np.searchsorted(numbers, size), 1, count)
    low, high = numbers[above - 1], numbers[above]
    nearest = np.where(size - low < high - size, low, high)
    if not is_signed:
        nearest = np.where((size > 0) & (nearest == 0), numbers[1], nearest)
    return np.sign(x) * nearest


def in_bfloat16(reference):
    """A rule whose slots are rounded to bfloat16."""

    def step(g, slots, p, t):
        u, new = reference.step(g, slots, p, t)
        return u, tuple(x.astype(ml_dtypes.bfloat16).astype(np.float64) for x in new)

    return Reference(reference.start, step)
