"""Scans over layers whose parameters are stacked, as a loss writes them."""

import contextvars
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax import lax

from gradxform.errors import must_be, name_of, shown
from gradxform.leaves import Path, is_hole, shape_of, with_paths
from gradxform.types import Params, PyTree

__all__ = ["scan_layers"]


class InStep(Protocol):
    """What takes the scans of a loss over, while a step differentiates it."""

    def scan(self, stack: "Layers", x: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """Return the last carry, and the stacked outputs of all layers."""
        ...


IN_STEP: contextvars.ContextVar[InStep | None] = contextvars.ContextVar("in_step", default=None)


class Layers:
    """Layers of one kind, stacked: the function of one, and the parameters of all."""

    def __init__(self, block: Callable[..., Any], params: Params, policy: Any, unroll: int) -> None:
        self.block, self.params, self.policy, self.unroll = block, params, policy, unroll
        self.count = _count_of(params)
        self.has_outputs = False  # known once a layer has been traced

    def __str__(self) -> str:
        return f"scan_layers({name_of(self.block)}, ...)"

    def call(self, p: Params, x: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """Return the carry after a layer, and its output."""
        out = self.block(p, x) if xs is None else self.block(p, x, xs)
        return out if self.has_outputs else (out, None)

    def check(self, x: PyTree, xs: PyTree) -> None:
        """Require a layer to return a carry like the one that it gets; see what else it returns."""
        first = types_of_layer((self.params, xs))
        own, out = jax.eval_shape(lambda x, p, s: (x, self.call(p, x, s)[0]), x, *first)
        pair = type(out) is tuple and len(out) == 2
        if pair and jax.tree.structure(out) != jax.tree.structure(own):
            self.has_outputs = True
            out = out[0]
        if jax.tree.structure(out) != jax.tree.structure(own):
            raise TypeError(
                f"{self}: block must return x, or a pair (x, y), with x as it gets it, "
                f"{jax.tree.structure(own)}; it returned {jax.tree.structure(out)}."
            )
        for (path, old), new in zip(arrays_in(own), jax.tree.leaves(out), strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                where = f" at {leaf_name(path)}" if path else ""
                raise TypeError(
                    f"{self}: block must return x{where} as it gets it, {old.dtype}{old.shape}; it "
                    f"returned {new.dtype}{new.shape}."
                )


def arrays_in(tree: PyTree) -> list[tuple[Path, Any]]:
    """Return the leaves of a tree, with their paths."""
    return [(path, x) for path, x in with_paths(tree) if not is_hole(x)]


def leaf_name(path: Path) -> str:
    """Return the path of a leaf for a message."""
    return "/".join(path) or "the root"


def types_of_layer(stacks: PyTree) -> PyTree:
    """Return the types of one layer of stacks."""
    return jax.eval_shape(lambda stacks: jax.tree.map(lambda x: x[0], stacks), stacks)


def _count_of(params: Params) -> int:
    """Return how many layers are stacked.

    Raises:
      ValueError: without parameters; if one is not stacked, or their lengths differ.
    """
    leaves = arrays_in(params)
    if not leaves:
        raise ValueError("scan_layers: layers must have at least one parameter, got none.")
    first, count = "", -1
    for path, x in leaves:
        shape = shape_of(x)
        if not shape:
            raise ValueError(
                f"scan_layers: {leaf_name(path)} of layers must be stacked, with an index of its "
                "first axis for each layer; it is a scalar. Pass what all layers share in x, or "
                "let block refer to it."
            )
        if count not in (-1, shape[0]):
            raise ValueError(
                f"scan_layers: {leaf_name(path)} of layers has {shape[0]} layers, {first} has "
                f"{count}. Stack the parameters of layers of one kind along the first axis."
            )
        if not shape[0]:
            raise ValueError(f"scan_layers: {leaf_name(path)} of layers has no layer.")
        first, count = leaf_name(path), shape[0]
    return count


def scan_layers(
    block: Callable[..., Any],
    layers: Params,
    x: PyTree,
    xs: PyTree = None,
    *,
    policy: Callable[..., Any] | None = None,
    unroll: int = 1,
) -> Any:
    """Return `x` after all layers, whose parameters are stacked along the first axis.

        for i in range(L):
            x = block(layers[i], x)

    A `jax.lax.scan` of a rematerialized block: the backward pass computes a layer anew from what it
    got. In a loss of `make_step(..., update_in_backward=True)` it also updates each layer as soon
    as its gradient is known.

    Args:
      block: `block(params, x) -> x`, one layer. It may return a pair `(x, y)` instead, and gets
        `xs[i]` as its third argument, if there are `xs`.
      layers: the parameters of all layers, a tree of arrays (L, ...).
      x: what the first layer gets: any tree of arrays.
      xs: what each layer gets besides, a tree of arrays (L, ...), such as dropout keys or the
        numbers of the layers.
      policy: what of a layer is kept for the backward pass, as in `jax.checkpoint`. Defaults to
        nothing but its input. Keyword-only.
      unroll: how many layers are one turn of the loop, as in `jax.lax.scan`. Keyword-only.

    Returns:
      What the last layer returned, or a pair of that and all `y`, stacked.

    Raises:
      TypeError: if `block` or `policy` is not a function, or `block` returns an `x` of other shapes
        than it got.
      ValueError: if a parameter is not stacked, or the parameters are of different numbers of
        layers.
    """
    if not callable(block):
        raise TypeError(must_be("scan_layers", "block", "a function of a layer", block))
    if policy is not None and not callable(policy):
        rule = "a policy such as jax.checkpoint_policies.dots_saveable, or None"
        raise TypeError(must_be("scan_layers", "policy", rule, policy))
    if isinstance(unroll, bool) or not isinstance(unroll, int) or unroll < 1:
        raise ValueError(
            f"scan_layers: unroll must be an integer of at least 1, got {shown(unroll)}."
        )
    stack = Layers(block, layers, policy, unroll)
    for path, leaf in arrays_in(xs):
        if shape_of(leaf)[:1] != (stack.count,):
            raise ValueError(
                f"scan_layers: {leaf_name(path)} of xs must have an entry for each of the "
                f"{stack.count} layers, got shape {shape_of(leaf)}."
            )
    x = jax.tree.map(jax.numpy.asarray, x)
    stack.check(x, xs)
    step = IN_STEP.get()
    x, ys = _scanned(stack, x, xs) if step is None else step.scan(stack, x, xs)
    return (x, ys) if stack.has_outputs else x


def _scanned(stack: Layers, x: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
    block = jax.checkpoint(stack.call, policy=stack.policy, prevent_cse=False)

    def turn(x: PyTree, layer: Any) -> tuple[PyTree, PyTree]:
        return block(layer[0], x, layer[1])

    return lax.scan(turn, x, (stack.params, xs), unroll=stack.unroll)
