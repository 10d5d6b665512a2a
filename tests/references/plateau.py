"""The rule of `gradxform/transforms/plateau.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference


def plateau(factor, patience, rtol=1e-4, atol=0.0, cooldown=0, size=1, min_scale=0.0, value=0.0):
    """A factor that falls when means of `size` losses stop improving; `value` is every loss."""

    def start(ps):
        return {"s": 1.0, "best": np.inf, "bad": 0, "wait": 0, "seen": []}

    def step(gs, state, ps, t):
        now = dict(state, seen=[*state["seen"], value(t) if callable(value) else value])
        if len(now["seen"]) == size:
            mean, now["seen"] = sum(now["seen"]) / size, []
            better = now["best"] == np.inf or mean < now["best"] - rtol * abs(now["best"]) - atol
            if better:
                now["best"] = mean
            if now["wait"]:
                now["wait"], now["bad"] = now["wait"] - 1, 0
            else:
                now["bad"] = 0 if better else now["bad"] + 1
                if now["bad"] == patience:
                    now.update(s=max(now["s"] * factor, min_scale), bad=0, wait=cooldown)
        return [now["s"] * g for g in gs], now

    return TreeReference(start, step)
