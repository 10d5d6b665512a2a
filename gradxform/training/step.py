"""One step of training: the gradients applied, alone or compiled together with the loss."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import is_tracer
from gradxform.base import (
    GradientTransformation,
    check_transform,
    extra_names,
    unwrapped,
)
from gradxform.compat.called_numbers import check_numbers
from gradxform.distributed.averaging.stale import DropStaleState
from gradxform.errors import must_be, name_of, require_int32, shown
from gradxform.leaves import is_hole, leaves_of, names_of, path_str, with_paths
from gradxform.leaves.no_gradient import refuse_other_than_arrays, step_of_gradients
from gradxform.leaves.row_sparse import RowSparse
from gradxform.schedules.numbers_of_now import with_numbers_of_now
from gradxform.training.gradients import Differentiation, check_loss_fn, gradients_of
from gradxform.training.graph_arguments import check_name
from gradxform.training.loss_scales import scale_of_loss
from gradxform.training.var_list import as_static, index_of, quoted_paths
from gradxform.types import Array, OptState, Params, Updates
from gradxform.values import put_live
from gradxform.values.called import has_called
from gradxform.values.content import is_hashable
from gradxform.wrappers.loss_scale import unscaled_updates
from gradxform.wrappers.one_pass import call_update_params


def apply_gradients(
    tx: Any,
    grads: Updates = None,
    state: OptState = None,
    params: Params = None,
    step: Any = None,
    *,
    grads_and_vars: Iterable[tuple[Any, Any]] | None = None,
    name: Any = None,
    **extra: Any,
) -> tuple[Params, OptState]:
    """Return the parameters and the state after one update.

    The same as `tx.update` and `apply_updates`, except that gradients which are all None are an
    error here, as in TensorFlow and Keras: a bare `update` leaves all parameters as they are.

    Args:
      tx: any transform.
      grads: the gradients, in the structure of the parameters; None freezes its parameter. A list
        or `zip` of pairs is taken as `grads_and_vars`.
      state: the state of `tx`.
      params: the parameters.
      step: the number of earlier steps, for parts that read it (`external_step`, such as the
        schedules of `compat.tf1`); TensorFlow's global step. Defaults to their own count.
      grads_and_vars: in place of `grads`, pairs `(gradient, path)` with paths such as
        `encoder/kernel`, in any order. A parameter without a pair is frozen. Keyword-only.
      name: of TensorFlow; checked, and without effect. Keyword-only.
      **extra: other extra arguments of the update, such as `value`.

    Raises:
      ValueError: if all gradients are None, or pairs are missing; if a path names no parameter or
        occurs twice.
      TypeError: if `tx` is not a transform, parameters are missing, gradients are given in both
        forms, or a pair is not one.
    """
    check_name(name)
    return applied_gradients(
        "apply_gradients", tx, grads, state, params, step, grads_and_vars, extra
    )


def applied_gradients(
    part: str,
    tx: Any,
    grads: Updates,
    state: OptState,
    params: Params,
    step: Any,
    grads_and_vars: Iterable[tuple[Any, Any]] | None,
    extra: dict[str, Any],
    check: bool = True,
) -> tuple[Params, OptState]:
    """Return what `apply_gradients` returns.

    `part` is the name in messages; `check`, whether a misspelt extra argument is refused.
    """
    check_transform(part, tx, "tx")
    if params is None:
        raise TypeError(f"{part}: needs params, the parameters.")
    grads = one_tree(part, grads, grads_and_vars, params)
    paths = [path for path, leaf in with_paths(params) if not is_hole(leaf)]
    if paths and all(map(is_hole, leaves_of(grads))):
        raise ValueError(
            f"{part}: no gradients for any of the parameters {quoted_paths(paths)}. Does the loss "
            "depend on them, and does var_list select any?"
        )
    if check and isinstance(unwrapped(tx), GradientTransformation):
        unwrapped(tx).check_extra(extra)
    extra = extra if step is None else extra | {"step": step}
    if has_called(tx):  # before a part calls it under a condition, which is traced
        tx = put_live(*with_numbers_of_now(tx))

    if isinstance(unwrapped(tx), GradientTransformation):
        return step_of_gradients(_with_gradients)(tx, grads, state, params, **extra)
    return call_update_params(tx, grads, state, params, extra)


def _with_gradients(
    tx: Any, grads: Updates, state: OptState, params: Params, **extra: Any
) -> tuple[Params, OptState]:
    return call_update_params(tx, grads, state, params, extra)


def one_tree(part: str, grads: Any, grads_and_vars: Any, params: Params) -> Updates:
    """Return gradients as a tree like the parameters, from whichever form they have.

    Raises:
      TypeError: if they have both, or a gradient is not an array.
    """
    if grads_and_vars is None and _are_gradient_pairs(grads):
        grads, grads_and_vars = None, grads
    if grads_and_vars is not None:
        if grads is not None:
            raise TypeError(f"{part}: takes grads or grads_and_vars, got both.")
        grads = from_pairs(part, grads_and_vars, params)
    for path, g in with_paths(grads):
        is_number = isinstance(g, int | float | complex) or hasattr(g, "dtype")
        if not (is_number or is_hole(g) or isinstance(g, RowSparse)):
            raise TypeError(
                f"{part}: the gradient of {path_str(path)} must be an array, or None to leave its "
                f"parameter, got {shown(g)}."
            )
    return grads


def _are_gradient_pairs(grads: Any) -> bool:
    """Whether gradients come as pairs with a path, in TensorFlow's order or the other."""
    if isinstance(grads, Iterator):
        return True
    return (
        type(grads) in (list, tuple)
        and bool(grads)
        and all(
            type(pair) in (list, tuple) and len(pair) == 2 and any(isinstance(x, str) for x in pair)
            for pair in grads
        )
    )


def from_pairs(part: str, pairs: Iterable[tuple[Any, Any]], params: Params) -> Updates:
    """Return the gradients of pairs `(gradient, path)` in the structure of the parameters."""
    paths = [path for path, leaf in with_paths(params) if not is_hole(leaf)]
    field, indices = "grads_and_vars", set()
    gradients: list[Any] = [None] * len(paths)
    pairs = list(pairs)
    if paths and not pairs:
        raise ValueError(f"{part}: {field} is empty; the parameters are {quoted_paths(paths)}.")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{part}: {field} must be pairs (gradient, path), got {shown(pair)}.")
        gradient, path = pair
        if isinstance(gradient, str) and not isinstance(path, str):
            raise TypeError(
                f"{part}: {field} must be pairs (gradient, path), got the path {gradient!r} first."
            )
        i = index_of(part, field, path, paths)
        if i in indices:
            raise ValueError(f"{part}: {field} has two gradients of {path_str(paths[i])}.")
        indices.add(i)
        gradients[i] = gradient
    return jax.tree.unflatten(jax.tree.structure(params), gradients)


def make_step(
    tx: Any,
    loss_fn: Callable[..., Any],
    *,
    var_list: Any = None,
    grad_loss: Any = None,
    has_aux: bool = False,
    sparse: Any = None,
    update_in_backward: bool = False,
) -> "Step":
    """Return the compiled step `step(params, state, *batch, step=None, **extra)`.

    It returns `(params, state, loss)`, or `(params, state, (loss, aux))`, as `compute_gradients`
    and then `apply_gradients` would. Parts that want them get the extra arguments `value` (the
    loss), `grad`, `value_fn`, `obj_fn` and `grad_fn`, such as a line search of Optax, `sophia` or
    `sam(opaque_mode=True)`; a `drop_stale` gets the `grad_step` of this moment. Other extra
    arguments of the update are keyword arguments of the step. Steps of equal arguments share one
    program.

    If the optimizer has a `loss_scale`, the loss is multiplied by its scale before it is
    differentiated. What the step returns, and what parts get, is the loss itself.

    The buffers of `params` and `state` are donated: the arrays that you pass are gone afterwards,
    and their memory holds the new ones. Inside `jax.jit` or `jax.lax.scan` a step is a part of that
    program. `distributed.Replicas().wrap(step)` runs it on all replicas.

    Args:
      tx: any transform, or an optimizer of Optax.
      loss_fn: `loss_fn(params, *batch)` returns a real scalar; a function that hashes. Give it its
        arrays in the batch or in the parameters, since those it refers to are constants.
      var_list: which parameters to train, as in `compute_gradients`. Keyword-only, like the rest.
      grad_loss: as there.
      has_aux: as there.
      sparse: as there.
      update_in_backward: whether layers of `scan_layers` are updated in the backward pass, each as
        soon as its gradient is known, so that no more than one is ever held.

    Raises:
      TypeError: if `tx` is not a transform, `loss_fn` not a function that hashes, or
        `update_in_backward` not a boolean. When called, as `compute_gradients` and
        `apply_gradients`.
      ValueError: for `sparse` with `update_in_backward`. When called with `update_in_backward`: if
        the loss has no `scan_layers`, or has one where a layer cannot be updated there; if a part
        of `tx` cannot update layers one by one.
    """
    check_transform("make_step", tx, "tx")
    check_hashes("make_step", loss_fn)
    if not isinstance(update_in_backward, bool):
        raise TypeError(
            must_be("make_step", "update_in_backward", "True or False", update_in_backward)
        )
    if update_in_backward and sparse is not None:
        raise ValueError(
            "make_step: a step with update_in_backward=True has dense gradients; leave sparse out, "
            "or update_in_backward."
        )
    asked = Differentiation(as_static(var_list), has_aux, as_static(sparse))
    return Step(Asked(tx, loss_fn, asked, update_in_backward), grad_loss)


def check_hashes(part: str, loss_fn: Any) -> None:
    """Require a function that can be a key of compiled programs."""
    check_loss_fn(part, loss_fn)
    if not is_hashable(loss_fn):
        raise TypeError(
            f"{part}: loss_fn must hash, got a {type(loss_fn).__name__} that does not. Write a "
            "function that takes its arrays as arguments."
        )


class Asked(NamedTuple):
    """The static part of a step: equal ones share a program."""

    tx: Any  # with a `Hole` in place of every number that is an argument of the program
    loss_fn: Callable[..., Any]
    differentiation: Differentiation
    in_backward: bool = False  # whether the backward pass updates layers
    part: str = "make_step"  # the name in messages


class Numbers(NamedTuple):
    """The arguments of a step's program besides its trees."""

    live: tuple[Any, ...] = ()  # for the holes of the transform
    grad_loss: Any = None
    step: Any = None


def check_step(part: str, step: Any) -> None:
    """Require the number of earlier steps, before JAX takes it for an argument of a program."""
    kind = getattr(step, "dtype", None)
    is_integer = isinstance(step, int) if kind is None else jnp.issubdtype(kind, jnp.integer)
    if step is not None and (isinstance(step, bool) or not is_integer):
        raise TypeError(must_be(part, "step", "an integer, the number of earlier steps", step))
    require_int32(part, "step", step)


class Step:
    """A compiled step of training, as `make_step` returns it."""

    def __init__(self, asked: Asked, grad_loss: Any = None) -> None:
        self._asked, self._grad_loss = asked, grad_loss
        self._calls = has_called(asked.tx)

    def __repr__(self) -> str:
        asked = self._asked
        how = f", {_what_it_costs(asked.tx)}" if asked.in_backward else ""
        return f"make_step({asked.tx!r}, {name_of(asked.loss_fn)}{how})"

    def __call__(
        self, params: Params, state: OptState, *batch: Any, step: Any = None, **extra: Any
    ) -> tuple[Params, OptState, Any]:
        """Return the parameters and the state after one step, and the loss before it."""
        refuse_other_than_arrays(self._asked.part, params)
        asked, numbers = self._program(step)
        # With a live number in the transform, this is part of another program.
        run = donating if is_hashable(asked) else one_step
        try:
            return run(asked, numbers, params, state, batch, extra)
        except (ValueError, RuntimeError):
            _refuse_donated(asked.part, {"params": params, "state": state, "batch": batch})
            raise

    def lower(
        self, params: Params, state: OptState, *batch: Any, step: Any = None, **extra: Any
    ) -> Any:
        """Return the step lowered for these arguments, as the `lower` of a jitted function does."""
        refuse_other_than_arrays(self._asked.part, params)
        asked, numbers = self._program(step)
        return donating.lower(asked, numbers, params, state, batch, extra)

    def _program(self, step: Any) -> tuple[Asked, Numbers]:
        """Return the static part, and the numbers of this moment."""
        check_step(self._asked.part, step)
        tx, live = with_numbers_of_now(self._asked.tx) if self._calls else (self._asked.tx, ())
        check_numbers(tx, live)
        return self._asked._replace(tx=tx), Numbers(live, self._grad_loss, step)


def _refuse_donated(part: str, trees: dict[str, Any]) -> None:
    """Require that no array was given away to an earlier step."""
    for path, x in jax.tree.leaves_with_path(trees):
        if isinstance(x, jax.Array) and not is_tracer(x) and x.is_deleted():
            raise ValueError(
                f"{part}: {path_str(names_of(path))} was donated to an earlier step, and is gone. "
                "Go on with what it returned: params, state, loss = step(params, state, ...)."
            ) from None


def _what_it_costs(tx: Any) -> str:
    """Return how many backward passes a step takes that updates layers in them."""
    from gradxform.training.layers.check import asking_for_totals

    names = ", ".join(asking_for_totals(tx))
    more = f": two backward passes or more, for totals of {names}" if names else ""
    return "update_in_backward=True" + more


def one_step(
    asked: Asked,
    numbers: Numbers,
    params: Params,
    state: OptState,
    batch: tuple[Any, ...],
    more: dict[str, Any],
) -> tuple[Params, OptState, Any]:
    """Return the parameters and the state after one step, and the loss before it.

    `more` are extra arguments of the update.
    """
    tx, loss_fn, differentiation, in_backward, part = asked
    if more and isinstance(unwrapped(tx), GradientTransformation):
        unwrapped(tx).check_extra(more)
    tx = put_live(tx, numbers.live) if numbers.live else tx
    scale = scale_of_loss(part, tx, state)
    if in_backward:
        return _updating_layers(asked, tx, numbers, params, state, batch, scale, more)
    arguments = part, loss_fn, params, batch, differentiation, numbers.grad_loss
    out, grads = gradients_of(*arguments, scale)
    unscaled_grads = (
        grads if scale is None else unscaled_updates(grads, scale)
    )  # left out if no part wants it
    extra = _extra_arguments(tx, asked, numbers, batch, out, unscaled_grads)
    if scale is not None and "grad_fn" in extra:
        raise ValueError(
            f"{part}: a part of {name_of(tx)} takes gradients at other places by grad_fn, whose "
            "loss is not scaled; with loss_scale, use another optimizer."
        )
    extra |= begun_now(tx, state) | more
    return *applied_gradients(part, tx, grads, state, params, numbers.step, None, extra, False), out


def _updating_layers(
    asked: Asked,
    tx: Any,
    numbers: Numbers,
    params: Params,
    state: OptState,
    batch: tuple[Any, ...],
    scale: Array | None,
    more: dict[str, Any],
) -> tuple[Params, OptState, Any]:
    """Return what `one_step` does; the layers of the loss are updated in its backward pass."""
    # Imported where it is used: it knows of devices, which other steps need not load.
    from gradxform.training.layers.in_backward import LayeredStep

    if has_called(tx):
        tx = put_live(*with_numbers_of_now(tx))
    layers = LayeredStep(asked.part, tx, params, state)
    layers.find(asked.loss_fn, batch)
    layers.extra = begun_now(tx, state) | more
    if numbers.step is not None:
        layers.extra |= {"step": numbers.step}
    given = asked.part, asked.loss_fn, params, batch, asked.differentiation, numbers.grad_loss
    out, grads = gradients_of(*given, scale, layers)
    return *layers.step(grads), out


def begun_now(tx: Any, state: OptState) -> dict[str, Array]:
    """Return the extra argument `grad_step` of a `drop_stale`, for a gradient that begins now."""

    def is_counting(x: Any) -> bool:
        return isinstance(x, DropStaleState)

    states = jax.tree.leaves(state, is_leaf=is_counting)
    steps = [x.global_step for x in states if is_counting(x)]
    return {"grad_step": steps[0]} if steps and "grad_step" in (extra_names(tx) or ()) else {}


def _extra_arguments(
    tx: Any, asked: Asked, numbers: Numbers, batch: tuple[Any, ...], out: Any, grads: Updates
) -> dict[str, Any]:
    """Return the extra arguments that parts may want, as far as the transform takes them."""
    _, loss_fn, differentiation, _, part = asked

    def loss_of(out: Any) -> Any:
        return out[0] if differentiation.has_aux else out

    def value_fn(params: Params) -> Any:
        return loss_of(loss_fn(params, *batch))

    def grad_fn(params: Params, i: Any = 0) -> Updates:
        return gradients_of(part, loss_fn, params, batch, differentiation, numbers.grad_loss)[1]

    extra: dict[str, Any] = {"grad": grads}
    if not jnp.ndim(loss_of(out)):
        extra["value"] = loss_of(out)
    if numbers.grad_loss is None:
        extra["value_fn"] = value_fn
    names = extra_names(tx)
    if names is None:  # of another library: Optax's line searches refuse what they do not know
        return extra
    if "value_fn" in extra:
        extra["obj_fn"] = value_fn
    return {k: x for k, x in (extra | {"grad_fn": grad_fn}).items() if k in names}


donating = jax.jit(one_step, static_argnums=0, donate_argnums=(2, 3))
