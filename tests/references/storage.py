"""The storages of `gradxform/wrappers/stored/storage.py` in NumPy float64."""

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

    return _kept(reference, lambda slots: [kept(x, s) for x, s in zip(slots, signed, strict=True)])


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


def in_squares(reference, signed, block):
    """A rule whose slots are 4-bit numbers, up to the smaller maximum of a row and a column.

    Without a sign the numbers are sixteenths, from the first one on. Vectors are in blocks.
    """

    def kept(x, is_signed):
        if not x.ndim or not x.size:
            return x
        rows = x if x.ndim > 1 else x[None]
        out = np.empty_like(rows)
        height = block if x.ndim > 1 else 1
        for i in range(0, rows.shape[-2], height):
            for j in range(0, rows.shape[-1], block):
                part = rows[..., i : i + height, j : j + block]
                tops = (np.max(np.abs(part), axis=axis, keepdims=True) for axis in (-1, -2))
                top = np.minimum(*tops) if x.ndim > 1 else next(tops)
                share = part / np.where(top == 0, 1, top)
                if is_signed:
                    share = few_bits(share, True, 1, 4)
                else:
                    share = np.clip(np.round(share * 16), 1, 16) / 16
                out[..., i : i + height, j : j + block] = top * share
        return out.reshape(x.shape)

    return _kept(reference, lambda slots: [kept(x, s) for x, s in zip(slots, signed, strict=True)])


def factored(reference, which, smallest=128):
    """A rule of which one slot is the product of its row and column means over the mean of all."""

    def kept(v):
        axes = sorted(range(v.ndim), key=lambda k: v.shape[k])[-2:]
        if v.ndim < 2 or v.shape[axes[0]] < smallest:
            return v
        r, c = (v.mean(axis=axis, keepdims=True) for axis in axes[::-1])
        mean = r.mean(axis=axes[0], keepdims=True)
        return np.where(mean == 0, 0, r * c / np.where(mean == 0, 1, mean))

    return _kept(
        reference, lambda slots: [kept(x) if i == which else x for i, x in enumerate(slots)]
    )


def _kept(reference, change):
    """A rule whose slots are changed after each step."""

    def step(g, slots, p, t):
        u, new = reference.step(g, slots, p, t)
        return u, tuple(change(new))

    return Reference(reference.start, step)


def in_bfloat16(reference):
    """A rule whose slots are rounded to bfloat16."""

    return _kept(
        reference, lambda slots: [x.astype(ml_dtypes.bfloat16).astype(np.float64) for x in slots]
    )
