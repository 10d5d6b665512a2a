"""The rules of `gradxform/wrappers/condition.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def at_some_steps(inner, condition, otherwise=np.zeros_like):
    """The inner rule at the steps n = 0, 1, ... where the condition holds."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, taken = state
        if not condition(t - 1):
            return list(map(otherwise, gs)), state
        us, inner_state = part.step(gs, inner_state, ps, taken + 1)
        return us, (inner_state, taken + 1)

    return TreeReference(lambda ps: (part.start(ps), 0), step)
