"""Updates by an inner transform on a condition."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform import engine
from gradxform._jax.versions import settled_carry, varying_axes, varying_like
from gradxform.base import call_update
from gradxform.base.transformation import extra_names
from gradxform.errors import leaf_path, name_of
from gradxform.leaves import dtype_of, has_rows, is_hole, path_str, with_paths
from gradxform.leaves.states import laid_like
from gradxform.numerics import cast
from gradxform.numerics.loops import loop_at_most
from gradxform.tree.by_value import by_value
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.values.content import parts_of
from gradxform.wrappers.checks import Findings, remembering_findings
from gradxform.wrappers.one_pass import call_update_params
from gradxform.wrappers.parts import exact_part


def update_when(
    part: Any,
    tx: Any,
    due: Array,
    updates: Updates,
    state: OptState,
    params: Params | None,
    extra: dict[str, Any],
    *,
    differentiable: bool = False,
    zeros: bool = False,
    to_params: bool = False,
    before: Callable[[Updates], Updates] | None = None,
    found: Findings | None = None,
) -> tuple[Any, OptState]:
    """Return the result of `tx.update` if `due`, else `updates` and `state` unchanged.

    Uses a loop of at most one turn instead of `lax.cond`: a loop updates what it carries in place.
    Where it is differentiated, and with `differentiable` everywhere, there is a `lax.cond` instead.
    (A selection between both results would have a derivative of NaN where the derivative of the
    other result is infinite.)

    With `zeros` the updates are zeros if the step is not due. That is a `lax.cond`, too: `updates`
    do not become the result, so that a loop would have to copy them first.

    With `to_params` the parameters after the update take the place of the updates, or the
    parameters as they are if it is not due.

    The result has the dtypes of `updates` and `state`, whatever dtypes `tx` returns, so that they
    do not depend on `due`.

    If a leaf of the updates is row-sparse and the update is not due, the result is zeros in the
    form that `tx` returns.

    `tx` gets `before(updates)`, computed within the branch, where XLA fuses it with the work of
    `tx`. The arrays of a `jax.tree_util.Partial` are arguments of the program; those of other
    closures are not. `found` are the findings for the guards with which `tx` begins.
    """
    # Neither form needs less memory everywhere. Temporary memory of a donated, compiled step of
    # `MultiSteps` on the CPU, in sizes of the parameters, loop and branch: adam 0.67 and 0.00,
    # adamw 0.00 and 0.00, lion 1.00 and 2.00, lamb 0.33 and 1.00, muon 6.2 and 7.2. Of these the
    # loop stays within 1.1 for all that do not need more by themselves, the branch does not.
    # Under `vmap` the branch needs less. With `zeros` the branch does not need more for any of
    # these, and it accesses 2 sizes less (adam: 12 and 14).
    check_exact(part, tx, updates)
    key = _Key(part, tx, differentiable, zeros, to_params)
    arguments = due, updates, state, params, _extra(tx, extra), before, found
    return by_value(_conditional, key, arguments)


class _Key(NamedTuple):
    """Key of the program of a conditional update: all that it depends on beside its arguments."""

    part: Any
    tx: Any
    differentiable: bool
    zeros: bool
    to_params: bool


def _extra(tx: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """Return extra arguments without the functions that `tx` does not take."""
    names = extra_names(tx)
    return {k: x for k, x in extra.items() if names is None or k in names or not callable(x)}


def _conditional(
    key: _Key,
    due: Array,
    updates: Updates,
    state: OptState,
    params: Params | None,
    extra: dict[str, Any],
    before: Callable[[Updates], Updates] | None,
    findings: Findings | None,
) -> tuple[Updates, OptState]:
    """Return the result of `update_when`."""
    part, tx, differentiable, zeros, to_params = key
    if engine.only_adds_up():  # a total is asked for outside of a condition
        grads = updates if before is None else before(updates)
        with remembering_findings(grads, findings):
            called_now = call_update_params if to_params else call_update
            return called_now(tx, grads, state, params, extra)
    sparse = has_rows(updates) and not to_params
    # All that the loop may be differentiated by, unless a function hides more numbers.
    arguments = updates, params, extra, before, findings
    others = [x for x in jax.tree.leaves(arguments) if not isinstance(x, jax.Array)]
    hides = any(map(_hides_numbers, (tx, *others)))

    # These two get all traced arrays as arguments: `loop_at_most` keeps them beyond the trace.
    def called(
        grads: Updates, its_state: OptState, arguments: Any, own: Any
    ) -> tuple[Any, OptState]:
        _, params, extra, before, findings = arguments
        grads = grads if before is None else before(grads)
        with remembering_findings(grads, findings):
            if to_params:
                return call_update_params(tx, grads, its_state, own, extra)
            return call_update(tx, grads, its_state, params, extra)

    def turn(
        carry: tuple[Array, Updates, OptState], arguments: Any
    ) -> tuple[Array, Updates, OptState]:
        flag, old, old_state = carry
        # Where the carry begins as zeros, the gradients are only in the arguments.
        grads = arguments[0] if sparse or zeros or to_params else old
        new, new_state = called(grads, old_state, arguments, old)
        new = new if sparse else like_before(part, tx, new, old)
        new_state = like_before(part, tx, new_state, old_state)
        return varying_like((jnp.zeros_like(flag), new, new_state), carry)

    def turn_here(carry: tuple[Array, Updates, OptState]) -> tuple[Array, Updates, OptState]:
        return turn(carry, arguments)

    def loop(state: OptState) -> tuple[Updates, OptState]:
        if sparse:  # `tx` may return updates of another structure than it gets
            of_updates = lambda g, s: called(g, s, arguments, None)  # noqa: E731
            first = _zero_updates_if_not_due(of_updates, updates, state)
        else:
            first = jax.tree.map(strongly_typed, params if to_params else updates)
            first = jax.tree.map(_zeros_if_not_due, first) if zeros and not to_params else first
        carry = (due, first, jax.tree.map(strongly_typed, state))
        carry = settled_carry(turn_here, carry, (updates, params, extra))
        if differentiable or zeros:
            return lax.cond(due, turn_here, lambda carry: carry, carry)[1:]
        if hides:
            return loop_at_most(1, lambda carry: carry[0], turn_here, carry)[1:]
        return loop_at_most(1, lambda carry, _: carry[0], turn, carry, arguments)[1:]

    return _update_when_with_floats(loop, state)


def _hides_numbers(x: Any) -> bool:
    """Whether a value, or the closure of a function, may hold numbers that are traced."""
    parts = parts_of(x)
    if parts is not None:
        return any(map(_hides_numbers, parts))
    plain = bool | int | float | complex | str | bytes | type | None | np.ndarray | np.generic
    return not isinstance(x, plain)


def check_exact(part: Any, tx: Any, updates: Updates) -> None:
    """Require updates that must stay in float32 not to be rounded to the dtype of the gradients.

    Raises:
      ValueError: if a part of `tx` returns such updates, and a gradient is narrower.
    """
    inner = exact_part(tx)
    if inner is None:
        return
    for path, g in with_paths(updates):
        dtype = None if is_hole(g) else dtype_of(g)
        if dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
            raise ValueError(
                f"{name_of(part)}: the gradient of {path_str(path)} is {dtype}, to which it rounds "
                f"updates, and those of {name_of(inner)} must stay in float32. Put it inside: "
                f"{name_of(inner)}({name_of(part)}(...))."
            )


def _zero_updates_if_not_due(
    called: Callable[[Updates, OptState], Any], updates: Updates, state: OptState
) -> Updates:
    """Return zeros like the updates that a function of them and the state returns."""
    shapes, _ = jax.eval_shape(called, updates, state)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _zeros_if_not_due(x: Array) -> Array:
    """Return zeros that do not vary over devices: the updates of `tx` may not vary either."""
    return jnp.zeros(x.shape, x.dtype) if varying_axes(x) else jnp.zeros_like(x)


class IntegerForFloat(Exception):
    """Raised where a state has an integer or boolean and the transform returns a float."""

    def __init__(self, dtypes: PyTree) -> None:
        self.dtypes = dtypes  # a tree like the state, with the dtypes that the transform returns


def _update_when_with_floats(
    loop: Callable[[OptState], tuple[Updates, OptState]], state: OptState
) -> tuple[Updates, OptState]:
    """Return `loop(state)`; a hyperparameter that a user has set to 1 counts as 1.0."""
    try:
        return loop(state)
    except IntegerForFloat as error:
        dtypes = error.dtypes
    return loop(jax.tree.map(lambda x, y: jnp.asarray(x).astype(y.dtype), state, dtypes))


def strongly_typed(x: Any) -> Array:
    """Return an array that is not weakly typed: the types in a loop's carry must not change."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    return cast(x, x.dtype)


def like_before(part: Any, tx: Any, new: PyTree, old: PyTree) -> PyTree:
    """Return `new` with the structure and dtypes of `old`, and require the same shapes.

    Args:
      part: the part that runs `tx`, for messages.
      tx: the transform that returned `new`, for messages.
      new: updates or a state.
      old: the updates or the state before.

    Raises:
      IntegerForFloat: if `old` has an integer or boolean where `new` has a float.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        before, after = ([path for path, _ in with_paths(tree)] for tree in (old, new))
        if before != after:
            changed = set(before) ^ set(after)
            where = f", at {path_str(min(changed))}" if changed else ""
            raise ValueError(
                f"{name_of(part)}: {name_of(tx)} changed the structure of its state or "
                f"updates{where}."
            )
        new = laid_like(new, old)  # another library may change the classes alone

    def cast_leaf(path: tuple[Any, ...], x: Any, old_x: Any) -> Array:
        if jnp.shape(x) != jnp.shape(old_x):
            raise ValueError(
                f"{name_of(part)}: {name_of(tx)} changed the shape of {leaf_path(path)} from "
                f"{jnp.shape(old_x)} to {jnp.shape(x)}."
            )
        return cast(jnp.asarray(x), old_x.dtype)

    if any(map(became_float, jax.tree.leaves(old), jax.tree.leaves(new))):
        raise IntegerForFloat(jax.tree.map(lambda x: jax.ShapeDtypeStruct((), dtype_of(x)), new))
    return jax.tree_util.tree_map_with_path(cast_leaf, new, old)


def became_float(old: Any, new: Any) -> bool:
    """Whether `old` is an integer or boolean and `new` a float."""
    before, after = dtype_of(old), dtype_of(new)
    is_integer = jnp.issubdtype(before, jnp.integer) or jnp.issubdtype(before, jnp.bool_)
    return is_integer and jnp.issubdtype(after, jnp.floating)
