"""How authors of matrix rules divide a step over devices, as plain JAX programs and as formulas.

A program has `init`, `update` and `state_specs`, as an optimizer on a mesh has. Every matrix of the
parameters is cut along one dimension.
"""

import functools
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.subjects.sharded import AXIS, DEVICES, mesh_of_all, specs_of
from gradxform.leaves import shape_of

RATE, TURNS, COEFFICIENTS = 0.02, 5, (3.4445, -4.7750, 2.0315)


def _specs(params: Any) -> Any:
    return specs_of(jax.tree.map(shape_of, params))


def _cut_dim(spec: PartitionSpec) -> int:
    return tuple(spec).index(AXIS)


class muon_gathered(NamedTuple):
    """Muon whose matrices every device gathers and orthogonalizes, each of them whole.

    The code of Jordan et al. (Muon, 2024) and of AdaMuon is for devices with whole gradients. It
    gathers as many updates, of which each device computes a share.

    Reference: Liu et al., Muon is Scalable for LLM Training, 2025, Distributed Muon.
    """

    beta: float = 0.95

    def init(self, params: Any) -> Any:
        """Return a momentum of zeros."""
        return jax.tree.map(jnp.zeros_like, params)

    def state_specs(self, params: Any) -> Any:
        """Return that the momentum lies as the parameters do."""
        return _specs(params)

    def update(self, grads: Any, state: Any, params: Any) -> Any:
        """Return the updates and the momentum."""
        specs = _specs(grads)
        one = lambda g, mu, spec: self._matrix(g, mu, _cut_dim(spec))  # noqa: E731

        on_pieces = functools.partial(
            jax.shard_map,
            mesh=mesh_of_all(),
            in_specs=(specs, specs),
            out_specs=specs,
            check_vma=False,
        )

        @on_pieces
        def momentum(grads: Any, state: Any) -> Any:
            return jax.tree.map(lambda g, mu: self.beta * mu + g, grads, state)

        @on_pieces
        def steps(grads: Any, state: Any) -> Any:
            return jax.tree.map(one, grads, state, specs)

        state = momentum(grads, state)
        return steps(grads, state), state

    def _matrix(self, g: Any, mu: Any, dim: int) -> Any:
        """Return this device's piece of the update of a matrix."""
        whole = lax.all_gather(g + self.beta * mu, AXIS, axis=dim, tiled=True)
        u = -RATE * newton_schulz(whole)
        length = g.shape[dim]
        return lax.dynamic_slice_in_dim(u, lax.axis_index(AXIS) * length, length, dim)


def newton_schulz(x: Any) -> Any:
    """Return a matrix with singular values near 1."""
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (jnp.linalg.norm(x) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(TURNS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class dion_low_rank(NamedTuple):
    """Dion whose devices keep their pieces of each matrix, and sum a factor of low rank.

    Each device has columns of the matrix, turned if it is cut by rows, and the rows of Q that
    belong to them. What is summed is (uncut side) x rank numbers, and the norms of the new Q.

    Reference: Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, Algorithm 3, sharded
    along one axis.
    """

    rank_fraction: float = 0.25
    decay: float = 0.95

    def init(self, params: Any) -> Any:
        """Return a momentum of zeros, and factors."""

        def factor(p: Any, spec: PartitionSpec) -> Any:
            return jnp.ones((p.shape[_cut_dim(spec)], self._rank(p.shape)), p.dtype)

        momentum = jax.tree.map(jnp.zeros_like, params)
        return momentum, jax.tree.map(factor, params, _specs(params))

    def _rank(self, shape: tuple[int, ...]) -> int:
        return math.ceil(self.rank_fraction * min(shape))

    def state_specs(self, params: Any) -> Any:
        """Return that the momentum lies as the parameters do, and factors as their cut side."""
        specs = _specs(params)
        return specs, jax.tree.map(lambda _: PartitionSpec(AXIS), specs)

    def update(self, grads: Any, state: Any, params: Any) -> Any:
        """Return the updates, and the momentum with the factors."""
        specs = _specs(grads)
        of_factors = jax.tree.map(lambda _: PartitionSpec(AXIS), specs)

        @functools.partial(
            jax.shard_map,
            mesh=mesh_of_all(),
            in_specs=(specs, specs, of_factors),
            out_specs=jax.tree.map(lambda s: (s, s, PartitionSpec(AXIS)), specs),
            check_vma=False,
        )
        def steps(grads: Any, momentum: Any, factors: Any) -> Any:
            one = lambda g, m, q, s: self._matrix(g, m, q, _cut_dim(s) == 0)  # noqa: E731
            return jax.tree.map(one, grads, momentum, factors, specs)

        done = steps(grads, *state)
        us, momentum, factors = (
            jax.tree.map(lambda _, x, i=i: x[i], specs, done) for i in range(3)
        )
        return us, (momentum, factors)

    def _matrix(self, g: Any, m: Any, q: Any, turned: bool) -> tuple[Any, Any, Any]:
        """Return this device's pieces of the update, the momentum and the factor of a matrix."""
        b = m + g
        b = b.T if turned else b
        p, _ = jnp.linalg.qr(lax.psum(b @ q, AXIS))
        r = b.T @ p
        b = b - (1 - self.decay) * p @ r.T
        q = r / (jnp.sqrt(lax.psum(jnp.sum(r * r, axis=0, keepdims=True), AXIS)) + 1e-8)
        u = -RATE * p @ q.T
        return (u.T, b.T, q) if turned else (u, b, q)


# ------------------------------------------------------------------------------------- formulas


class Formula(NamedTuple):
    """What authors' code sends, where it is not a program of JAX."""

    collectives: dict[str, int]
    sent: float  # by each device, in copies of the parameters


def in_pairs(shapes: Any, share: float = 1.0) -> Formula:
    """Return the figures of an all-to-all there and one back for every shape.

    Every device orthogonalizes a share of the matrices of a shape, or of the rows that are picked.

    Args:
      shapes: those of the matrices.
      share: the share of each matrix that is sent.

    Reference: github.com/microsoft/dion, `megabatch_orthogonalize_async`, for Muon, NorMuon and
    Dion2.
    """
    kinds = Counter(jax.tree.leaves(shapes, is_leaf=_is_shape))
    filled = sum(math.prod(s) * DEVICES * -(-n // DEVICES) for s, n in kinds.items())
    sent = 2 * share * (DEVICES - 1) / DEVICES * filled / DEVICES
    return Formula({"all-to-all": 2 * len(kinds)}, sent / _entries(shapes))


def roots_gathered(shapes: Any) -> Formula:
    """Return the figures of one gather of the roots of both sides of every matrix.

    Every device computes a share of the roots. What the compiler sends for the statistics and the
    products is not in it, nor are the zeros that fill all roots to the size of the largest.

    Reference: Anil et al., Scalable Second Order Optimization for Deep Learning, 2021, and
    `scalable_shampoo/optax/distributed_shampoo.py` of github.com/google-research/google-research,
    in its form for pjit.
    """
    of_roots = sum(n * n for s in jax.tree.leaves(shapes, is_leaf=_is_shape) for n in s)
    sent = (DEVICES - 1) / DEVICES * of_roots
    return Formula({"all-gather": 1}, sent / _entries(shapes))


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def _entries(shapes: Any) -> int:
    return sum(map(math.prod, jax.tree.leaves(shapes, is_leaf=_is_shape)))
