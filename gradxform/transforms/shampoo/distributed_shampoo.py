"""Distributed Shampoo: Shampoo by blocks, with the step size of another method."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.errors import name_of, require_at_least, require_non_negative, require_one_of
from gradxform.linalg.panels import is_by_panels
from gradxform.linalg.products import product_with_itself
from gradxform.numerics import cast, over, safe_increment, scalar, squarable
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_count
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.types import (
    Array,
    Choice,
    DType,
    MatrixSlot,
    NonNegative,
    NonNegativeInt,
    Positive,
    Scalar,
    Size,
    StaticTree,
    UnitInterval,
)
from gradxform.values import put_live, take_live

GRAFTS = ("sgd", "adagrad", "rmsprop", "adam")
ROOTS = ("auto", "eigh", "newton")
# The largest eigenvalue counts as at least this in the ridge of a root, as in the reference code.
_LEAST = 1e-6
# The places of the slots of both sides; that of the squares is 0, where there are any.
_MATRICES, _ROOTS = (-4, -3), (-2, -1)


class DistributedShampooState(NamedTuple):
    """State of `scale_by_distributed_shampoo`; of every parameter B matrices of sides m <= n.

    Every matrix has p q blocks of sides r and c.
    """

    count: Array  # int32 scalar; the number of updates so far
    nu: MatrixSlot  # (B, m, n), at least float32; the squares of the grafted method; "sgd": None
    left: MatrixSlot  # (B, p q, r, r); the sum or average of G G^T for each block
    right: MatrixSlot  # (B, p q, c, c); of G^T G
    left_root: MatrixSlot  # (B, p q, r, r); the inverse root of left
    right_root: MatrixSlot  # (B, p q, c, c)

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a state, also of one with `(B, 0)` squares where none are needed."""
        is_older = all(jnp.ndim(x) == 2 for x in jax.tree.leaves(fields.get("nu")))
        return fields | {"nu": None} if is_older else fields


@transform
class scale_by_distributed_shampoo(MatrixRule):
    """Multiply every block by two inverse roots, at the length of another method's step.

    Update rule for each block G of a matrix, from L = R = matrix_epsilon I and at t = 0, 1, ...,
    the number of earlier updates, with w = 1 - beta2, or 1 where beta2 is 1:

        L <- beta2 L + w G G^T;    R <- beta2 R + w G^T G
        P = (L + l I)^(-1/4) G (R + r I)^(-1/4)

    The ridges l and r are matrix_epsilon max(s, 1e-6), with s the largest eigenvalue of L and of R.
    The blocks P of a matrix together are S. With D the step of the grafted method,

        U = S |D|_F / |S|_F      (t < start_preconditioning_step: U = D)

    where D is, with v <- beta2 v + w G^2 (adagrad: v <- v + G^2):

        sgd: G;    adagrad, rmsprop: G / (sqrt(v) + diagonal_epsilon);
        adam: G / (sqrt(v / (1 - beta2^(t + 1))) + diagonal_epsilon)

    The roots are of the matrices as they are after this gradient. Among the blocks of equal sides,
    those that are i-th modulo `preconditioning_compute_steps` are renewed at t = i: no step waits
    for all of them but the first. A root that is not finite, or that
    products leave an error of at least `inverse_failure_threshold`, is computed by eigenvectors
    with "auto"; with the others the old one stays. On TPUs it stays with "auto", too, in blocks of
    sides of more than 256.

    Blocks bound the cost: a matrix of sides m and n has ceil(m / block_size) ceil(n / block_size)
    of them, and time grows as block_size^3 for each. A last block is filled up with zeros, which
    changes no number of it. Roots by eigenvectors are more accurate where a matrix is nearly
    singular; roots by products are faster on accelerators, and where other work keeps the threads
    of a CPU. Statistics and roots are computed in full float32, the other products in the precision
    that JAX is told to use.

    If an entry of a gradient exceeds 2.6e15 (in float32), its matrix is first scaled down to that
    size, so that no square overflows.

    Differs from the reference code: grafting is per matrix, not per array, and there is one
    momentum (of `distributed_shampoo`), of the steps that are taken. Its `best_effort_shape` and
    the mesh axes are not here: `weight_dimension_numbers` says what is a matrix.

    Args:
      block_size: the longest side of a block, an integer, at least 1.
      beta2: the decay of L, R and v, in [0, 1]; with 1 they are sums.
      diagonal_epsilon: added to the root of v, at least 0.
      matrix_epsilon: the ridge, relative to the largest eigenvalue, greater than 0.
      start_preconditioning_step: the number of updates by the grafted method alone, at least 0.
      preconditioning_compute_steps: the number of steps from one renewal of a root to the next, an
        integer, at least 1.
      statistics_compute_steps: L and R take a gradient when t is a multiple of it, an integer, at
        least 1.
      graft_type: "sgd", "adagrad", "rmsprop" or "adam".
      exponent_override: p of the roots L^(-1/p); 0 for 4, Shampoo's. An integer, at least 0.
      inverse_root: "eigh", by eigenvectors; "newton", by matrix products; or "auto", by products,
        and by eigenvectors where these fail. Keyword-only.
      inverse_failure_threshold: the error of a root by products at which they have failed, at least
        0. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: "bfloat16" for products of 16-bit factors, and exchanges of 16-bit gradients
        and updates on a mesh; statistics and roots stay. None: the dtype of the gradient, at least
        float32. Keyword-only.

    Raises:
      ValueError: for graft_type "adam" with a beta2 of 1; at init and update, if a parameter is not
        a matrix, or its numbers do not fit.
      TypeError: at init and update, for complex and integer leaves.

    Reference: Anil et al., Scalable Second Order Optimization for Deep Learning, 2021; Shi et al.,
    A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo Optimizer for
    Training Neural Networks At-Scale, 2023.
    """

    block_size: Size = 1024
    beta2: UnitInterval = 0.999
    diagonal_epsilon: NonNegative = 1e-10
    matrix_epsilon: Positive = 1e-6
    start_preconditioning_step: NonNegativeInt = 5
    preconditioning_compute_steps: Size = 1
    statistics_compute_steps: Size = 1
    graft_type: Choice = "sgd"
    exponent_override: Size = 0
    inverse_root: Choice = field(default="auto", kw_only=True)
    inverse_failure_threshold: NonNegative = field(default=0.1, kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = DistributedShampooState
    locality = "array"
    decomposes = True

    def __post_init__(self):
        require_at_least(
            self, 1, "block_size", "preconditioning_compute_steps", "statistics_compute_steps"
        )
        require_non_negative(self, "exponent_override")
        require_one_of(self, "graft_type", GRAFTS)
        require_one_of(self, "inverse_root", ROOTS)
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)
        if self.graft_type == "adam" and isinstance(self.beta2, float) and self.beta2 == 1:
            raise ValueError(
                f"{name_of(self)}: graft_type 'adam' needs a beta2 below 1, got 1.0. For sums use "
                "'adagrad'."
            )

    @property
    def unused_slots(self) -> tuple[str, ...]:
        """The squares, for a graft that needs none."""
        return ("nu",) if self.graft_type == "sgd" else ()

    def init(self, params):
        """Return multiples of the identity as matrices, and the identity as their roots."""

        def squares(count: int, m: int, n: int, dtype: Any) -> Array:
            return jnp.zeros((count, m, n), dtype)

        def matrix(of_rows: bool, factor: float) -> Any:
            def make(count: int, m: int, n: int, dtype: Any) -> Array:
                (p, r), (q, c) = self._cut(m), self._cut(n)
                d = r if of_rows else c
                identity = jnp.asarray(factor, dtype) * jnp.eye(d, dtype=dtype)
                return jnp.tile(identity[None, None], (count, p * q, 1, 1))

            return make

        return DistributedShampooState(
            count=zero_count(),
            nu=None if self.unused_slots else self.matrix_slots(params, squares),
            left=self.matrix_slots(params, matrix(True, self.matrix_epsilon)),
            right=self.matrix_slots(params, matrix(False, self.matrix_epsilon)),
            left_root=self.matrix_slots(params, matrix(True, 1.0)),
            right_root=self.matrix_slots(params, matrix(False, 1.0)),
        )

    def _cut(self, d: int) -> tuple[int, int]:
        """Return the number of blocks of a side, and their length."""
        return max(1, -(-d // self.block_size)), min(d, self.block_size)

    def prepare(self, state, params):
        """Return the state, the number of earlier updates, and the weights of squares and products.

        These are the weight of a new one, and the factor that debiases those of the graft.
        """
        count, beta2 = state.count, scalar(self.beta2)
        of_new = jnp.where(beta2 == 1, 1, 1 - scalar(self.beta2))
        correction = scalar(1.0)
        if self.graft_type == "adam":
            correction = 1 / (1 - beta2 ** scalar(safe_increment(count)))
        return state._replace(count=safe_increment(count)), count, of_new, correction

    def rule(self, g, *slots_and_scalars):
        """Return the preconditioned gradient at the length of the grafted step.

        The slots are those of the state, without `nu` for graft_type "sgd".
        """
        *nu, left, right, left_root, right_root, count, of_new, correction = slots_and_scalars
        if not g.size:  # blocks of no entries cannot be counted
            return g, *nu, left, right, left_root, right_root
        g = squarable(g, (-2, -1))
        d = g
        if nu:
            d, *nu = self._grafted(g, nu[0], of_new, correction)
        blocks = self._blocks(g)
        left, right = self._statistics(blocks, left, right, count, of_new)
        left_root, right_root = self._roots((left, right), (left_root, right_root), count)
        s = linalg.matmul_in(left_root, blocks, self.compute_dtype)
        s = self._joined(linalg.matmul_in(s, right_root, self.compute_dtype), g.shape)
        return self._as_long(s, d, count), *nu, left, right, left_root, right_root

    def goes_in_place(self, *slots):
        """Whether `rule_in_place` stands for `rule`: where roots are renewed in turns."""
        return any(is_by_panels(slots[k]) for k in _MATRICES)

    def rule_in_place(self, at, count, of_new, correction):
        """Return a matrix after the step of `rule`, with few arrays at once."""
        every = self.statistics_compute_steps
        is_due = cast(jnp.mod(count, every) == 0, jnp.int32)
        at = at.repeated(is_due, lambda _, at: self._followed(at, of_new))
        at = self._renewed_in_place(at, count)
        g = squarable(at.gradient(), (-2, -1))
        s = self._blocks(g)
        for side, k in enumerate(_ROOTS):
            pair = (at.slot(k), s) if side == 0 else (s, at.slot(k))
            at, s = at.settled(linalg.matmul_in(*pair, self.compute_dtype))
        d = squarable(at.gradient(), (-2, -1))
        if not self.unused_slots:
            step = lambda v, g: self._grafted(g, v, of_new, correction)[::-1]  # noqa: E731
            at, (d,) = at.with_slots(step, [0], d)
        u = self._as_long(self._joined(s, d.shape), d, count)
        return at.with_update(u).settled()[0]

    def _followed(self, at: engine.InPlace, of_new: Scalar) -> engine.InPlace:
        for side, k in enumerate(_MATRICES):
            blocks = self._blocks(squarable(at.gradient(), (-2, -1)))
            grown = lambda a, new: [self.beta2 * a + of_new * new]  # noqa: E731
            at = at.with_slots(grown, [k], product_with_itself(blocks, side))[0].settled()[0]
        return at

    def _renewed_in_place(self, at: engine.InPlace, count: Array) -> engine.InPlace:
        """Return a matrix with the roots of those of its blocks that are due."""
        shapes = [x[0].shape[1:] for x in at.slots]
        blocks, every = shapes[-1][0], self.preconditioning_compute_steps
        is_due = jnp.mod(count - engine.matrix_numbers(blocks), every) == 0
        turns = cast(is_due | (count == 0), jnp.int32)

        def one(i: Any, at: engine.InPlace) -> engine.InPlace:
            flat = tuple([x.reshape(-1, *x.shape[-2:]) for x in xs] for xs in at.slots)
            block = at._replace(slots=flat, number=at.number * blocks + i)
            block = block.repeated(turns[i], lambda _, block: self._with_new_roots(block))
            pairs = zip(block.slots, shapes, strict=True)
            whole = tuple([x.reshape(-1, *shape) for x in xs] for xs, shape in pairs)
            return block._replace(slots=whole, number=at.number)

        return at.repeated(blocks, one)

    def _as_long(self, s: Array, d: Array, count: Array) -> Array:
        """Return a step at the length of the grafted one, or that."""
        # Divided by its largest entry, because the square of a small norm is 0.
        s = over(s, jnp.max(jnp.abs(s), axis=(-2, -1), keepdims=True))
        s = over(s * linalg.frobenius_norm(d), linalg.frobenius_norm(s))
        return jnp.where(count >= self.start_preconditioning_step, s, d)

    def _grafted(
        self, g: Array, v: Array, of_new: Scalar, correction: Scalar
    ) -> tuple[Array, Array]:
        """Return the step of a grafted method that keeps squares, and these."""
        v = v + g * g if self.graft_type == "adagrad" else self.beta2 * v + of_new * g * g
        return over_root(g, correction * v, self.diagonal_epsilon), v

    def _statistics(
        self, blocks: Array, left: Array, right: Array, count: Array, of_new: Scalar
    ) -> tuple[Array, Array]:
        def grown() -> tuple[Array, Array]:
            turned = jnp.swapaxes(blocks, -1, -2)
            return (
                self.beta2 * left + of_new * linalg.matmul(blocks, turned),
                self.beta2 * right + of_new * linalg.matmul(turned, blocks),
            )

        if self.statistics_compute_steps == 1:
            return grown()
        is_due = jnp.mod(count, self.statistics_compute_steps) == 0
        return lax.cond(is_due, grown, lambda: (left, right))

    def _roots(
        self, matrices: tuple[Array, Array], old: tuple[Array, Array], count: Array
    ) -> tuple[Array, ...]:
        """Return the roots of all blocks; those that are due are new."""
        shapes = [x.shape for x in old]
        blocks, old_roots = (
            [x.reshape(-1, *x.shape[-2:]) for x in side] for side in (matrices, old)
        )

        def all_of_them() -> tuple[Array, ...]:
            return self._renewed(*blocks, *old_roots)

        def those_due() -> tuple[Array, ...]:
            every = self.preconditioning_compute_steps
            return engine.renewed(self._renewed, blocks, old_roots, count, every)

        if self.preconditioning_compute_steps == 1:
            roots = all_of_them()
        else:
            # The first step needs the roots of all blocks. It is once in a run, so that a branch
            # does not make one step of every period longer, as it would later.
            roots = lax.cond(count == 0, all_of_them, those_due)
        return tuple(x.reshape(shape) for x, shape in zip(roots, shapes, strict=True))

    def _renewed(
        self, left: Array, right: Array, left_root: Array, right_root: Array
    ) -> tuple[Array, ...]:
        if is_by_panels(left) or is_by_panels(right):
            return self._renewed_in_turns((left, right), (left_root, right_root))
        if left.shape != right.shape:
            return self._root(left, left_root), self._root(right, right_root)
        # Of equal sides as one batch, which is half of the program.
        both = (jnp.concatenate(pair) for pair in ((left, right), (left_root, right_root)))
        new_left, new_right = jnp.split(self._root(*both), 2)
        return new_left, new_right

    def _renewed_in_turns(
        self, matrices: tuple[Array, Array], old: tuple[Array, Array]
    ) -> tuple[Array, ...]:
        """Return the roots, block by block. A batch of them would not stay on the chip."""
        slots = tuple([x] for x in (*matrices, *old))
        at = engine.run_in_place(self._with_new_roots, [len(old[0])], slots)
        return tuple(x for (x,) in at.slots[2:])

    def _with_new_roots(self, at: engine.InPlace) -> engine.InPlace:
        """Return a block with its roots; of equal sides in one loop, which is half of a program."""

        def of_side(side: Any, at: engine.InPlace) -> engine.InPlace:
            a, old = at.slot(*_MATRICES, side=side), at.slot(*_ROOTS, side=side)
            return at.with_slot(self._root(a, old), *_ROOTS, side=side).settled()[0]

        left, right = (at.slots[k][0] for k in _ROOTS)
        if left.shape == right.shape:
            return at.repeated(2, of_side)
        return of_side(1, of_side(0, at))

    def _root(self, a: Array, old: Array) -> Array:
        """Return a^(-1/p), or the old root where it fails."""
        if self.inverse_root == "eigh":
            return _roots_where(*self._root_by_eigenvectors(a), old)
        if self.inverse_root == "newton":
            return _roots_where(*self._root_by_products(a), old)
        # Live numbers are arguments, because JAX keeps a custom derivative beyond the trace.
        live: list[Any] = []
        bare = take_live(self, live)

        def by_eigenvectors(a: Array, old: Array, live: list[Any]) -> Array:
            new, good = put_live(bare, tuple(live))._root_by_eigenvectors(a)
            return _roots_where(new, good, old)

        def by_either(a: Array, old: Array, live: list[Any]) -> Array:
            new, good = put_live(bare, tuple(live))._root_by_products(a)
            if is_by_panels(a):  # eigenvectors take minutes to compile there
                return _roots_where(new, good, old)
            # Which is seldom: the branch is a loop of decompositions.
            return lax.cond(
                jnp.all(good),
                lambda: new,
                lambda: jnp.where(good[..., None, None], new, by_eigenvectors(a, old, live)),
            )

        # A loop until convergence does not have a derivative backwards; the eigenvectors have.
        root = jax.custom_jvp(by_either)
        root.defjvp(lambda xs, ts: (by_either(*xs), jax.jvp(by_eigenvectors, xs, ts)[1]))
        return root(a, old, live)

    def _root_by_products(self, a: Array) -> tuple[Array, Array]:
        """Return a^(-1/p) of each block, and whether it is one."""
        ridge = self.matrix_epsilon * jnp.maximum(linalg.largest_eigenvalue(a), _LEAST)
        damped = a + ridge[..., None, None] * jnp.eye(a.shape[-1], dtype=a.dtype)[None]
        new, error = linalg.inverse_root_within(damped, self._power)
        return new, (error < self.inverse_failure_threshold) & _are_roots_finite(new)

    def _root_by_eigenvectors(self, a: Array) -> tuple[Array, Array]:
        """Return a^(-1/p) of each block, and whether it is finite."""
        values, vectors = linalg.eigen(a)
        largest = jnp.max(values, axis=-1, keepdims=True)
        ridge = self.matrix_epsilon * jnp.maximum(largest, _LEAST)
        powers = (jnp.maximum(values, 0) + ridge) ** (-1 / self._power)
        new = linalg.matmul(vectors * powers[..., None, :], jnp.swapaxes(vectors, -1, -2))
        return new, _are_roots_finite(new)

    @property
    def _power(self) -> int:
        return self.exponent_override or 4

    def _blocks(self, x: Array) -> Array:
        """Return the blocks of every matrix, (B, p q, r, c), the last ones filled up with zeros."""
        count, m, n = x.shape
        (p, r), (q, c) = self._cut(m), self._cut(n)
        x = jnp.pad(x, ((0, 0), (0, p * r - m), (0, q * c - n)))
        return jnp.swapaxes(x.reshape(count, p, r, q, c), 2, 3).reshape(count, p * q, r, c)

    def _joined(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo `_blocks`."""
        count, m, n = shape
        (p, r), (q, c) = self._cut(m), self._cut(n)
        x = jnp.swapaxes(x.reshape(count, p, q, r, c), 2, 3)
        return x.reshape(count, p * r, q * c)[:, :m, :n]


def _are_roots_finite(x: Array) -> Array:
    return jnp.all(jnp.isfinite(x), axis=(-2, -1))


def _roots_where(new: Array, good: Array, old: Array) -> Array:
    return jnp.where(good[..., None, None], new, old)
