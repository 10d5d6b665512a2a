"""What all products and diagonals share: how they call the functions that they are made of."""

import abc
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform import engine
from gradxform._jax.versions import marked_as_varying
from gradxform._names.deferred import signature_of
from gradxform.errors import must_be, name_of, shown
from gradxform.leaves import check_params, dtype_of, is_hole, is_update_leaf, path_at
from gradxform.leaves.no_gradient import as_holes, filled, float0_as_holes
from gradxform.numerics import as_number, at_least_float32, cast
from gradxform.types import Array, MaskedNode, Params, PyTree
from gradxform.values import Value
from gradxform.values.extra_args import given_what_it_names, wrapped_like

__all__ = []


class Seen(NamedTuple):
    """How the functions of a matrix see its parameters, which may be a part of theirs."""

    whole: Callable[[Params], Params] | None = None  # the parameters that `value_fn` takes
    value_fn: Any = None  # the loss among the extra arguments of an update

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of all parameters as one of those of the matrix."""
        if function is not self.value_fn:
            function = wrapped_like(self.value_fn, function)
        whole = self.whole
        if whole is None:
            return function

        @functools.wraps(function)
        def call(params: Params, **kwargs: Any) -> Any:
            return function(whole(params), **kwargs)

        return call


class Curvature(Value, abc.ABC):
    """A matrix over the parameters, known by the functions of which it is a derivative."""

    never_schedule = True
    never_mask = True
    # Whether it is drawn at random, so that it needs a key.
    draws: ClassVar[bool] = False
    # Whether each device must draw for its own part of the batch.
    draws_labels: ClassVar[bool] = False
    # The fields with functions: the arguments that these name reach them.
    functions: ClassVar[tuple[str, ...]] = ()

    batch_axis_name: str | None

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments that its functions take; None: any name."""
        names: frozenset[str] = frozenset()
        for field in self.functions:
            function = getattr(self, field)
            if function is None:
                continue
            _, *rest = signature_of(function).parameters.values()
            if any(p.kind is p.VAR_KEYWORD for p in rest):
                return None
            kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
            names |= {p.name for p in rest if p.kind in kinds}
        return names

    def _names(self, argument: str) -> bool:
        names = self.extra_names()
        return names is None or argument in names

    def of_params(
        self,
        field: str,
        function: Callable[..., Any],
        seen: Seen,
        params: Params,
        extra: Mapping[str, Any],
    ) -> tuple[Callable[[Params], Any], Params]:
        """Return a function of the parameters, with its extra arguments, and where to call it.

        On a part of the batch it is that part's, whose derivatives are not summed over devices.
        """
        function = seen(function)
        axis = self.batch_axis_name
        if axis is not None:
            engine.check_bound(self, (axis,))
            params = jax.tree.map(lambda p: marked_as_varying(p, (axis,)), params)
        return given_what_it_names(self, field, function, dict(extra)), params

    def of_outputs(self, extra: Mapping[str, Any]) -> Callable[[Any], Array]:
        """Return the loss of a model's outputs alone, which must be a real scalar."""
        loss = given_what_it_names(self, "loss", self.loss, dict(extra))  # pyright: ignore
        return lambda outputs: as_number(self, "the value of loss", loss(outputs))

    def averaged(self, tree: PyTree) -> PyTree:
        """Return the mean over the devices that have parts of the batch."""
        axis = self.batch_axis_name
        if axis is None:
            return tree

        def mean(x: Array) -> Array:
            wide = cast(x, at_least_float32(x.dtype))
            return cast(lax.pmean(marked_as_varying(wide, (axis,)), axis), x.dtype)

        return jax.tree.map(mean, tree)

    def key_here(self, key: Array) -> Array:
        """Return the key of this device."""
        if self.batch_axis_name is None or not self.draws_labels:
            return key
        return jax.random.fold_in(key, lax.axis_index(self.batch_axis_name))


class Product(Curvature):
    """A symmetric matrix by its products with vectors, which are trees like the parameters."""

    @abc.abstractmethod
    def linear(
        self, seen: Seen, params: Params, key: Array | None, extra: Mapping[str, Any]
    ) -> Callable[[PyTree], PyTree]:
        """Return the product with the matrix at some parameters, a linear function.

        Args:
          seen: how functions of all parameters are called with these.
          params: a tree of parameters; vectors are trees like it.
          key: the PRNG key of what is drawn; None if nothing is.
          extra: the extra arguments; each function gets those that it names.
        """

    def at(
        self, params: Params, *, key: Array | None = None, **extra: Any
    ) -> Callable[[PyTree], PyTree]:
        """Return the product with the matrix at these parameters, a function of a vector.

        What does not depend on the vector is computed once: use it where the matrix meets several.

        Args:
          params: the parameters.
          key: a PRNG key, where the matrix is drawn at random; else that of the functions that
            name it, such as a model with dropout.
          **extra: what the functions name besides their first argument, such as a batch.

        Raises:
          TypeError: without a key, or an argument, that is needed; if a parameter is not floating.
          ValueError: from the function, if a vector has another structure or other shapes.
        """
        check_real(self, params)
        params, seen = _without_gradient(self, params)
        if not self.draws and key is not None and self._names("key"):
            extra["key"] = key  # a function's own, such as that of dropout
        product = self.linear(seen, params, _needed_key(self, key), extra)

        def times(vector: PyTree) -> PyTree:
            return product(_vector(self, vector, params))

        return times

    def __call__(
        self, params: Params, vector: PyTree, *, key: Array | None = None, **extra: Any
    ) -> PyTree:
        """Return the product with a vector; see `at` for the arguments."""
        return self.at(params, key=key, **extra)(vector)


class Diagonal(Curvature):
    """The diagonal of a matrix, estimated from random draws."""

    draws = True

    @abc.abstractmethod
    def drawn(
        self, seen: Seen, params: Params, key: Array, extra: Mapping[str, Any]
    ) -> list[Array]:
        """Return an estimate, leaf by leaf; see `Product.linear` for the arguments."""

    def __call__(self, params: Params, *, key: Array, **extra: Any) -> PyTree:
        """Return an estimate, a tree like the parameters.

        Args:
          params: the parameters.
          key: the PRNG key of the draws.
          **extra: what the functions name besides their first argument, such as a batch.

        Raises:
          TypeError: without an argument that is needed; if a parameter is not floating.
        """
        check_real(self, params)
        params, seen = _without_gradient(self, params)
        ds = self.drawn(seen, params, _needed_key(self, key), extra)
        return jax.tree.unflatten(jax.tree.structure(params), ds)


def check_function(part: Curvature, field: str, what: str) -> None:
    """Require a field to hold a function."""
    if not callable(getattr(part, field)) or isinstance(getattr(part, field), type):
        raise TypeError(must_be(part, field, f"{what}, a function", getattr(part, field)))


def _without_gradient(part: Any, params: Params) -> tuple[Params, Seen]:
    """Return parameters with holes for what cannot have a gradient, which functions get whole."""
    holed = as_holes(params)
    if not jax.tree.leaves(holed):
        check_params(part, params)
    return holed, Seen() if holed is params else Seen(lambda seen: filled(seen, params))


def check_real(part: Any, params: Params) -> None:
    """Require real parameters."""
    for i, p in enumerate(jax.tree.leaves(params)):
        if jnp.issubdtype(dtype_of(p), jnp.complexfloating):
            raise TypeError(
                f"{name_of(part)}: parameter {path_at(params, i)} has dtype {dtype_of(p)}; only "
                "real parameters have this matrix. Take its real and imaginary parts as two."
            )


def _needed_key(part: Curvature, key: Any) -> Any:
    if not part.draws:
        return None
    if key is None:
        raise TypeError(
            f"{name_of(part)}: draws at random; give it key=jax.random.key(seed), a new one for "
            "each matrix."
        )
    if not _is_one_prng_key(key):
        raise TypeError(
            f"{name_of(part)}: key must be one PRNG key, such as jax.random.key(seed), got "
            f"{shown(key)}."
        )
    return key


def _is_one_prng_key(x: Any) -> bool:
    """Return whether something is one PRNG key, typed or raw."""
    if not isinstance(x, jax.Array | np.ndarray):
        return False
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.ndim == 0
    return x.dtype == np.uint32 and x.ndim == 1


def _with_masked_holes(vector: PyTree) -> PyTree:
    """Return a vector whose holes are those of parameters without a gradient."""
    leaves, treedef = jax.tree.flatten(float0_as_holes(vector), is_leaf=is_update_leaf)
    return treedef.unflatten(MaskedNode() if is_hole(x) else x for x in leaves)


def _vector(part: Any, vector: PyTree, params: Params) -> PyTree:
    """Return a vector in the dtypes of the parameters, or raise if it is not like them."""
    vs, treedef = jax.tree.flatten(_with_masked_holes(vector))
    ps, wanted = jax.tree.flatten(params)
    if treedef != wanted:
        raise ValueError(
            f"{name_of(part)}: the vector must be a tree like the parameters, {wanted}, got "
            f"{treedef}."
        )
    for i, (v, p) in enumerate(zip(vs, ps, strict=True)):
        if jnp.shape(v) != jnp.shape(p) or not jnp.issubdtype(dtype_of(v), jnp.floating):
            raise ValueError(
                f"{name_of(part)}: the vector's leaf {path_at(params, i)} must be floating, with "
                f"the shape {jnp.shape(p)} of the parameter, got {shown(v)} in {dtype_of(v)}."
            )
    return treedef.unflatten(cast(jnp.asarray(v), dtype_of(p)) for v, p in zip(vs, ps, strict=True))
