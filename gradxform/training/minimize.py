"""Minimize a function with any optimizer, in one compiled loop."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform import engine, tree
from gradxform._jax.programs import by_program
from gradxform.base.transformation import call_update, check_transform, extra_names
from gradxform.errors import must_be, shown
from gradxform.leaves import check_params, is_hole, widest_dtype
from gradxform.leaves.no_gradient import as_holes, filled
from gradxform.numerics import cast, scalars_as
from gradxform.training.derivatives import stored_pair, value_and_grad_from_state
from gradxform.training.gradients import Differentiation, check_call, gradients_of
from gradxform.training.loss_scales import refuse_scale
from gradxform.transforms.lbfgs.line_search import where, without_aux
from gradxform.transforms.tree_rules import as_loss
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, PyTree
from gradxform.values.export_names import announce_named_tuples

# Why a run ended, by its code.
REASONS = ("running", "converged", "stalled", "failed", "not finite", "max_evaluations")
_CONVERGED, _STALLED, _FAILED, _NOT_FINITE, _MAX_EVALUATIONS = range(1, len(REASONS))

_MOST = np.iinfo(np.int32).max  # evaluations are counted in int32


class MinimizeResult(NamedTuple):
    """The result of `minimize`."""

    params: Params  # the best parameters that were evaluated
    value: Array  # the value there
    state: OptState  # the optimizer's state after the last update
    evaluations: Array  # int32 scalar; how often the function was evaluated
    iterations: Array  # int32 scalar; the optimizer's own count of iterations, or else its updates
    reason: Array  # int32 scalar; the number of what `why` returns
    aux: PyTree = None  # with has_aux, what the function returns beside the value at `params`

    def why(self) -> Any:
        """Return why the run ended; of several runs under `vmap`, an array of reasons.

        "converged", "stalled", "failed", "not finite" or "max_evaluations"; see `minimize`.
        """
        return np.asarray(REASONS)[np.asarray(self.reason)]


class _Run(NamedTuple):
    params: Params  # where to evaluate next
    state: OptState
    best: Params
    value: Array  # at `best`
    evaluations: Array
    updates: Array  # how many updates there were
    reason: Array  # 0 while the run goes on


def minimize(
    fun: Callable[[Params], Any],
    params: Params,
    tx: Any,
    tol: float = 1e-5,
    max_evaluations: int = 1000,
    has_aux: bool = False,
) -> MinimizeResult:
    """Minimize a function with any optimizer, in one loop that may be under `jit` or `vmap`.

    Each turn evaluates the function and its gradient once, and calls `tx.update` with the extra
    arguments `value`, `grad` and `value_fn`, and `obj_fn` if it takes that. An update with the line
    search of `lbfgs` evaluates the function too, and that counts; what its state holds is not
    evaluated again.

    Under `vmap`, the loop goes on until the last problem ends; the others stay as they are.

    Args:
      fun: the function of the parameters; it returns a real scalar. The same at each call: for
        batches, write a loop.
      params: where to start. What cannot have a gradient, such as an integer, stays as it is.
      tx: the optimizer: `lbfgs_steps()` for smooth functions, or any other.
      tol: the run ends at the lowest value so far if the gradient there is at most this long; at
        least 0.
      max_evaluations: the run ends after so many evaluations, at least 1. An update with a line
        search of its own is not cut short.
      has_aux: whether `fun` returns a pair `(value, aux)`. At the end it is evaluated once more,
        which does not count, and `result.aux` is what it returns beside the lowest value.

    Returns:
      The best parameters that were evaluated and their value, in float64 if a parameter has 64 bits
      and else in float32, the state, counts, and the reason of the end, which `result.why()`
      tells: "converged", by `tol` or by the optimizer's state; "stalled" or "failed", as the state
      of `lbfgs_steps` says; "not finite" parameters; or "max_evaluations".

    Raises:
      TypeError: if `tx` is not an optimizer, if `fun` is not a function that returns a real scalar,
        or if `params` is None.
      ValueError: if `tol` or `max_evaluations` is out of its range.
    """
    _check(fun, params, tx, tol, max_evaluations)
    holed = as_holes(params)
    if not jax.tree.leaves(holed):
        check_params("minimize", params)

    def of_holed(holed: Params) -> Any:  # what cannot have a gradient is a constant
        return fun(filled(holed, params))

    moved = jax.tree.map(_array, holed)
    with scalars_as(widest_dtype(moved)):  # also in JAX's mode of 64 bits
        of_moved = fun if holed is params else of_holed
        result = _run_minimization(of_moved, moved, tx, tol, max_evaluations, has_aux)
    return result if holed is params else result._replace(params=filled(result.params, params))


def _run_minimization(
    fun: Callable[[Params], Any],
    params: Params,
    tx: Any,
    tol: float,
    max_evaluations: int,
    has_aux: bool,
) -> MinimizeResult:
    state = jax.tree.map(_array, tx.init(params))
    refuse_scale("minimize", state, "call it with the optimizer inside.")

    def loss(params: Params, **_: Any) -> Array:
        value = fun(params)
        value = without_aux("minimize", "fun", value) if has_aux else value
        loss = as_loss("minimize", value, "the value of fun", "say has_aux=True")
        if jnp.issubdtype(jnp.result_type(value), jnp.integer) and not isinstance(value, int):
            raise TypeError(  # its gradient is 0 everywhere, as in a minimum
                f"minimize: fun returned a scalar of dtype {jnp.result_type(value)}, which has no "
                "gradient; let it return a floating scalar."
            )
        return loss

    dtype = jax.eval_shape(loss, params).dtype
    zero = jnp.zeros((), jnp.int32)
    begun = _Run(params, state, params, jnp.asarray(jnp.inf, dtype), zero, zero, zero)

    def turn(run: _Run) -> _Run:
        value, grad, evaluations = _evaluate_run(loss, run)
        value = cast(value, dtype)
        # Values that are equal up to roundings do not hide a gradient that is short enough.
        noise = 8 * jnp.finfo(dtype).eps * jnp.abs(value)
        is_first = run.updates == 0
        is_best = is_first | (value < run.value)
        length = engine.global_norm(grad)
        # A length of 0 may be that of a gradient whose squares are too small for its dtype.
        is_short = (length <= tol) & ((length > 0) | _is_minimized_grad_zero(grad))
        is_short &= is_best | (value <= run.value + noise)
        best, lowest = where(is_best | is_short, (run.params, value), (run.best, run.value))

        given = {"value": value, "grad": grad, "value_fn": loss}
        if "obj_fn" in (extra_names(tx) or ()):  # a search of Optax refuses what it does not know
            given["obj_fn"] = loss
        # JAX gives the conjugate of the gradient that descends; of real numbers they are the same.
        # A line search takes `grad` as JAX gives it.
        downhill = jax.tree.map(jnp.conj, grad)
        updates, state = call_update(tx, downhill, run.state, run.params, given)
        params = apply_updates(run.params, updates)
        evaluations = evaluations + sum(
            (x for _, x in tree.get_all_with_path(state, "num_linesearch_steps")), zero
        )
        reason = jnp.where(evaluations >= max_evaluations, _MAX_EVALUATIONS, 0)
        reason = jnp.where(_is_minimizer_finite(params), reason, _NOT_FINITE)
        for name, end in (
            ("failed", _FAILED),
            ("stalled", _STALLED),
            ("converged", _CONVERGED),
        ):
            for said in _ends_of_minimization(state):
                reason = jnp.where(getattr(said, name), end, reason)
        reason = jnp.where(is_short, _CONVERGED, reason)
        return _Run(
            params=jax.tree.map(_cast_in_minimization, params, run.params),
            state=jax.tree.map(_cast_in_minimization, state, run.state),
            best=best,
            value=lowest,
            evaluations=evaluations,
            updates=run.updates + 1,
            reason=reason.astype(jnp.int32),
        )

    run = by_program(lambda begun: lax.while_loop(lambda run: run.reason == 0, turn, begun), begun)
    iterations = [
        said.iterations for said in _ends_of_minimization(run.state) if hasattr(said, "iterations")
    ]
    return MinimizeResult(
        params=run.best,
        value=run.value,
        state=run.state,
        evaluations=run.evaluations,
        iterations=iterations[0] if len(iterations) == 1 else run.updates,
        reason=run.reason,
        aux=fun(run.best)[1] if has_aux else None,
    )


def _check(fun: Any, params: Any, tx: Any, tol: Any, max_evaluations: Any) -> None:
    if not callable(fun):
        raise TypeError(
            must_be("minimize", "fun", "a function of the parameters that returns the value", fun)
        )
    check_call("minimize: fun(params)", fun, params)
    check_transform("minimize", tx, "tx")
    if params is None:
        raise TypeError(
            "minimize: params is None; pass the parameters to start from, a tree of arrays."
        )
    is_real = _is_number(tol, int | float | np.floating | np.integer, jnp.floating, jnp.integer)
    if not is_real or (not isinstance(tol, jax.Array) and not tol >= 0):
        raise ValueError(f"minimize: tol must be a number of at least 0, got {shown(tol)}.")
    is_integer = _is_number(max_evaluations, int | np.integer, jnp.integer)
    is_known = not isinstance(max_evaluations, jax.Array)
    if not is_integer or (is_known and not 1 <= max_evaluations <= _MOST):
        raise ValueError(
            f"minimize: max_evaluations must be an integer of at least 1 and at most {_MOST}, got "
            f"{shown(max_evaluations)}."
        )


def _is_number(x: Any, known: Any, *kinds: Any) -> bool:
    """Whether `x` is a scalar: of the classes `known`, or an array of the dtypes `kinds`."""
    if isinstance(x, jax.Array):
        return x.shape == () and any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    return isinstance(x, known) and not isinstance(x, bool)


def _evaluate_run(loss: Callable[..., Array], run: _Run) -> tuple[Array, PyTree, Array]:
    """Return the value and the gradient, and the number of evaluations with this one."""
    stored = stored_pair(run.state)
    if stored is None or jax.tree.structure(stored[1]) != jax.tree.structure(run.params):
        # None, or that of a search for a part of the parameters, which did not see where all go.
        value, grad = gradients_of("minimize", loss, run.params, (), Differentiation(), None)
        return value, grad, run.evaluations + 1
    value, grad = value_and_grad_from_state(loss)(run.params, state=run.state)
    is_new = ~jnp.isfinite(stored[0])
    # A search keeps zeros for a parameter on which the loss does not depend.
    _, like = jax.eval_shape(
        lambda params: gradients_of("minimize", loss, params, (), Differentiation(), None),
        run.params,
    )
    grad = jax.tree.map(lambda x, g: None if x is None else g, like, grad, is_leaf=is_hole)
    return value, grad, run.evaluations + is_new.astype(jnp.int32)


def _array(x: Any) -> Array:
    x = jnp.asarray(x)
    return cast(x, x.dtype)


def _cast_in_minimization(new: Any, old: Array) -> Array:
    return cast(jnp.asarray(new), old.dtype)


def _is_minimized_grad_zero(grad: PyTree) -> Array:
    leaves = [jnp.all(x == 0) for x in jax.tree.leaves(grad)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.ones((), jnp.bool_)


def _is_minimizer_finite(params: Params) -> Array:
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.ones((), jnp.bool_)


def _says_minimization_ends(x: Any) -> bool:
    return all(hasattr(x, name) for name in ("converged", "stalled", "failed"))


def _ends_of_minimization(state: OptState) -> Iterator[Any]:
    """Yield the states that say when they are at an end."""
    return filter(_says_minimization_ends, jax.tree.leaves(state, is_leaf=_says_minimization_ends))


announce_named_tuples(__name__)
