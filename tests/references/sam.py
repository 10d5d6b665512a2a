"""Sharpness-aware minimization in NumPy float64."""

from tests.references.base import TreeReference, as_tree


def sam(outer, climb, period, reset=True):
    """Foret et al., Algorithm 1, one call for each gradient: climb, and step from the start."""
    outer, climb = as_tree(outer), as_tree(climb)

    def start(ps):
        return outer.start(ps), climb.start(ps), ps

    def step(gs, state, ps, t):
        outer_state, climb_state, first = state
        turn, period_number = (t - 1) % period, (t - 1) // period
        first = ps if turn == 0 else first
        if turn < period - 1:
            when = turn + 1 if reset else period_number * (period - 1) + turn + 1
            us, climb_state = climb.step(gs, climb_state, ps, when)
            return [-u for u in us], (outer_state, climb_state, first)
        us, outer_state = outer.step(gs, outer_state, first, period_number + 1)
        back = [f - p + u for f, p, u in zip(first, ps, us, strict=True)]
        climb_state = climb.start(ps) if reset else climb_state
        return back, (outer_state, climb_state, first)

    return TreeReference(start, step)


def sam_at_once(outer, climb, period, gradient):
    """The same with the gradient as a function of parameters and turn; resets after a period."""
    outer, climb = as_tree(outer), as_tree(climb)

    def step(gs, state, ps, t):
        place, climb_state = ps, climb.start(ps)
        for i in range(period - 1):
            us, climb_state = climb.step(gs, climb_state, place, i + 1)
            place = [p - u for p, u in zip(place, us, strict=True)]
            gs = gradient(place, i)
        return outer.step(gs, state, ps, t)

    return TreeReference(outer.start, step)
