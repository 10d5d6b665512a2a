"""The programs of a holder: for one replica, or for all along an axis."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradxform.distributed.replicas import Replicas
from gradxform.errors import must_be
from gradxform.training.gradients import gradients_of
from gradxform.training.step import Numbers, applied_gradients
from gradxform.types import OptState, Params, Updates
from gradxform.values import put_live
from gradxform.wrappers.parts import all_parts

# A function of a static value, of a tree that all replicas share, and of trees of each replica.
Program = Callable[..., Any]


def check_replicas(replicas: Any) -> None:
    """Require `Replicas`, or None."""
    if replicas is not None and not isinstance(replicas, Replicas):
        raise TypeError(
            must_be("Optimizer", "replicas", "gradxform.distributed.Replicas or None", replicas)
        )


def axes_named_by(tx: Any) -> tuple[str, ...]:
    """Return the axes of replicas that a transform names, in any order."""
    parts = list(all_parts(tx))
    names = [getattr(part, trait, ()) for part in parts for trait in ("exchanges", "divides")]
    return tuple(dict.fromkeys(axis for axes in names for axis in axes))


def run(program: Program, tx: Any, replicas: Replicas | None, *arguments: Any) -> Any:
    """Return what a program returns, compiled once for equal static arguments.

    Without `replicas`, a transform that names an axis runs as its only replica.
    """
    if replicas is not None:
        return _replicated_holder_program(program, replicas)(*arguments)
    return _compiled_holder_program(program, axes_named_by(tx))(*arguments)


def as_one_replica(function: Callable[..., Any], axes: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function of trees as the one replica along each of some axes."""
    for axis in axes:
        function = functools.partial(_holder_program_on_one, function, axis)
    return function


def _holder_program_on_one(function: Callable[..., Any], axis: str, *trees: Any) -> Any:
    # Nothing is batched: what all replicas share stays so, and a condition stays one.
    out = jax.vmap(function, in_axes=None, axis_name=axis, axis_size=1)(*trees)
    return jax.tree.map(lambda x: x[0], out)


@functools.cache
def _compiled_holder_program(program: Program, axes: tuple[str, ...]) -> Callable[..., Any]:
    if not axes:
        return jax.jit(program, static_argnums=0)

    def alone(static: Any, shared: Any, *trees: Any) -> Any:
        return as_one_replica(functools.partial(program, static, shared), axes)(*trees)

    return jax.jit(alone, static_argnums=0)


@functools.lru_cache(maxsize=64)
def _replicated_holder_program(program: Program, replicas: Replicas) -> Callable[..., Any]:
    return replicas.wrap(program, static=(0,), shared=(1,))


# --------------------------------------------------------------------------------- what they do


class Update(NamedTuple):
    """The static part of an update: equal ones share a program."""

    tx: Any  # with a `Hole` in place of every number that is an argument of the program
    flags: tuple[tuple[str, bool], ...] = ()  # extra arguments that are not arrays


def init_program(tx: Any, _: Any, params: Params) -> OptState:
    """Return the first state."""
    return tx.init(params)


def gradients(static: Any, grad_loss: Any, params: Params, batch: Any) -> tuple[Any, Updates]:
    """Return the loss and its gradients; `static` is the loss function and how."""
    loss_fn, asked = static
    return gradients_of("compute_gradients", loss_fn, params, batch, asked, grad_loss)


def apply(
    static: Update, numbers: Numbers, grads: Updates, state: OptState, params: Params, extra: Any
) -> tuple[Params, OptState]:
    """Return the parameters and the state after an update."""
    tx = put_live(static.tx, numbers.live) if numbers.live else static.tx
    extra = extra | dict(static.flags)
    return applied_gradients("apply_gradients", tx, grads, state, params, numbers.step, None, extra)
