"""The derivative of a scan whose layers are updated as soon as their gradients are known."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.leaves.storage import rows_before
from gradxform.training.layers.found import Scan
from gradxform.training.layers.scan import Layers, types_of_layer
from gradxform.types import Array, PyTree

__all__ = []


class Updating(Protocol):
    """A step that holds layers, and updates them."""

    trained: set[int]

    def layer_of_leaf(self, j: int, i: Any) -> Array:
        """Return a layer of a parameter, (1, ...)."""
        ...

    def update_layer(self, scan: Scan, i: Any, gradients: dict[int, Array]) -> None:
        """Update a layer, for its gradients (1, ...)."""
        ...


def scanned(
    step: Updating, scan: Scan, stack: Layers, x: PyTree, xs: PyTree, token: Array
) -> tuple[PyTree, PyTree]:
    """Return the last carry and all outputs of a scan, whose derivative updates the layers.

    A layer is computed anew from what it got, but for what the policy keeps.
    """
    types, x_type = types_of_layer((stack.params, xs)), jax.eval_shape(lambda a: a, x)
    # What the block has from elsewhere, such as other parameters, has cotangents of its own.
    block, from_elsewhere = jax.closure_convert(stack.call, types[0], x_type, types[1])
    one = _Differentiable(step, scan, jax.tree.structure(stack.params), block, stack.policy)
    y_type = jax.eval_shape(one.call, jax.tree.leaves(types[0]), x_type, types[1], from_elsewhere)[
        1
    ]
    numbers = jnp.arange(stack.count)

    @jax.custom_vjp
    def run(x: PyTree, xs: PyTree, elsewhere: Any, token: Array) -> tuple[PyTree, PyTree]:
        def turn(x: PyTree, layer: Any) -> tuple[PyTree, PyTree]:
            i, s = layer
            return one.call(one.params(i), x, s, elsewhere)

        return lax.scan(turn, x, (numbers, xs), unroll=stack.unroll)

    def forward(x: PyTree, xs: PyTree, elsewhere: Any, token: Array) -> Any:
        def turn(x: PyTree, layer: Any) -> Any:
            i, s = layer
            (new, y), kept = one.kept(one.params(i), x, s, elsewhere)
            return new, (y, x, kept)

        x, (ys, inputs, kept) = lax.scan(turn, x, (numbers, xs), unroll=stack.unroll)
        return (x, ys), (inputs, kept, xs, elsewhere)

    def backward(saved: Any, cotangents: Any) -> Any:
        inputs, kept, xs, elsewhere = saved
        of_x, of_ys = cotangents
        in_x, in_xs, in_elsewhere, in_y = map(_Floats.of, (x_type, types[1], elsewhere, y_type))

        def turn(carry: Any, layer: Any) -> Any:
            ct, ct_elsewhere = carry
            i, x, kept, s, ct_y = layer
            pull = one.pull(kept, one.params(i), x, s, elsewhere)
            g, ct_x, ct_s, more = pull((in_x.cotangents(ct, x), in_y.cotangents(ct_y, y_type)))
            one.update(i, g)
            total = [a + b for a, b in zip(ct_elsewhere, in_elsewhere.among(more), strict=True)]
            return (in_x.among(ct_x), total), in_xs.among(ct_s)

        first = in_x.among(of_x), [jnp.zeros_like(a) for a in in_elsewhere.among(elsewhere)]
        layers = numbers, inputs, kept, xs, in_y.among(of_ys)
        (ct, ct_elsewhere), ct_xs = lax.scan(turn, first, layers, reverse=True, unroll=stack.unroll)
        return (
            in_x.cotangents(ct, x_type),
            in_xs.cotangents(ct_xs, xs),
            in_elsewhere.cotangents(ct_elsewhere, elsewhere),
            jnp.zeros_like(token),
        )

    run.defvjp(forward, backward)
    return run(x, xs, from_elsewhere, token)


class _Differentiable:
    """One layer of a scan: its function, and how it is differentiated."""

    def __init__(self, step: Updating, scan: Scan, treedef: Any, block: Any, policy: Any) -> None:
        self.step, self.scan, self.treedef = step, scan, treedef
        self.block, self.policy = block, policy
        self.is_on = [j in step.trained for j in scan.indices]

    def params(self, i: Any) -> list[Array]:
        """Return the parameters of a layer."""
        return [self.step.layer_of_leaf(j, i)[0] for j in self.scan.indices]

    def call(self, leaves: Sequence[Any], x: PyTree, s: PyTree, elsewhere: Any) -> Any:
        """Return the carry after the layer, and its output."""
        return self.block(self.treedef.unflatten(leaves), x, s, *elsewhere)

    def _vjp(self, leaves: list[Any], x: PyTree, s: PyTree, elsewhere: Any) -> tuple[Any, Any]:
        """Return the results, and the function from their cotangents to those of the trained."""

        def of(trained: list[Any], x: PyTree, s: PyTree, elsewhere: Any) -> Any:
            rest = iter(trained)
            mixed = [next(rest) if on else p for on, p in zip(self.is_on, leaves, strict=True)]
            return self.call(mixed, x, s, elsewhere)

        if self.policy is not None:
            of = jax.checkpoint(of, policy=self.policy, prevent_cse=False)
        return jax.vjp(of, list(itertools.compress(leaves, self.is_on)), x, s, elsewhere)

    def kept(self, leaves: list[Any], x: PyTree, s: PyTree, elsewhere: Any) -> tuple[Any, Any]:
        """Return the results, and what is kept for the derivative besides what the layer gets."""
        if self.policy is None:
            return self.call(leaves, x, s, elsewhere), []
        results, pull = self._vjp(leaves, x, s, elsewhere)
        arrays, self.form = jax.tree.flatten(pull)
        given = [*leaves, *jax.tree.leaves((x, s, elsewhere))]
        # The parameters of a layer, too, are among what its derivative needs.
        self.places = [next((k for k, a in enumerate(given) if a is b), None) for b in arrays]
        return results, [b for b, k in zip(arrays, self.places, strict=True) if k is None]

    def pull(self, kept: list[Any], leaves: list[Any], x: PyTree, s: PyTree, elsewhere: Any) -> Any:
        """Return the function from cotangents of the results to those of all else."""
        if self.policy is None:
            return self._vjp(leaves, x, s, elsewhere)[1]
        rest, given = iter(kept), [*leaves, *jax.tree.leaves((x, s, elsewhere))]
        return self.form.unflatten([next(rest) if k is None else given[k] for k in self.places])

    def update(self, i: Any, gradients: list[Array]) -> None:
        """Update the layer, if any of its parameters is trained."""
        trained = itertools.compress(self.scan.indices, self.is_on)
        rows = {j: g[None] for j, g in zip(trained, gradients, strict=True)}
        if rows:
            with rows_before(i):
                self.step.update_layer(self.scan, i, rows)


class _Floats(NamedTuple):
    """Which leaves of a tree have a cotangent."""

    are: list[bool]

    @classmethod
    def of(cls, tree: PyTree) -> "_Floats":
        """Return which of a tree."""
        return cls([jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(tree)])

    def among(self, tree: PyTree) -> list[Any]:
        """Return these leaves of a tree."""
        return list(itertools.compress(jax.tree.leaves(tree), self.are))

    def cotangents(self, values: list[Any], like: PyTree) -> PyTree:
        """Return a tree of cotangents, of which these are those of floating leaves."""
        rest = iter(values)
        leaves, treedef = jax.tree.flatten(like)
        none = lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0)  # noqa: E731
        pairs = zip(self.are, leaves, strict=True)
        return treedef.unflatten([next(rest) if is_float else none(x) for is_float, x in pairs])
