"""Compressed sums of replicas in NumPy, written from the papers that the docstrings name."""

import numpy as np


def bfloat16(x):
    """Round to 8 binary digits, ties to even."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def int8(block):
    largest = np.max(np.abs(block))
    scale = largest / 127
    return np.round(block / scale) * scale if largest else block


def float8(block, digits=3, largest=448.0, least=2.0**-9):
    top = np.max(np.abs(block))
    if not top:
        return block
    scale = top / largest
    mantissa, exponent = np.frexp(block / scale)
    normal = np.ldexp(np.round(mantissa * 2 ** (digits + 1)) / 2 ** (digits + 1), exponent)
    small = np.round(block / scale / least) * least
    return np.where(np.abs(block / scale) < least * 2**digits, small, normal) * scale


def sign(block):
    magnitude = np.sum(np.abs(block)) / max(np.count_nonzero(block), 1)
    return np.where(block >= 0, 1.0, -1.0) * bfloat16(magnitude)


def top_k(block, k):
    kept = np.zeros_like(block)
    places = np.argsort(-np.abs(block), kind="stable")[:k]
    kept[places] = bfloat16(block[places])
    return kept


def cosines(n):
    """The orthogonal matrix of the discrete cosine transform."""
    basis = np.cos(np.pi * np.outer(np.arange(n), np.arange(n) + 0.5) / n) * np.sqrt(2 / n)
    basis[0] /= np.sqrt(2)
    return basis


def dct_top_k(block, k):
    """The largest coefficients of the orthogonal cosine transform."""
    basis = cosines(len(block))
    return basis.T @ top_k(basis @ block, k)


def by_blocks(code, block):
    """A code of vectors whose blocks are coded one by one."""

    def coded(x):
        return np.concatenate([code(b) for b in x.reshape(-1, block)])

    return coded


def in_two_exchanges(gradients, code, block, decay=1.0):
    """Yield the mean gradient that eight replicas agree on, step by step.

    Every replica codes its gradient and what was left of those before. Replica i adds up the i-th
    piece of all messages, and codes their mean and what was left of the means before. What is left
    of gradients fades by a decay.
    """
    coded = by_blocks(code, block)
    own = mean = None
    for g in gradients:  # (replicas, entries)
        n, size = g.shape
        length = -(-size // (n * block)) * block
        own = np.zeros((n, n * length)) if own is None else own
        mean = np.zeros((n, length)) if mean is None else mean
        wanted = np.pad(g, ((0, 0), (0, n * length - size))) + decay * own
        messages = np.stack([coded(x) for x in wanted])
        own = wanted - messages
        own[:, size:] = 0
        totals = np.mean(messages, axis=0)
        totals[size:] = 0
        totals = totals.reshape(n, length) + mean
        totals.reshape(-1)[size:] = 0
        answers = np.stack([coded(x) for x in totals])
        mean = totals - answers
        yield answers.reshape(-1)[:size]


def powersgd(gradients, right):
    """Yield the mean gradient P Q^T that replicas agree on, step by step (Algorithms 1 and 2)."""
    own = 0
    for g in gradients:  # (replicas, m, n)
        wanted = g + own
        left = np.linalg.qr(np.mean(wanted @ right, axis=0))[0]
        right = np.mean(np.swapaxes(wanted, 1, 2) @ left, axis=0)
        own = wanted - left @ right.T
        yield left @ right.T
