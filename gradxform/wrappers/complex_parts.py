"""Complex parameters as pairs of real ones."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.base import Transform, call_update, check_transform, tell_moved, transform
from gradxform.base.transformation import locality_of
from gradxform.leaves import Path, dtype_of, is_abstract, is_hole, map_updates
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import real_dtype
from gradxform.types import Params, PyTree


class SplitRealAndImaginaryArrays(NamedTuple):
    """The two parts of a complex array, as two parameters."""

    real: Any
    imaginary: Any


class SplitRealAndImaginaryState(NamedTuple):
    """State of `split_real_and_imaginary`."""

    inner_state: Any  # the inner state, for real parameters


def _leaf_as_pair(x: Any) -> Any:
    """Return a complex leaf as a pair, and a real one as it is."""
    if not jnp.issubdtype(dtype_of(x), jnp.complexfloating):
        return x
    if is_abstract(x):
        dtype = real_dtype(x.dtype)
        half = jax.ShapeDtypeStruct(x.shape, dtype, sharding=x.sharding)
        return SplitRealAndImaginaryArrays(half, half)
    if isinstance(x, RowSparse):
        real, imaginary = jnp.real(x.values), jnp.imag(x.values)
        return SplitRealAndImaginaryArrays(x.with_values(real), x.with_values(imaginary))
    return SplitRealAndImaginaryArrays(jnp.real(x), jnp.imag(x))


def real_parts(tree: PyTree) -> PyTree:
    """Return a tree with each complex leaf as a pair of real ones."""
    return map_updates(_leaf_as_pair, tree)


def _is_pair(x: Any) -> bool:
    return isinstance(x, SplitRealAndImaginaryArrays)


def merged_parts(updates: PyTree) -> PyTree:
    """Return a tree with every pair as one complex array; one of holes is a hole."""

    def merge(x: Any) -> Any:
        if not _is_pair(x):
            return x
        if is_hole(x.real):
            return x.real
        if isinstance(x.real, RowSparse):
            return x.real.with_values(lax.complex(x.real.values, x.imaginary.values))
        return lax.complex(x.real, x.imaginary)

    def is_leaf(x: Any) -> bool:
        return _is_pair(x) or isinstance(x, RowSparse)

    return jax.tree.map(merge, updates, is_leaf=is_leaf)


@transform
class split_real_and_imaginary(Transform):
    """Show a transform the real and the imaginary part of complex parameters as two real ones.

    Update rule, for a complex leaf g = a + i b:

        u = inner(a) + i inner(b)

    Real leaves pass as they are. Any rule then works with complex parameters, also one that is not
    defined for complex numbers. The inner transform sees the leaf `w` as two, `w.real` and
    `w.imaginary`, and the path of either contains that of the leaf. A rule that computes a modulus,
    such as `scale_by_adam`, has other numbers inside than outside. JAX gives the conjugate of the
    gradient that descends: conjugate it first, as `jax.tree.map(jnp.conj, grads)`.

    Of its own kind: the inner transform lives in another tree, where its state and its paths are,
    too.

    Args:
      inner: the transform of real leaves.
    """

    inner: Any

    handles_rows = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")

    @property
    def locality(self) -> str:
        """How far the inner transform looks; both parts of a complex entry count as one entry."""
        return locality_of(self.inner)

    def init(self, params):
        """Return the inner state, for the real and imaginary parts."""
        return SplitRealAndImaginaryState(self.inner.init(real_parts(params)))

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the real and imaginary parts."""
        return real_parts(params)

    def params_outside(self, place: Path, inside: PyTree, params: Params) -> PyTree:
        """Return the merged parts."""
        return merged_parts(inside)

    def moved(self, state, old, new):
        """Return the inner state after something else has moved the parameters."""
        inner_state = tell_moved(
            self.inner,
            state.inner_state,
            real_parts(old),
            real_parts(new),
        )
        return state._replace(inner_state=inner_state)

    def update(self, updates, state, params=None, **extra):
        """Return the merged updates of the parts."""
        state = check_state(self, state, SplitRealAndImaginaryState)
        params = None if params is None else real_parts(params)
        parts, inner_state = call_update(
            self.inner, real_parts(updates), state.inner_state, params, extra
        )
        return merged_parts(parts), state._replace(inner_state=inner_state)
