"""The rules of `gradxform/transforms/spikes.py` and `wrappers/spikes.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree, norm


class Statistics:
    """Mean and variance: of the first numbers as NumPy has them, then moving averages."""

    def __init__(self, decay, sample):
        self.decay, self.sample, self.first, self.mean, self.var = decay, sample, [], 0.0, 0.0

    @property
    def ready(self):
        return len(self.first) >= self.sample

    def add(self, x):
        if not self.ready:
            self.first.append(x)
            self.mean, self.var = np.mean(self.first), np.var(self.first)
            return
        self.mean = self.decay * self.mean + (1 - self.decay) * x
        self.var = self.decay * self.var + (1 - self.decay) * (x - self.mean) ** 2


def zclip(decay, z_threshold, warmup_steps, eps):
    """Kumar et al., Algorithm 1."""

    def step(gs, s, ps, t):
        size = clipped = norm(gs)
        if s.ready:
            z = (size - s.mean) / (np.sqrt(s.var) + eps)
            if z > z_threshold:
                clipped = s.mean + z_threshold**2 / z * np.sqrt(s.var)
        s.add(clipped)
        return [g * clipped / size for g in gs], s

    return TreeReference(lambda ps: Statistics(decay, warmup_steps), step)


def adagc(lambda_abs, lambda_rel, beta, warmup_steps):
    """Wang et al., Algorithm 1."""

    def step(gs, gammas, ps, t):
        h = [min(1.0, lambda_abs / norm(gs))] * len(gs)
        if t > warmup_steps:
            h = [
                min(1.0, lambda_rel * y / norm([g])) if y < np.inf else 1.0
                for g, y in zip(gs, gammas, strict=True)
            ]
        us = [x * g for x, g in zip(h, gs, strict=True)]
        for i, u in enumerate(us):
            size = norm([u])
            if t <= warmup_steps or gammas[i] == np.inf:
                gammas[i] = min(gammas[i], size)
            else:
                gammas[i] = beta * gammas[i] + (1 - beta) * size
        return us, gammas

    return TreeReference(lambda ps: [np.inf] * len(ps), step)


def clip_to_zero(max_norm):
    """RETURNN's option: zeros for a gradient whose norm is not at most `max_norm`."""

    def step(gs, s, ps, t):
        return [g if norm(gs) <= max_norm else np.zeros_like(g) for g in gs], s

    return TreeReference(lambda ps: None, step)


def skip_loss_spikes(inner, losses, deviations, factor, decay, warmup_steps, patience):
    """Steps of the inner rule but for spikes of the loss, which is `losses(gs)`."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, s, skips, taken = state
        loss = losses(gs)
        spike = s.ready and (
            (deviations < np.inf and loss > s.mean + deviations * np.sqrt(s.var))
            or (factor < np.inf and loss > factor * s.mean > 0)
        )
        if not np.isfinite(loss) or (spike and skips < patience):
            return [np.zeros_like(g) for g in gs], (inner_state, s, skips + 1, taken)
        if spike:
            s = Statistics(decay, warmup_steps)
        s.add(loss)
        us, inner_state = part.step(gs, inner_state, ps, taken + 1)
        return us, (inner_state, s, 0, taken + 1)

    return TreeReference(lambda ps: (part.start(ps), Statistics(decay, warmup_steps), 0, 0), step)
