"""Replay recordings of PyTorch's optimizers: their parameters after each of twelve updates.

`tests/golden/torch/` holds them, in float64, with the gradients that every optimizer got. Matrices
there have outputs first, and kernels have the axes OIHW; here they are turned to (in, out) and
HWIO, as layers of Flax have them.
"""

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx

FOLDER = Path(__file__).parent.parent / "golden" / "torch"
STEPS = 12


class Recording(NamedTuple):
    """What one optimizer of PyTorch computed."""

    name: str
    kwargs: dict[str, Any]  # what the optimizer was made with
    mode: str  # where its gradients came from
    moved: dict[str, float]  # how far it moved the entries of each leaf at most
    arrays: dict[str, np.ndarray]

    def tree(self, kind: str, t: int | None = None) -> dict[str, np.ndarray]:
        """Return the arrays `kind`/<leaf> as a tree in the layout of Flax, at update `t`.

        A table whose rows have gradients is not turned: its rows are rows in Flax too.
        """
        found = {leaf: self.arrays[f"{kind}/{leaf}"] for leaf in self.moved}
        found = {leaf: x if t is None else x[t] for leaf, x in found.items()}
        return found if self.mode == "sparse" else {leaf: turned(x) for leaf, x in found.items()}

    def difference(
        self, params: list[Any], kind: str = "params", leaves: tuple[str, ...] = ()
    ) -> float:
        """Return the largest difference of entries, relative to how far their leaf was moved.

        Args:
          params: the parameters after each update, or after the first few.
          kind: what they are compared with; what was recorded once is that after the last update.
          leaves: which are compared, if not all.
        """
        least = 1e-3 * max(self.moved.values())
        largest = 0.0
        for leaf in leaves or self.moved:
            moved, want = self.moved[leaf], self.arrays[f"{kind}/{leaf}"]
            back = [p[leaf] if self.mode == "sparse" else turned(p[leaf], True) for p in params]
            ours = np.stack([np.asarray(x) for x in back])
            if ours.ndim == want.ndim:
                want = want[: len(ours)]
            else:
                ours = ours[-1]
            apart = float(np.max(np.abs(ours - want)))
            assert np.isfinite(apart)
            largest = max(largest, apart / max(moved, least))
        return largest


def turned(x: Any, back: bool = False) -> np.ndarray:
    """Return an array of PyTorch with its axes as Flax has them; the inverse if `back`."""
    x = np.asarray(x)
    order = {2: (1, 0), 4: (2, 3, 1, 0)}.get(x.ndim, tuple(range(x.ndim)))
    return np.transpose(x, np.argsort(order) if back else order)


@functools.cache
def described() -> dict[str, Any]:
    """Return what was recorded, by name."""
    text = json.loads((FOLDER / "recordings.json").read_text("utf-8"))
    return {row["name"]: row for row in text["recordings"]}


def file_of(name: str) -> str:
    """Return the file of a recording: of the defaults of a class, unless its row names another."""
    return described()[name].get("file", f"{name}.A.npz")


@functools.cache
def recording(name: str) -> Recording:
    """Return a recording, with its inputs."""
    row = described()[name]
    arrays = {}
    for file in ("inputs.s11.npz", file_of(name)):
        with np.load(FOLDER / file) as z:
            arrays |= {key: z[key] for key in z.files}
    return Recording(name, row["kwargs"], row["mode"], row["moved"], arrays)


# The gradients of update t, and what `update` gets besides, from the parameters before it.
Inputs = Callable[[Recording, int, Any], tuple[Any, dict[str, Any]]]


def gradients(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the recorded gradients."""
    return recorded.tree("grad", t), {}


def hessians(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the recorded gradients and the diagonal of the Hessian that came with them."""
    h, c = recorded.tree("loss/h"), recorded.tree("loss/c")
    diagonal = jax.tree.map(lambda h, c: h * np.cos(0.4 * t) - 0.3 * (c > 0.5), h, c)
    return recorded.tree("grad", t), {"hessian_diagonal": diagonal}


def rows(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the rows of the recorded gradients that were drawn for this update."""
    grads = {}
    for leaf, g in recorded.tree("grad", t).items():
        drawn = np.random.default_rng(1100 + t).choice(len(g), 3, replace=False)
        rows = jnp.asarray(np.sort(drawn), jnp.int32)
        grads[leaf] = gx.sparse.RowSparse(rows, jnp.asarray(g)[rows], len(g))
    return grads, {}


def values(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the recorded gradients and the loss that came with them."""
    value = jnp.asarray(np.random.default_rng(18).uniform(0.2, 3, STEPS)[t])
    return recorded.tree("grad", t), {"value": value}


def losses(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the gradients of the loss, and the function that has others for who asks."""
    grad = jax.grad(loss_of(recorded))
    return grad(params), {"grad_fn": lambda p, i: grad(p)}


def logits(recorded: Recording, t: int, params: Any) -> tuple[Any, dict[str, Any]]:
    """Return the recorded gradients and the largest logits of two heads."""
    largest = np.random.default_rng(5).uniform(20, 300, (STEPS, 2))[t]
    return recorded.tree("grad", t), {"max_logits": {"attn": jnp.asarray(largest)}}


def nothing_drawn(recorded: Recording, t: int) -> Any:
    """Return a context in which nothing differs."""
    return contextlib.nullcontext()


def loss_of(recorded: Recording) -> Callable[[Any], jax.Array]:
    """Return the loss whose gradients an optimizer asked for, a function of the parameters."""
    text = json.loads((FOLDER / "recordings.json").read_text("utf-8"))
    h, c = recorded.tree("loss/h"), recorded.tree("loss/c")

    def loss(params: Any) -> jax.Array:
        total, entries = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.float64)
        for leaf, p in params.items():
            d = p - c[leaf]
            total += jnp.sum(0.5 * h[leaf] * d**2 + text["cubic"] / 3 * d**3)
            entries += jnp.sum(p)
        return total + 0.5 * text["coupling"] * entries**2

    return loss


def replayed(
    tx: Any,
    recorded: Recording,
    inputs: Inputs = gradients,
    around: Callable[[Recording, int], Any] = nothing_drawn,
) -> tuple[list[Any], Any]:
    """Return the parameters after each update, and the last state; call it under `enable_x64`.

    Each update runs in the context `around(recorded, t)`.
    """
    params = jax.tree.map(jnp.asarray, recorded.tree("init"))
    state, out = tx.init(params), []
    for t in range(STEPS):
        grads, extra = inputs(recorded, t, params)
        with around(recorded, t):
            updates, state = tx.update(grads, state, params, **extra)
        params = gx.apply_updates(params, updates)
        out.append(params)
    return out, state
