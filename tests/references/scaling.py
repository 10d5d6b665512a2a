"""The rules of `gradxform/transforms/scaling.py` in NumPy float64."""

from tests.references.base import stateless, value_at


def scale(factor):
    """Factor times g; the factor may be a function of the number of earlier steps."""
    return stateless(lambda g, p, t: value_at(factor, t - 1) * g)


def decay(wd, selected=lambda p: True):
    """Weight decay."""
    return stateless(lambda g, p, t: g + value_at(wd, t - 1) * p if selected(p) else g)


def proximal_decay(wd, selected=lambda p: True):
    """Xie et al., Adan: the parameter after its step over 1 + wd."""

    def f(g, p, t):
        return (p + g) / (1 + value_at(wd, t - 1)) - p if selected(p) else g

    return stateless(f)


def decay_down(wd):
    """Decoupled weight decay after the learning rate."""
    return stateless(lambda g, p, t: g - wd * p)
