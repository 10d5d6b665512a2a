"""The subject of the promises: a transform, its reference, and its inputs."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import GradientTransformation, GradientTransformationExtraArgs, Transform
from gradxform.interop import OfFunctions, OfFunctionsExtraArgs
from gradxform.leaves.storage import is_stored
from gradxform.testing.references import Reference, TreeReference
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.values import FrozenTree, Value, fields_of
from gradxform.values.registry import REGISTRY


def example_params(dtype: Any = jnp.float32) -> Params:
    """Return a small tree with a matrix, a vector, a scalar and a 3-d array."""
    shapes = {"w": (3, 4), "b": (4,), "s": (), "deep": {"k": (2, 3, 2)}}
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def random_gradients(tree: Params, steps: int, dtype: Any = None, seed: int = 1) -> list[Updates]:
    """Return random gradients for `tree`, one tree for each step.

    Args:
      tree: the parameters.
      steps: the number of steps.
      dtype: the dtype of real gradients. Defaults to that of each parameter.
      seed: the seed of the generator.
    """
    rng = np.random.default_rng(seed)

    def draw(p: Array) -> Array:
        g = rng.normal(size=p.shape)
        if jnp.iscomplexobj(p):
            return jnp.asarray(g + 1j * rng.normal(size=p.shape), p.dtype)
        return jnp.asarray(g, dtype or p.dtype)

    return [jax.tree.map(draw, tree) for _ in range(steps)]


def as_dtype(tree: PyTree, dtype: Any) -> PyTree:
    """Return `tree` with its real floating leaves in `dtype`, or unchanged if that is None."""

    def cast(x: Any) -> Array:
        x = jnp.asarray(x)
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if dtype is not None and floating else x

    return jax.tree.map(cast, tree)


@dataclass(frozen=True, eq=False)
class Case:
    """A transform and how to test it: the argument of every promise.

    Args:
      tx: the transform.
      reference: its rule in NumPy; None if its numbers are random or not known.
      names: for tables of cases, the public names that this one covers besides its own.
      rtol: the tolerance to its reference in float32, relative to the movement.
      pickles: whether it consists only of values, so that it prints, pickles and goes to JSON.
      huge_ok: whether updates must be finite for gradients up to the largest number of their
        dtype; or, if it is a number, up to that share of it.
      derivatives: which derivatives through an update are finite and right; "forward" if it has
        loops that JAX cannot differentiate backward, None if it does not have derivatives.
      holds_optimizer: whether the transform inside it, if there is one, gets the parameters and
        their gradients unchanged in form.
      rows: whether it must accept row-sparse gradients (True) or refuse them (False). By default
        it must accept them if its locality is at most a row.
      extra: the extra arguments of every update: a dict, or `extra(updates, params)` that returns
        one.
      examples: how many gradients, along axis 0, an update takes. By default just one, without
        that axis.
      tree: the parameters. Defaults to `example_params()`.
      draw: `draw(params, steps) -> [gradients, ...]`. Defaults to `random_gradients`.
    """

    tx: Any
    reference: Reference | TreeReference | None = None
    names: tuple[str, ...] = ()
    rtol: float = 2e-5
    pickles: bool = True
    huge_ok: bool | float = True
    derivatives: Literal["both", "forward"] | None = "both"
    holds_optimizer: bool = True
    rows: bool | None = None
    extra: Any = None
    examples: int | None = None
    tree: Any = None
    draw: Callable[[Any, int], list[Any]] | None = None

    @functools.cached_property
    def bound(self) -> Any:
        """The transform with its extra arguments; cached, so that `jit` compiles it once."""
        if not self.extra:
            return self.tx

        def update(
            updates: Updates, state: OptState, params: Params | None = None, **more: Any
        ) -> tuple[Updates, OptState]:
            return self.tx.update(updates, state, params, **self.extra_of(updates, params), **more)

        return GradientTransformationExtraArgs(self.tx.init, update)

    @functools.cached_property
    def compiled(self) -> Any:
        """The update under `jax.jit`, compiled once for all promises with the same shapes."""
        return jax.jit(self.bound.update)

    def extra_of(self, updates: Updates, params: Params | None) -> dict[str, Any]:
        """Return the extra arguments of an update."""
        extra: Any = self.extra or {}
        if callable(extra):
            extra = extra(updates, params)
        return extra

    def params(self, dtype: Any = None) -> Params:
        """Return the parameters, real ones in `dtype` unless it is None."""
        return as_dtype(example_params() if self.tree is None else self.tree, dtype)

    def like(self, grads: Updates) -> Updates:
        """Return gradients in the form of an update's, with or without an axis of examples."""
        if self.examples is None:
            return grads
        return jax.tree.map(lambda g: jnp.broadcast_to(g, (self.examples, *g.shape)), grads)

    def gradients(self, tree: Params, steps: int, dtype: Any = None) -> list[Updates]:
        """Return gradients for `tree`, one for each step."""
        if self.draw is not None:
            return [as_dtype(g, dtype) for g in self.draw(tree, steps)]
        return random_gradients(self.like(tree), steps, dtype)

    # ------------------------------------------------------------------ the parts of the transform

    @functools.cached_property
    def foreign(self) -> bool:
        """Whether it holds a transform of another library, or plain functions."""
        return any(_is_foreign(x) for x in inside(self.tx))

    @functools.cached_property
    def narrow(self) -> bool:
        """Whether one of its slots is set to 16 bits, or is stored in another form."""
        if any(isinstance(x, str) and x in ("bfloat16", "float16") for x in inside(self.tx)):
            return True
        state = jax.eval_shape(self.tx.init, self.params())
        return any(map(is_stored, jax.tree.leaves(state, is_leaf=is_stored)))

    @functools.cached_property
    def names_leaves(self) -> bool:
        """Whether it holds a tree, such as a mask, that names the leaves of its parameters."""
        trees = [x for x in inside(self.tx) if isinstance(x, FrozenTree)]
        return any(isinstance(leaf, bool | str) for tree in trees for leaf in tree.leaves)


def inside(x: Any) -> Iterator[Any]:
    """Yield `x` and all parts in it."""
    yield x
    parts: Any = ()
    if isinstance(x, Value):
        parts = fields_of(x).values()
    elif isinstance(x, FrozenTree):  # a transform of Optax is a tuple, but not a branch
        parts = jax.tree.leaves(x.unfreeze(), is_leaf=lambda v: v is None or _is_foreign(v))
    elif isinstance(x, functools.partial):
        parts = (x.func, *x.args, *x.keywords.values())
    elif type(x) in (tuple, list):
        parts = x
    for part in parts:
        yield from inside(part)


def transforms_by_field(tx: Any) -> dict[str, Any]:
    """Return the transforms of this library in the fields of a transform."""
    return {k: x for k, x in fields_of(tx).items() if isinstance(x, Transform)}


def _is_foreign(x: Any) -> bool:
    if isinstance(x, type | GradientTransformation):
        return type(x) in (OfFunctions, OfFunctionsExtraArgs)
    return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def is_known_function(x: Any) -> bool:
    """Whether `x` is a function or a class that configs may name."""
    return REGISTRY.name_of(x) is not None
