"""The rule of `gradxform/wrappers/reset.py` in NumPy float64."""

from tests.references.base import TreeReference, as_tree


def reset(inner, every, counts=True):
    """The inner rule, begun anew before every step that `every` divides."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, n = state
        if t % every == 0:
            inner_state, n = part.start(ps), 0 if counts else n
        us, inner_state = part.step(gs, inner_state, ps, n + 1)
        return us, (inner_state, n + 1)

    return TreeReference(lambda ps: (part.start(ps), 0), step)
