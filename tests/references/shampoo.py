"""The rules of `gradxform/transforms/shampoo/shampoo.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


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
