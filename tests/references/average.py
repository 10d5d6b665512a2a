"""The rules of `gradxform/wrappers/average.py` in NumPy float64.

Each follows an inner rule; its state is the inner state and the averages of the new parameters.
"""

from tests.references.base import TreeReference, as_tree


def _averaging(inner, first, advance):
    """`advance(average, p, t)` returns the average of one array after step t; `first(p)` before."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, averages = state
        us, inner_state = part.step(gs, inner_state, ps, t)
        new = [p + u for p, u in zip(ps, us, strict=True)]
        averages = [advance(a, p, t) for a, p in zip(averages, new, strict=True)]
        return us, (inner_state, averages)

    return TreeReference(lambda ps: (part.start(ps), [first(p) for p in ps]), step)


def moving_average(inner, decay, warm=lambda t: None):
    """TensorFlow's: the average begins at the parameters; `warm(t)` is num_updates after step t."""

    def advance(average, p, t):
        k = warm(t)
        d = decay if k is None else min(decay, (1 + k) / (10 + k))
        return average - (1 - d) * (average - p)

    return _averaging(inner, lambda p: p.copy(), advance)


def debiased_average(inner, decay, warm=lambda t: None):
    """The sum of what each step put in, over the sum of the weights; before any the parameters."""

    def first(p):
        return [(p, 0.0)]

    def advance(terms, p, t):
        k = warm(t)
        d = decay if k is None else min(decay, (1 + k) / (10 + k))
        return [(q, d * w) for q, w in terms] + [(p, 1 - d)]

    return _averaging(inner, first, advance)


def mean_of_terms(terms):
    """What the terms of a debiased average come to."""
    weight = sum(w for _, w in terms)
    return sum(w * q for q, w in terms) / weight if weight else terms[0][0]


def equal_average(inner, start, period):
    """Izmailov et al.: the mean of the parameters at every period-th step from `start`."""

    def advance(seen, p, t):
        if t <= start:
            return [p]
        return [*seen, p] if (t - start) % period == 0 else seen

    return _averaging(inner, lambda p: [p.copy()], advance)
