"""The rule of `gradxform/wrappers/overwrite.py` in NumPy float64."""

from tests.references.base import TreeReference, as_tree


def overwriting_average(inner, decay, every=None, micro_steps=1, from_first_step=True):
    """Keras's: the parameters become their average where `every` divides the steps so far."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, averages = state
        us, inner_state = part.step(gs, inner_state, ps, t)
        steps = (t - 1) // micro_steps
        d = 0.0 if from_first_step and steps == 0 else decay
        averages = [d * a + (1 - d) * (p + u) for a, p, u in zip(averages, ps, us, strict=True)]
        if every and (steps + 1) % every == 0:
            us = [a - p for a, p in zip(averages, ps, strict=True)]
        return us, (inner_state, averages)

    return TreeReference(lambda ps: (part.start(ps), [p.copy() for p in ps]), step)
