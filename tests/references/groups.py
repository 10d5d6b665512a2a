"""The rules of `gradxform/wrappers/param_groups/groups.py` in NumPy float64."""

from tests.references.base import TreeReference, value_at


def param_groups(groups, weight_decay=0.0, learning_rate=1.0):
    """A group for each leaf: (reference, multiplier of the rate, of the decay); None is frozen."""

    def start(ps):
        pairs = zip(groups, ps, strict=True)
        return [() if group is None else group[0].start(p) for group, p in pairs]

    def step(gs, states, ps, t):
        us, new = [], []
        for group, g, s, p in zip(groups, gs, states, ps, strict=True):
            u = 0 * g
            if group is not None:
                rule, a, b = group
                u, s = rule.step(g, s, p, t)
                decay = value_at(learning_rate, t - 1) * weight_decay * b
                u = value_at(a, t - 1) * (u - decay * p)
            us.append(u)
            new.append(s)
        return us, new

    return TreeReference(start, step)
