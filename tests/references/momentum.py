"""The rules of `gradxform/transforms/momentum.py` in NumPy float64."""

from tests.references.base import Reference, zeros


def trace(mu, nesterov=False):
    """Sutskever et al., (1-4), without the learning rate."""

    def step(g, slots, p, t):
        m = mu * slots[0] + g
        return (mu * m + g if nesterov else m), (m,)

    return Reference(zeros(1), step)


def ema(b, debias):
    """A moving average; debiased as in Adam, section 3."""

    def step(g, slots, p, t):
        m = b * slots[0] + (1 - b) * g
        return (m / (1 - b**t) if debias else m), (m,)

    return Reference(zeros(1), step)


def aggmo(*betas):
    """Lucas et al., equation (2), without the learning rate."""

    def step(g, slots, p, t):
        slots = tuple(b * m + g for b, m in zip(betas, slots, strict=True))
        return sum(slots) / len(betas), slots

    return Reference(zeros(len(betas)), step)
