"""References for `gradxform/wrappers/loss_scale.py`."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def loss_scale(inner, scale, interval, growth, backoff, least, largest):
    """Steps of the inner rule on gradients over the scale, but for those that are not finite."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, s, finite_steps, taken = state
        if not all(np.all(np.isfinite(g)) for g in gs):
            s = s if interval is None else max(backoff * s, least)
            return [np.zeros_like(g) for g in gs], (inner_state, s, 0, taken)
        us, inner_state = part.step([g / s for g in gs], inner_state, ps, taken + 1)
        finite_steps += 1
        if finite_steps == interval:
            s, finite_steps = min(growth * s, largest), 0
        return us, (inner_state, s, finite_steps, taken + 1)

    return TreeReference(lambda ps: (part.start(ps), scale, 0, 0), step)
