"""The wrapper of `gradxform/wrappers/stacked.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def stacked(inner, stacks, axis=0):
    """Each layer along an axis is an array of its own to the inner rule.

    `stacks` are the indices of the stacked parameters among the leaves.
    """
    rule = as_tree(inner)

    def parted(xs):
        return [
            layer
            for i, x in enumerate(xs)
            for layer in (np.moveaxis(x, axis, 0) if i in stacks else [x])
        ]

    def joined(us, ps):
        rest, out = iter(us), []
        for i, p in enumerate(ps):
            if i in stacks:
                layers = [next(rest) for _ in range(p.shape[axis])]
                out.append(np.moveaxis(np.stack(layers), 0, axis))
            else:
                out.append(next(rest))
        return out

    def start(ps):
        return rule.start(parted(ps))

    def step(gs, state, ps, t):
        us, state = rule.step(parted(gs), state, parted(ps), t)
        return joined(us, gs), state

    return TreeReference(start, step)
