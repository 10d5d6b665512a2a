"""Complex parameters as two real ones, in NumPy."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def parts(inner):
    """The inner rule on all real parts, then on all imaginary ones."""
    rule = as_tree(inner)

    def both(xs):
        return [np.real(x).copy() for x in xs] + [np.imag(x).copy() for x in xs]

    def step(gs, state, ps, t):
        us, state = rule.step(both(gs), state, both(ps), t)
        n = len(gs)
        pairs = zip(gs, us[:n], us[n:], strict=True)
        return [a + 1j * b if np.iscomplexobj(g) else a for g, a, b in pairs], state

    return TreeReference(lambda ps: rule.start(both(ps)), step)
