"""The matrices of a transformer on eight devices, and the compiled step of an optimizer on them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradxform.distributed as gd

DEVICES = 8
LAYERS, WIDTH = 8, 128
AXIS = "model"


def shapes(layers: int, d: int) -> Any:
    """Return the shapes of the matrices of a transformer."""
    one = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    return {f"layer{i}": dict(one) for i in range(layers)}


def shapes_apart(layers: int, d: int) -> Any:
    """Return the same with queries, keys and values apart."""
    one = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    return {f"layer{i}": dict(one) for i in range(layers)}


def specs_of(shapes: Any) -> Any:
    """Return how tensor parallelism cuts them: by columns what reads, by rows what writes."""
    wide, tall = PartitionSpec(None, AXIS), PartitionSpec(AXIS)
    return {
        layer: {name: tall if name in ("o", "down") else wide for name in of_layer}
        for layer, of_layer in shapes.items()
    }


def abstract(tree: Any) -> Any:
    """Return arrays of float32 without numbers, from their shapes."""
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=is_shape)


def mesh_of_all() -> jax.sharding.Mesh:
    """Return the mesh of eight devices."""
    return jax.make_mesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,))


def step_of(tx: Any, extra: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return a step of an optimizer, from gradients, state and parameters."""

    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = tx.update(grads, state, params, **(extra or {}))
        return jax.tree.map(jnp.add, params, updates), state

    return step


class Program(NamedTuple):
    """The step of an optimizer on eight devices."""

    compiled: Any
    step: Callable[..., Any]
    args: tuple[Any, ...]  # without numbers, and where they lie


def program(
    tx: Any, by_hand: bool, tree: Any = None, extra: Mapping[str, Any] | None = None
) -> Program:
    """Return the compiled step of an optimizer; this needs eight devices.

    Args:
      tx: the optimizer.
      by_hand: whether it says itself how its state lies and what devices send, by `state_specs`.
        Otherwise the compiler chooses, and the state lies as the parameters do.
      tree: the shapes of the matrices; None for those of the benchmarks.
      extra: extra arguments of its update.
    """
    tree = shapes(LAYERS, WIDTH) if tree is None else tree
    mesh, params, specs = mesh_of_all(), abstract(tree), specs_of(tree)
    state_specs = tx.state_specs(params) if by_hand else gd.state_sharding(tx, params, specs)

    def places(specs: Any) -> Any:
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs)

    def placed(tree: Any, specs: Any) -> Any:
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, places(specs)
        )

    grads, state = placed(params, specs), placed(jax.eval_shape(tx.init, params), state_specs)
    step, outs = step_of(tx, extra), (places(specs), places(state_specs))
    jitted = jax.jit(step, out_shardings=outs, donate_argnums=(1, 2))
    return Program(jitted.lower(grads, state, grads).compile(), step, (grads, state, grads))


def in_shares(tx: Any, tree: Any = None) -> Any:
    """Return an optimizer whose devices share the matrices."""
    tree = shapes(LAYERS, WIDTH) if tree is None else tree
    return gd.shard_matrices(tx, AXIS, specs_of(tree), mesh_of_all())
