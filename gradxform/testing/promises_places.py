"""Promises about surroundings: Optax's transforms, donated buffers, several devices."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gradxform.leaves.storage import is_stored
from gradxform.leaves.storage.blocks import Blocks
from gradxform.testing.case import Case
from gradxform.testing.promise import (
    Broken,
    Skipped,
    as_numpy,
    check_close,
    is_key,
    leaves_of,
    promise,
    run,
    type_str,
)
from gradxform.testing.rounding import sway
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, Updates
from gradxform.wrappers.compose import chain

# The most devices that a promise uses.
DEVICES = 8


@promise(
    "Take params=None by keyword too, return (updates, state), and give the updates the structure "
    "and the dtypes of the gradients."
)
def runs_inside_optax_and_optax_inside(case: Case) -> None:
    """Steps in `optax.chain`, and with Optax's transforms in `chain`, equal those by itself."""
    try:
        import optax
    except ImportError:
        raise Skipped("optax is not installed; install gradxform[optax]") from None
    tree = case.params()
    grads = case.gradients(tree, 2)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        half: Any = optax.scale(0.5)

        def in_turn(update: Any) -> Any:
            """Return the transform and Optax's after it, without a chain."""

            def both(
                updates: Updates, state: OptState, params: Params | None = None
            ) -> tuple[Updates, OptState]:
                updates, first = update(updates, state[0], params)
                updates, second = half.update(updates, state[1])
                return updates, (first, second)

            return optax.GradientTransformation(
                lambda params: (case.bound.init(params), half.init(params)), both
            )

        traced = in_turn(case.bound.update)
        alone = functools.partial(_params_after_steps, in_turn(case.compiled))
        for pair, where in (
            (optax.chain(case.bound, half), "outside of optax.chain"),
            (chain(case.bound, half), "without optax.scale beside it"),
        ):
            # Nearly always the program is the same, and need not be compiled and run.
            if not _same_program(pair, traced, tree, grads[0]):
                params, slack = (
                    _params_after_steps(pair, tree, grads),
                    lambda: sway(alone, tree, grads),
                )
                expected = alone(tree, grads)
                check_close("params", params, expected, 1e-5, what=f" {where}", sway=slack)


def _same_program(a: Any, b: Any, tree: Params, grads: Updates) -> bool:
    """Whether steps of two transforms start from equal states and are the same operations."""
    states = a.init(tree), b.init(tree)
    (ours, (updates, state)), (theirs, _) = (
        jax.make_jaxpr(tx.update, return_shape=True)(grads, state, tree)
        for tx, state in zip((a, b), states, strict=True)
    )
    return (
        _equal_arrays(*map(jax.tree.leaves, states))
        and str(ours) == str(theirs)
        and _equal_arrays(ours.consts, theirs.consts)
        # It passes on what the next step takes.
        and jax.tree.structure((updates, state)) == jax.tree.structure((grads, states[0]))
    )


def _equal_arrays(a: list[Any], b: list[Any]) -> bool:
    """Whether lists of arrays have the same types and numbers."""
    return list(map(type_str, a)) == list(map(type_str, b)) and all(
        np.array_equal(as_numpy(x), as_numpy(y)) for x, y in zip(a, b, strict=True)
    )


def _params_after_steps(tx: Any, tree: Params, grads: list[Updates], update: Any = None) -> Params:
    return run(tx, tree, grads, update)[0]


@promise(
    "Allocate every leaf of the state: gradxform.slots.zeros_like per slot, jnp.copy(p) for a "
    "slot that starts as the parameter."
)
def owns_its_buffers(case: Case) -> None:
    """Leaves of the first state share no buffer with each other or a parameter: donation works."""
    tree = case.params()
    (g,) = case.gradients(tree, 1)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(tree: Params, state: OptState, g: Updates) -> tuple[Params, OptState]:
        updates, state = case.bound.update(g, state, tree)
        return apply_updates(tree, updates), state

    for init in (case.bound.init, jax.jit(case.bound.init)):
        params = jax.tree.map(jnp.copy, tree)
        state = init(params)
        owners: dict[int, str] = {}
        for path, x in {**leaves_of("params", params), **leaves_of("state", state)}.items():
            if not isinstance(x, jax.Array) or not x.size or is_key(x):
                continue
            pointer = x.addressable_shards[0].data.unsafe_buffer_pointer()
            if pointer in owners:
                raise Broken(
                    f"that of {owners[pointer]}", expected="a buffer of its own", leaf=path
                )
            owners[pointer] = path
        params, state = step(params, state, g)
        step(params, state, g)


@promise(
    "Let jit and its partitioner divide the arrays: no reshaping across the whole tree, no device "
    "named in the transform."
)
def sharded_equals_unsharded(case: Case) -> None:
    """Steps on parameters sharded over several devices equal those on one device."""
    tree = case.params()
    n = _devices_for(tree)
    mesh = jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])

    place_whole = functools.partial(jax.device_put, device=NamedSharding(mesh, PartitionSpec()))

    def place(x: Array) -> Array:
        axis = _divided_axis(x, n)
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "x")
        return jax.device_put(x, NamedSharding(mesh, spec))

    def update(grads: Updates, state: OptState, params: Params) -> Any:
        state = jax.tree.map(lambda x: x if len(x.devices()) > 1 else place_whole(x), state)
        after = case.compiled(grads, state, params)
        # The next step gets its arguments in the same places, so that its program is the same.
        return jax.tree.map(
            lambda new, old: jax.device_put(new, old.sharding), after, (params, state)
        )

    grads = case.gradients(tree, 2)
    steps = functools.partial(_params_after_steps, case.bound, update=case.compiled)
    expected, slack = steps(tree, grads), functools.partial(sway, steps, tree, grads)
    params = _params_after_steps(case.bound, *jax.tree.map(place, (tree, grads)), update=update)
    check_close("params", params, expected, 1e-5, what=" on one device", sway=slack)


@promise(
    "Derive from gradxform.Transform, whose update leaves explicit axes to the compiler, and make "
    "each slot in init by gradxform.slots, so that it lies like its parameter."
)
def runs_on_explicit_meshes(case: Case) -> None:
    """Steps on a mesh with explicit axes, without jit and with it, equal those on one device.

    Updates lie like the parameters, and so do slots of their shapes, from `init` on.
    """
    tree = case.params()
    mesh = _explicit_mesh(tree)
    grads = case.gradients(tree, 2)
    steps = functools.partial(_params_after_steps, case.bound, update=case.compiled)
    expected, slack = steps(tree, grads), functools.partial(sway, steps, tree, grads)
    first, divided_grads = jax.tree.map(functools.partial(_divided_over, mesh), (tree, grads))
    params = first
    with jax.set_mesh(mesh):
        state = case.bound.init(params)
        _check_slots(state, first)
        updates, state = case.bound.update(divided_grads[0], state, params)
        params = _checked_step(params, updates, first, state)
        updates, state = case.compiled(divided_grads[1], state, params)
        params = _checked_step(params, updates, first, state)
    # Blocks end where devices cut an array: each stores its piece as it would store an array.
    if not any(isinstance(x, Blocks) for x in jax.tree.leaves(state, is_leaf=is_stored)):
        check_close("params", params, expected, 1e-5, what=" on one device", sway=slack)


def _checked_step(params: Params, updates: Updates, first: Params, state: OptState) -> Params:
    """Return the parameters after a step whose results lie like the first ones."""
    old = leaves_of("updates", first)
    for path, x in leaves_of("updates", updates).items():
        _check(path, x, old[path])
    _check_slots(state, first)
    return apply_updates(params, updates)


def _check_slots(state: OptState, params: Params) -> None:
    """Require every slot that has the shape of its parameter to lie like it."""
    divided_params = {
        path: p for path, p in leaves_of("", params).items() if path and any(_spec(p))
    }
    for slot, x in leaves_of("state", state).items():
        for path, p in divided_params.items():
            if slot.endswith(path) and jnp.shape(x) == p.shape:
                _check(slot, x, p)


def _check(path: str, x: Any, p: Any) -> None:
    mesh, spec = getattr(x.sharding, "mesh", None), _spec(x)
    if (mesh, spec) != (p.sharding.mesh, _spec(p)):
        raise Broken(
            f"a place of {spec} on {mesh}", expected=f"{_spec(p)} on {p.sharding.mesh}", leaf=path
        )


def _spec(x: Array) -> tuple[Any, ...]:
    """Return which mesh axis divides each dimension of an array."""
    spec = tuple(getattr(x.sharding, "spec", ()))
    return spec + (None,) * (x.ndim - len(spec))


def _explicit_mesh(tree: Params) -> Mesh:
    """Return a mesh of two explicit axes that divides most dimensions of arrays of `tree`."""
    most = min(jax.device_count(), DEVICES)
    counts = {  # of divided dimensions
        (n, m): sum(
            sum(map(bool, _dividing_axes(x, {"x": n, "y": m}))) for x in jax.tree.leaves(tree)
        )
        for n in range(2, most + 1)
        for m in range(1, n + 1)
        if n * m <= most
    }
    if not any(counts.values()):
        raise Skipped(
            f"two axes of {most} devices divide no dimension of a parameter; "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 makes eight devices"
        )
    sizes = max(counts, key=lambda sizes: (counts[sizes], sizes))
    devices = jax.devices()[: sizes[0] * sizes[1]]
    return jax.make_mesh(sizes, ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=devices)


def _dividing_axes(x: Array, sizes: Mapping[str, int]) -> list[str | None]:
    """Return for each dimension of `x` a mesh axis that divides it; no axis divides two of them."""
    free, axes = {name: n for name, n in sizes.items() if n > 1}, []
    for size in x.shape:
        axes.append(next((name for name, n in free.items() if size and size % n == 0), None))
        free.pop(axes[-1], None)
    return axes


def _divided_over(mesh: Mesh, x: Array) -> Array:
    """Return an array with as many of its dimensions divided as the axes of a mesh allow."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*_dividing_axes(x, mesh.shape))))


def _devices_for(tree: Params) -> int:
    """Return how many devices divide the most arrays of `tree`, and the most of such numbers."""
    most = min(jax.device_count(), DEVICES)
    if most < 2:
        raise Skipped(
            "there is one device; XLA_FLAGS=--xla_force_host_platform_device_count=8 makes eight"
        )
    counts = {  # of divided arrays
        n: sum(_divided_axis(x, n) is not None for x in jax.tree.leaves(tree))
        for n in range(2, most + 1)
    }
    if not any(counts.values()):
        raise Skipped(f"2 to {most} devices divide no dimension of a parameter")
    return max(counts, key=lambda n: (counts[n], n))


def _divided_axis(x: Array, n: int) -> int | None:
    """Return the first axis of `x` that `n` devices divide, or None."""
    return next((axis for axis, size in enumerate(x.shape) if size and size % n == 0), None)
