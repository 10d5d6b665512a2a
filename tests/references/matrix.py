"""The rules of whole matrices."""

import numpy as np

from tests.references.base import Reference, TreeReference, stateless, zeros


def shampoo(
    learning_rate=1.0,
    max_matrix_size=768,
    gbar_decay=0.0,
    gbar_weight=1.0,
    mat_gbar_decay=1.0,
    mat_gbar_weight=1.0,
    svd_interval=1,
    precond_update_interval=1,
    epsilon=1e-4,
    alpha=0.5,
    first_step=0,
):
    """Gupta et al., Algorithm 2, with the options of TensorFlow's contrib optimizer."""

    def start(p):
        shape = p.shape or (1,)
        whole = [d <= max_matrix_size for d in shape]
        return (
            np.zeros(shape),
            [np.zeros((d, d) if w else d) for d, w in zip(shape, whole, strict=True)],
            [np.eye(d) for d in shape],
        )

    def step(g, slots, p, t):
        T = float(t + first_step)

        def at(x):
            return float(x(T)) if callable(x) else x

        gbar, G, H = slots
        x, a, every = g.reshape(gbar.shape), at(alpha), at(precond_update_interval)
        gbar = at(gbar_decay) * gbar + at(gbar_weight) * x
        G, H, k, u = list(G), list(H), x.ndim, gbar
        for i, d in enumerate(x.shape):
            rows = np.moveaxis(x, i, 0).reshape(d, -1)
            if G[i].ndim == 1:
                G[i] = at(mat_gbar_decay) * G[i] + at(mat_gbar_weight) * np.sum(rows**2, 1) / (
                    d if k > 1 else 1
                )
                H[i] = np.diag([v ** (-a / k) if v else 0.0 for v in G[i]])
            else:
                if T % every < 1:
                    G[i] = at(mat_gbar_decay) * G[i] + at(mat_gbar_weight) * every * rows @ rows.T
                if at(svd_interval) <= 1 or T % at(svd_interval) < 1:
                    w, V = np.linalg.eigh(G[i] / d + epsilon * np.eye(d))
                    H[i] = V * np.maximum(w, epsilon) ** (-a / k) @ V.T
            u = np.moveaxis(np.tensordot(H[i], u, (1, i)), 0, i)
        return -at(learning_rate) * u.reshape(g.shape), (gbar, G, H)

    return Reference(start, step)


def ggt(b1=0.9, window=10, eps=1e-4, svd_eps=1e-6, sigma_eps=1e-2):
    """Agarwal et al., Algorithm 1, with the options of TensorFlow's contrib optimizer."""

    def start(ps):
        n = sum(p.size for p in ps)
        return np.zeros(n), np.zeros((window, n))

    def step(gs, state, ps, t):
        m, buffer = state
        m = b1 * m + (1 - b1) * np.concatenate([g.ravel() for g in gs])
        buffer = buffer.copy()
        buffer[(t - 1) % window] = m
        M = buffer.T / np.sqrt(min(t, window))
        s, U = np.linalg.eigh(M.T @ M + svd_eps * np.eye(window))
        s = np.maximum(s, svd_eps)
        c = U.T @ M.T @ m
        u = M @ U @ (c / (np.sqrt(s) + sigma_eps) ** 3)
        if np.sqrt(s.min()) > eps:
            u = u + (m - M @ U @ (c / s)) / np.sqrt(s.min())
        ends = np.cumsum([g.size for g in gs])[:-1]
        return [x.reshape(g.shape) for x, g in zip(np.split(u, ends), gs, strict=True)], (m, buffer)

    return TreeReference(start, step)


STANDARD = [(3.4445, -4.7750, 2.0315)] * 5


def _newton_schulz(x, turns, eps):
    """Jordan et al.: X / (|X|_F + eps), then X <- a X + b (X X^T) X + c (X X^T)^2 X."""
    x = x / (np.linalg.norm(x) + eps)
    for a, b, c in turns:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def muon(beta=0.95, turns=STANDARD, nesterov=True, columns=1, eps=1e-8):
    """Jordan et al., with Adam's bias corrections; rows are axis 0, other axes are batches."""

    def step(g, slots, p, t):
        m = beta * slots[0] + (1 - beta) * g
        a = m / (1 - beta**t)
        if nesterov:
            a = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        a = np.moveaxis(a, (0, columns), (-2, -1))
        u = np.empty_like(a)
        for i in np.ndindex(a.shape[:-2]):
            u[i] = _newton_schulz(a[i], turns, eps)
        return np.moveaxis(u, (-2, -1), (0, columns)), (m,)

    return Reference(zeros(1), step)


def shape_factor(consistent_rms=None):
    """Liu et al., (4); without it sqrt(max(1, columns / rows)), of the first and the last axis."""

    def f(g, p, t):
        n, k = g.shape[0], g.shape[-1]
        if consistent_rms is None:
            return g * np.sqrt(max(1, k / n))
        return g * consistent_rms * np.sqrt(max(n, k))

    return stateless(f)


def galore(rank, gap, scale, base):
    """Zhao et al., Algorithm 1, for matrices; other arrays go to the base as they are."""

    def projector(g):
        u, _, vt = np.linalg.svd(g, full_matrices=False)
        return u[:, :rank] if g.shape[0] >= g.shape[1] else vt[:rank].T

    def start(p):
        if p.ndim != 2:
            return None, base.start(p)
        P = np.zeros((max(p.shape), min(rank, *p.shape)))
        return P, base.start(P.T @ p if p.shape[0] >= p.shape[1] else p @ P)

    def step(g, slots, p, t):
        P, held = slots
        if g.ndim != 2:
            u, held = base.step(g, held, p, t)
            return u, (None, held)
        P = projector(g) if (t - 1) % gap == 0 else P
        left = g.shape[0] >= g.shape[1]
        s, held = base.step(P.T @ g if left else g @ P, held, p, t)
        return scale * (P @ s if left else s @ P.T), (P, held)

    return Reference(start, step)
