"""Shampoo: a full-matrix preconditioner for every axis of an array."""

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from gradxform import engine, schedules
from gradxform.base import Transform, transform
from gradxform.errors import (
    name_of,
    require_at_least,
    require_finite,
    require_non_negative,
    require_positive,
    require_unit_interval,
    shown,
)
from gradxform.leaves import (
    Path,
    align_params,
    align_slot,
    check_shapes,
    dtype_of,
    flatten_updates,
    is_hole,
    leaves_of,
    path_at,
    shape_of,
    with_paths,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, safe_increment, scalar, value_at
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.matrices.leaf import MatrixLeaf, array_leaf
from gradxform.transforms.shampoo import divided_step as shampoo_pieces
from gradxform.transforms.shampoo.axes import Axes, Matrices, Scalars, at_least_vector
from gradxform.types import (
    Array,
    ArraySlot,
    NonNegativeOrSchedule,
    Positive,
    PyTree,
    ScalarOrSchedule,
    Schedule,
    Size,
    Slot,
    Updates,
)


class ShampooState(NamedTuple):
    """State of `step_by_shampoo`."""

    count: Array  # int32 scalar; the number of updates so far
    gbar: Slot  # like params, at least float32; the average of the gradient
    # Nested plain dicts with strings as keys, whatever containers the parameters are in, because
    # these arrays do not have a parameter's shape. For each parameter a tuple, an array per axis.
    statistics: ArraySlot  # G, (d, d), or its diagonal, (d,)
    roots: ArraySlot  # H, the last factor of the axis; in the shape of G


@transform
class step_by_shampoo(Transform):
    """Take a step of Shampoo: multiply every axis of the gradient by the root of a matrix.

    Update rule for an array of k dimensions, its axis i of length d_i, with T = 1, 2, ... and from
    G_i = 0; `*_i` contracts over all axes but i:

        gbar <- gbar_decay gbar + gbar_weight g
        G_i <- mat_gbar_decay G_i + mat_gbar_weight precond_update_interval (g *_i g)
        H_i = (G_i / d_i + epsilon I)^(-alpha / k)
        u = -learning_rate (gbar multiplied by H_i along each axis i)

    An axis longer than `max_matrix_size` keeps only the diagonal of its G_i. New entries of it are
    divided by d_i (but not for vectors), and H_i is the diagonal to the power -alpha / k, without
    epsilon, and 0 where the diagonal is 0. A scalar counts as a vector of one entry.

    Every number but `max_matrix_size` and `epsilon` may be a function of T, a float scalar, or a
    schedule of this library, which reads T - 1, the number of earlier updates, as everywhere. The
    result is the whole step: scaled by the negative learning rate.

    Time grows as d^3 and memory as d^2 for an axis of length d: `svd_interval=20` or so makes the
    roots affordable. With a `mat_gbar_decay` of 1 the steps shrink as those of Adagrad do. It uses
    neither grafting nor blocking. In float32, roots of singular matrices have three digits; where
    epsilon is below 1e-7 of the largest eigenvalue, its rounding, that is added instead.

    If an entry of an array's gradient exceeds 2.6e15 (in float32), that gradient is first scaled
    down to that size, so that no square overflows: the first step does not depend on such a size.

    Under `zero1` and `shard_matrices`, every device gets whole arrays, and the matrices of an axis
    whose length the devices divide are divided over them. Arrays of equal shape share two
    exchanges, of the gradients and of these matrices.

    A row-sparse gradient is converted to an array, and every row may move, unless its table has
    more than `max_matrix_size` rows and `gbar_decay` is 0.0. In that case only the touched rows
    move, the diagonal of the first axis changes in these only, diagonals are not divided by their
    length, and gbar_weight is not used; mat_gbar_decay must be 1, because the other rows cannot
    decay.

    The rule is that of TensorFlow's contrib optimizer, which does not take scalars. Algorithm 2 of
    Gupta et al. does not divide by the length of an axis: with d_i epsilon in place of epsilon, its
    steps are those above over the product of all d_i^(alpha / k). It has a whole matrix for every
    axis; give a large max_matrix_size.

    Args:
      learning_rate: at least 0.
      max_matrix_size: the longest axis that has a whole matrix, an integer, at least 0.
      gbar_decay: the decay of the average, in [0, 1]; with the number 0.0 it is not averaged.
      gbar_weight: the weight of a new gradient in the average, at least 0.
      mat_gbar_decay: the decay of the matrices, in [0, 1].
      mat_gbar_weight: the weight of a new product in the matrices, at least 0.
      svd_interval: H is computed when T is a multiple of it, and is the identity before; at least
        1. Diagonals follow at once.
      precond_update_interval: G is updated when T is a multiple of it; at least 1. Diagonals are
        updated at every step, without the factor.
      epsilon: added to the diagonals of the matrices, greater than 0.
      alpha: the power, shared by the axes, greater than 0; 0.5 in the paper.
      use_iterative_root: whether to compute the roots by matrix products only, which is faster on
        accelerators. Then k / (2 alpha) must be an integer for every parameter.

    Raises:
      ValueError: at init and update, if k / (2 alpha) must be an integer but is not; at update, for
        a row-sparse gradient whose untouched rows would decay.

    Reference: TensorFlow, tf.contrib.opt.ShampooOptimizer, after Gupta et al., Shampoo:
    Preconditioned Stochastic Tensor Optimization, 2018, Algorithm 2; Anil et al., Scalable Second
    Order Optimization for Deep Learning, 2021, for the iterative roots.
    """

    learning_rate: NonNegativeOrSchedule = 1.0
    max_matrix_size: Size = 768
    gbar_decay: ScalarOrSchedule = 0.0
    gbar_weight: NonNegativeOrSchedule = 1.0
    mat_gbar_decay: ScalarOrSchedule = 1.0
    mat_gbar_weight: NonNegativeOrSchedule = 1.0
    svd_interval: int | float | jax.Array | Schedule = 1
    precond_update_interval: int | float | jax.Array | Schedule = 1
    epsilon: Positive = 1e-4
    alpha: ScalarOrSchedule = 0.5
    use_iterative_root: bool = False

    locality = "array"
    handles_rows = True
    sees_pieces = True

    def __post_init__(self):
        require_non_negative(self, "max_matrix_size")
        require_unit_interval(self, "gbar_decay", "mat_gbar_decay")
        require_at_least(self, 1, "svd_interval", "precond_update_interval")
        require_positive(self, "alpha")
        require_finite(self, "alpha")
        require_finite(self, "svd_interval", "precond_update_interval")
        if self.use_iterative_root and not _is_static_number(self.alpha):
            raise ValueError(
                f"{name_of(self)}: alpha must be a Python number where use_iterative_root is True, "
                f"got {shown(self.alpha)}."
            )

    def init(self, params):
        """Return an average and matrices of zeros, and roots that are multiples of the identity."""
        self._check_leaves("parameter", params)
        statistics, roots = {}, {}
        for (path, p), leaf in zip(_arrays_with_paths(params), _matrix_leaves(params), strict=True):
            initial = self._initial(p, leaf.cut.whole(jnp.shape(p)))
            statistics[path], roots[path] = (shampoo_pieces.own_pieces(x, leaf) for x in initial)
        return ShampooState(
            count=zero_count(),
            gbar=zeros_like(params),
            statistics=_nested_matrices(statistics),
            roots=_nested_matrices(roots),
        )

    def _initial(self, p: Any, shape: tuple[int, ...]) -> tuple[Matrices, Matrices]:
        """Return the statistics and roots of one parameter before the first update."""
        dtype, shape = at_least_float32(dtype_of(p)), at_least_vector(shape)
        power = 1.0
        # the root of G = 0
        if _every_step(self.svd_interval) and _is_static_number(self.alpha):
            power = self.epsilon ** (-self.alpha / len(shape))
        statistics, roots = [], []
        for d in shape:
            has_matrix = d <= self.max_matrix_size
            statistics.append(jnp.zeros((d, d) if has_matrix else d, dtype))
            identity = jnp.eye(d, dtype=dtype) if has_matrix else jnp.zeros(d, dtype)
            roots.append(jnp.asarray(power, dtype) * identity)
        return tuple(statistics), tuple(roots)

    def update(self, updates, state, params=None, **extra):
        """Return the step for every array."""
        check_state(self, state, ShampooState)
        self._check_leaves("gradient of", updates)
        leaves, treedef = flatten_updates(updates)
        gbar = align_slot(self, updates, treedef, state, "gbar")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, gbar.leaves, "the state's gbar has")
        statistics, roots = {}, {}
        for path, _ in _arrays_with_paths(state.gbar):
            statistics[path], roots[path] = (
                _value_at_path(state.statistics, path),
                _value_at_path(state.roots, path),
            )
        count = safe_increment(state.count)
        scalars = self._scalars(scalar(count))
        gs = [self._gradient(updates, i, g) for i, g in enumerate(leaves)]
        us, means, paths = (
            list(gs),
            gbar.leaves,
            [path for path, _ in _arrays_with_paths(updates)],
        )
        all_leaves = _matrix_leaves(updates)
        # The number of axes is part of the step's program: arrays with as many share a call.
        for rank in dict.fromkeys(len(statistics[path]) for path in paths):
            of_rank = [i for i, path in enumerate(paths) if len(statistics[path]) == rank]
            rows = [(gs[i], means[i], *statistics[paths[i]], *roots[paths[i]]) for i in of_rank]
            steps = shampoo_pieces.steps(
                self._axes(rank), rows, [all_leaves[i] for i in of_rank], scalars
            )
            for i, step in zip(of_rank, steps, strict=True):
                us[i], means[i], statistics[paths[i]], roots[paths[i]] = step
        return jax.tree.unflatten(treedef, us), ShampooState(
            count=count,
            gbar=gbar.rebuilt(means),
            statistics=_nested_matrices(statistics),
            roots=_nested_matrices(roots),
        )

    def _gradient(self, updates: Updates, i: int, g: Any) -> Any:
        """Return a gradient, as an array unless it is row-sparse and untouched rows stay."""
        if not isinstance(g, RowSparse):
            return g
        if g.raw:
            engine.refuse_rows(self, updates, "looks at whole arrays")
        if g.num_rows <= self.max_matrix_size or self._averages():
            return g.to_dense()
        if not (_is_static_number(self.mat_gbar_decay) and self.mat_gbar_decay == 1):
            raise ValueError(
                f"{name_of(self)}: mat_gbar_decay must be 1.0 for the row-sparse gradient of "
                f"{path_at(updates, i)}, whose untouched rows cannot decay, got "
                f"{shown(self.mat_gbar_decay)}. {engine.ROWS_REMEDY}"
            )
        return g.coalesce()

    def _averages(self) -> bool:
        """Whether the gradient is averaged."""
        return not (_is_static_number(self.gbar_decay) and self.gbar_decay == 0)

    def number_at(self, x: ScalarOrSchedule, count: Array) -> Array:
        """Return a number of the step after `count` steps, whose T is that plus 1."""
        return value_at(x, count if isinstance(x, schedules.Schedule) else count + 1)

    def _scalars(self, t: Array) -> Scalars:
        """Return every number of the step T."""

        def at(x: ScalarOrSchedule) -> Array:
            return self.number_at(x, t - 1)

        interval = at(self.precond_update_interval)
        return Scalars(
            learning_rate=at(self.learning_rate),
            gbar_decay=at(self.gbar_decay),
            gbar_weight=at(self.gbar_weight),
            decay=at(self.mat_gbar_decay),
            weight=at(self.mat_gbar_weight),
            interval=interval,
            epsilon=at(self.epsilon),
            alpha=at(self.alpha),
            grow=jnp.mod(t, interval) < 1,
            renew=jnp.mod(t, at(self.svd_interval)) < 1,
        )

    def _axes(self, rank: int) -> Axes:
        """Return the step for an array of that many axes."""
        grow = None if _every_step(self.precond_update_interval) else "grow"
        renew = "renew"
        if _every_step(self.svd_interval):  # whenever the roots can change
            renew = grow if _is_static_number(self.alpha) else None
        return Axes(rank, self._averages(), grow, renew, round(self._p(rank)) or None)

    def _p(self, rank: int) -> float:
        """Return which iterative root an array of that many axes needs; 0 for none."""
        alpha: Any = self.alpha
        return rank / (2 * alpha) if self.use_iterative_root else 0

    def _check_leaves(self, what: str, tree: PyTree) -> None:
        for i, x in enumerate(leaves_of(tree)):
            if jnp.issubdtype(dtype_of(x), jnp.complexfloating):
                raise TypeError(
                    f"{name_of(self)}: {what} {path_at(tree, i)} has dtype {dtype_of(x)}, for "
                    "which this rule is not defined. Optimize its real and imaginary parts as two "
                    "parameters."
                )
            k = len(at_least_vector(shape_of(x)))
            if self._p(k) != round(self._p(k)):
                raise ValueError(
                    f"{name_of(self)}: use_iterative_root needs k / (2 alpha) to be an integer, "
                    f"{what} {path_at(tree, i)} has k = {k} dimensions, alpha is {self.alpha}."
                )


def _arrays_with_paths(tree: PyTree) -> list[tuple[Path, Any]]:
    return [(path, x) for path, x in with_paths(tree) if not is_hole(x)]


def _matrix_leaves(tree: PyTree) -> list[MatrixLeaf]:
    """Return how each array, or this device's piece of it, is part of a whole one."""
    pairs = zip(_arrays_with_paths(tree), engine.cuts_of(tree), strict=True)
    return [array_leaf(shape_of(x), cut) for (_, x), cut in pairs]


def _nested_matrices(by_path: dict[Path, Any]) -> Any:
    """Return nested dicts from a dict by paths; a value at the root is returned itself."""
    if () in by_path:
        return by_path[()]
    root: dict[str, Any] = {}
    for path, x in by_path.items():
        node = root
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = x
    return root


def _value_at_path(nested: Any, path: Path) -> Any:
    """Return the value of nested dicts at a path."""
    for name in path:
        nested = nested[name]
    return nested


def _is_static_number(x: Any) -> TypeGuard[float]:
    """Whether a hyperparameter is a number that is known before a run."""
    return isinstance(x, int | float)


def _every_step(interval: Any) -> bool:
    return _is_static_number(interval) and interval <= 1
