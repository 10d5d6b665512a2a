"""GSAM, WSAM and LookSAM in NumPy float64, from their papers."""

import numpy as np

from tests.references.base import TreeReference, as_tree, dot, norm, value_at


def gap_direction(gs, hs, alpha):
    """Zhuang et al., Algorithm 1: h less alpha times the part of g at right angles to it."""
    share = dot(gs, hs) / dot(hs, hs)
    return [h - alpha * (g - share * h) for g, h in zip(gs, hs, strict=True)]


def at_right_angles(gs, hs):
    """Liu et al., Algorithm 1: the part of h at right angles to g."""
    share = dot(gs, hs) / dot(gs, gs)
    return [h - share * g for g, h in zip(gs, hs, strict=True)]


def mixed(gs, hs, of_first, of_last):
    """The sum of multiples of both."""
    return [of_first * g + of_last * h for g, h in zip(gs, hs, strict=True)]


def of_two(combine, first):
    """A rule of the last gradients and of `first(gs, ps)`, the first ones."""
    return TreeReference(lambda ps: (), lambda gs, s, ps, t: (combine(first(gs, ps), gs), ()))


def reused(alpha, first, climbed):
    """`reuse_sharpness`, with the first gradients, and whether there was a climb before `gs`."""

    def step(gs, vs, ps, t):
        if climbed(gs):
            return gs, at_right_angles(first(gs, ps), gs)
        size = norm(vs)
        factor = alpha * norm(gs) / size if size else 0.0
        return [g + factor * v for g, v in zip(gs, vs, strict=True)], vs

    return TreeReference(lambda ps: [np.zeros_like(p) for p in ps], step)


def two_calls(outer, climb, plain_steps=0):
    """Climb, step with both gradients, and take plain steps: one gradient a call.

    `outer(gs, hs, state, ps, n)` is the n-th step, where hs is None at a plain one; it begins with
    the state None. `climb` is `climb(gs, ps, number of earlier climbs)`.
    """

    def step(gs, state, ps, t):
        inner, first, place = state
        turn, period = (t - 1) % (2 + plain_steps), (t - 1) // (2 + plain_steps)
        if turn == 0:
            return climb(gs, ps, period), (inner, gs, ps)
        number = period * (1 + plain_steps) + turn
        if turn == 1:
            us, inner = outer(first, gs, inner, place, number)
            back = [f - p + u for f, p, u in zip(place, ps, us, strict=True)]
            return back, (inner, first, place)
        us, inner = outer(gs, None, inner, ps, number)
        return us, (inner, first, place)

    return TreeReference(lambda ps: (None, None, None), step)


def one_call(outer, climb, gradient, plain_steps=0):
    """The same with the gradient as a function of the parameters: a step a call."""

    def step(gs, state, ps, t):
        hs = None
        if (t - 1) % (1 + plain_steps) == 0:
            hs = gradient(
                [
                    p + e
                    for p, e in zip(ps, climb(gs, ps, (t - 1) // (1 + plain_steps)), strict=True)
                ]
            )
        return outer(gs, hs, state, ps, t)

    return TreeReference(lambda ps: None, step)


def up(length, adaptive=False):
    """A climb of length rho, which may be a schedule, along the gradient; or rho p^2 g / |p g|."""

    def climb(gs, ps, n):
        rho = value_at(length, n)
        if adaptive:
            size = norm([p * g for p, g in zip(ps, gs, strict=True)])
            return [rho * p**2 * g / size for p, g in zip(ps, gs, strict=True)]
        return [rho * g / norm(gs) for g in gs]

    return climb


def then(optimizer, combine):
    """An outer step: an optimizer that gets `combine(gs, hs)`."""
    optimizer = as_tree(optimizer)

    def outer(gs, hs, state, ps, n):
        state = optimizer.start(ps) if state is None else state
        return optimizer.step(combine(gs, hs), state, ps, n)

    return outer


def weighted_sharpness(optimizer, rate, gamma):
    """Yue et al., Algorithm 1: the optimizer takes g, and a step of its own h - g."""
    optimizer, a = as_tree(optimizer), gamma / (1 - gamma)

    def outer(gs, hs, state, ps, n):
        state = optimizer.start(ps) if state is None else state
        us, state = optimizer.step(gs, state, ps, n)
        parts = zip(us, gs, hs, strict=True)
        return [u - rate * a * (h - g) for u, g, h in parts], state

    return outer


def looking(optimizer, alpha):
    """Liu et al., Algorithm 1, the steps."""
    optimizer = as_tree(optimizer)

    def outer(gs, hs, state, ps, n):
        inner, vs = (optimizer.start(ps), None) if state is None else state
        if hs is not None:
            vs, gs = at_right_angles(gs, hs), hs
        else:
            factor = alpha * norm(gs) / norm(vs)
            gs = [g + factor * v for g, v in zip(gs, vs, strict=True)]
        us, inner = optimizer.step(gs, inner, ps, n)
        return us, (inner, vs)

    return outer
