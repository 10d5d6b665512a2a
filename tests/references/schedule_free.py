"""The rules of `gradxform/wrappers/schedule_free.py` in NumPy float64."""

from tests.references.base import TreeReference, as_tree, value_at


def schedule_free(inner, rate, b1=0.9, power=2.0, ahead=True, r=0.0, decoupling=None, d=None):
    """Defazio et al., Algorithm 1; the state keeps x and z, the parameters are y.

    With `d`, which reads an estimate from the inner state, the inner part is at z, as in the
    authors' wrapper, and a step weighs by its rate times the estimate after it.
    """
    part = as_tree(inner)

    def start(ps):
        return part.start(ps), [p.copy() for p in ps], [p.copy() for p in ps], 0.0, 0.0

    def step(gs, state, ps, t):
        inner_state, xs, zs, largest, total = state
        us, inner_state = part.step(gs, inner_state, zs if d else ps, t)
        estimate = d(inner_state) if d else 1.0
        largest = max(largest, estimate * value_at(rate, t if ahead else t - 1))
        weight = t**r * largest**power
        total += weight
        c = weight / total if total else 0.0
        if decoupling:
            c = min(1, (1 - b1) * decoupling * c)
        zs = [z + u for z, u in zip(zs, us, strict=True)]
        xs = [(1 - c) * x + c * z for x, z in zip(xs, zs, strict=True)]
        ys = [(1 - b1) * z + b1 * x for x, z in zip(xs, zs, strict=True)]
        updates = [y - p for y, p in zip(ys, ps, strict=True)]
        return updates, (inner_state, xs, zs, largest, total)

    return TreeReference(start, step)
