"""Preconditioning by the second moments of what goes into layers."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.errors import did_you_mean, name_of
from gradxform.leaves import is_hole, path_str, require_params, with_paths
from gradxform.leaves.states import check_state
from gradxform.linalg.products import identity_like
from gradxform.numerics import at_least_float32, cast, safe_increment
from gradxform.slots import zero_count
from gradxform.transforms.matrices.axes import MatrixAxes
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrices.leaf import leaves_of
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.types import Array, Decay, MatrixSlot, NonNegative, PositiveInt, StaticTree

__all__ = [
    "PreconditionByInputsState",
    "input_moment",
    "precondition_by_inputs",
]

_FIRST = 1e-3  # K begins with this many identities


def input_moment(x: Any) -> Array:
    """Return the second moment of the inputs of a layer, the mean of x x^T over all places.

    For `precondition_by_inputs`. The mean of the moments of equal batches is that of all: average
    them over micro-batches and devices.

    Args:
      x: the inputs, `(..., n)`.

    Returns:
      An array `(n, n)`, in float32 or wider.
    """
    x = jnp.asarray(x)
    x = cast(jnp.reshape(x, (-1, x.shape[-1])), at_least_float32(x.dtype))
    return linalg.matmul(x.T, x) / max(len(x), 1)


class PreconditionByInputsState(NamedTuple):
    """State of `precondition_by_inputs`; every parameter has B matrices of n inputs."""

    count: Array  # int32 scalar; the number of updates so far
    moment: MatrixSlot  # (B, n, n), at least float32; the average K of the inputs' second moment
    inverse: MatrixSlot  # (B, n, n); (K + ridge I)^-1, some steps ago; first the identity


@transform
class precondition_by_inputs(MatrixRule):
    """Multiply the gradient of every matrix by the inverse second moment of the layer's inputs.

    Update rule for a matrix of n rows, its inputs, from K = 0.001 I and R = I, with M the moment
    that is given:

        K <- beta K + (1 - beta) M                 (at every `update_interval`-th step)
        R <- (K + (ridge tr(K) / n + eps) I)^-1    (at the same steps)
        u = R g

    A Newton step where inputs are not white: with x W = y, the curvature of the loss along a column
    of W has the factor E[x x^T]. Before the momentum of Muon, as `newton_muon` does.

    Every update needs `input_moments=`, a tree of `input_moment(x)`, each `(n, n)`, or `(B, n, n)`
    for the B matrices of a stacked parameter. It may lack parameters, whose K stays. The entry of a
    branch is for all matrices in it, such as a kernel of queries, keys and values. It is looked at
    only where the number of steps is a multiple of `update_interval`: give None at other steps, and
    need not compute them there. Without it, R stays.

    Args:
      beta: the decay of K at each renewal, in [0, 1).
      update_interval: the number of steps from one renewal to the next, at least 1.
      ridge: the share of the mean of the diagonal of K that is added to it, at least 0.
      eps: added to the diagonal, at least 0. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.

    Raises:
      TypeError: at update, without `input_moments`.
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given, or a moment has another shape or is of no parameter.

    Reference: Du and Su, The Newton-Muon Optimizer, 2026, Algorithm 1; eps and the defaults are
    those of its code, which renews every 32 or 64 steps.
    """

    beta: Decay = 0.95
    update_interval: PositiveInt = 64
    ridge: NonNegative = 0.2
    eps: NonNegative = field(default=1e-8, kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)

    State = PreconditionByInputsState
    oriented = True
    needs_params = True

    def __post_init__(self):
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return small moments, and the identity as inverse."""

        def identities(factor: float) -> Any:
            def make(b: int, n: int, k: int, dtype: Any) -> Array:
                return jnp.broadcast_to(factor * jnp.eye(n, dtype=dtype), (b, n, n))

            return self.matrix_slots(params, make)

        return PreconditionByInputsState(zero_count(), identities(_FIRST), identities(1.0))

    def prepare(self, state, params, *, input_moments):
        """Return the state, and 1 if the inverses are renewed, else 0."""
        count = safe_increment(state.count)
        due = jnp.asarray(count % self.update_interval == 0, jnp.int32)
        return state._replace(count=count), jnp.int32(0) if input_moments is None else due

    def _updated(self, updates, state, params, extra, then):
        if extra.get("input_moments") is not None:
            require_params(self, params)
            state = self._averaged(check_state(self, state, self.State), params, **extra)
        return super()._updated(updates, state, params, extra, then)

    def _averaged(
        self, state: Any, params: Any, *, input_moments: Any, **_: Any
    ) -> PreconditionByInputsState:
        """Return the state with the moments of this step in the averages, if they are due."""
        due = safe_increment(state.count) % self.update_interval == 0
        moments, structure = jax.tree.flatten(state.moment)
        views = [leaf.members[0] for leaf in leaves_of(self, params)]
        given = zip(_by_leaf(self, input_moments, params), views, strict=True)
        known = []

        def make(b: int, n: int, k: int, dtype: Any) -> Array:
            (path, x), view = next(given)
            known.append(x is not None)
            if x is None:
                return jnp.zeros((b, n, n), dtype)
            x = _of_own_matrices(jnp.asarray(x), view)
            if jnp.shape(x) not in ((n, n), (b, n, n)):
                raise ValueError(
                    f"{name_of(self)}: the moment of {path_str(path)} has shape {jnp.shape(x)}; "
                    f"its {n} inputs need ({n}, {n}), or ({b}, {n}, {n}). Give "
                    "input_moment(x) of the inputs x."
                )
            return jnp.broadcast_to(cast(x, dtype), (b, n, n))

        new = jax.tree.leaves(self.matrix_slots(params, make))
        triples = zip(moments, new, known, strict=True)
        average = [
            jnp.where(due, self.beta * k + (1 - self.beta) * m, k) if is_known else k
            for k, m, is_known in triples
        ]
        return state._replace(moment=jax.tree.unflatten(structure, average))

    def rule(self, g, moment, inverse, due):
        """Return the preconditioned gradients of a batch of matrices, and their slots."""

        def renewed() -> Array:
            n = moment.shape[-1]
            trace = jnp.trace(moment, axis1=-2, axis2=-1)[:, None, None]
            ridge = self.ridge * trace / max(n, 1) + self.eps
            return linalg.inverse_root(moment + ridge * identity_like(moment), 1)

        inverse = lax.cond(due > 0, renewed, lambda: inverse)
        return linalg.matmul(inverse, g), moment, inverse


def _of_own_matrices(x: Array, view: Any) -> Array:
    """Return the moments of this device's matrices, where a stack is cut along its layers."""
    axes = view.axes
    if not view.cut.cuts or view.place != "here" or not isinstance(axes, MatrixAxes):
        return x
    if x.ndim < 3 or len(x) != view.count():
        return x
    whole = view.cut.whole(view.shape)
    small = tuple(n if i in axes.batch else 1 for i, n in enumerate(whole))
    numbers = axes.from_matrices(jnp.arange(len(x))[:, None, None], small)
    return x[axes.to_matrices(engine.own_piece(numbers, view.cut))[:, 0, 0]]


def _by_leaf(part: Any, moments: Any, params: Any) -> list[tuple[Any, Any]]:
    """Return for every parameter its path, and the entry for it or a branch around it, or None."""
    entries = {path: x for path, x in with_paths(moments) if not is_hole(x)}
    paths = [path for path, _ in with_paths(params)]
    for path in entries:
        if not any(path == leaf[: len(path)] for leaf in paths):
            names = ["/".join(leaf) for leaf in paths]
            raise ValueError(
                f"{name_of(part)}: input_moments has an entry {path_str(path)}, which is not a "
                f"parameter.{did_you_mean('/'.join(path), names)}"
            )
    leaves = [path for path, p in with_paths(params) if not is_hole(p)]

    def entry(path: Any) -> Any:
        return next((entries[path[:i]] for i in range(len(path) + 1) if path[:i] in entries), None)

    return [(path, entry(path)) for path in leaves]
