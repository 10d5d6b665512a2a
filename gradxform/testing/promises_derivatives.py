"""Promises about derivatives through a step, which meta-learning and learned optimizers take."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, check_close, leaves_of, promise
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, PyTree

# Points at which roots, quotients and sorted values often lack a derivative: the value of all
# entries of the parameters, and that of the gradients; None for entries that differ.
POINTS: dict[str, tuple[float | None, float | None]] = {
    "parameters of 0": (0.0, None),
    "gradients of 0": (None, 0.0),
    "parameters and gradients of 0": (0.0, 0.0),
    "equal entries": (1.0, 1.0),
}


@promise(
    "Guard what lacks a derivative before it is computed: gradxform's root and over, or jnp.where "
    "on the argument (on the result it is too late, since 0 times an infinite derivative is NaN)."
)
def derivatives_are_finite(case: Case) -> None:
    """Derivatives with respect to parameters, gradients and state are finite at 0 and at ties."""
    if case.foreign:
        raise Skipped("other libraries do not promise this")
    if case.derivatives is None:
        raise Skipped("derivatives are not asked for")
    tree = case.params()
    (grads,) = case.gradients(tree, 1)
    outputs: Any = None

    # Backward goes through what forward has linearized: infinities there are here, too.
    mode = "backward" if case.derivatives == "both" else "forward"

    def derivatives(numbers: dict[str, Array]) -> dict[str, Array]:
        if mode == "forward":
            directions = {path: jnp.full_like(x, 0.5) for path, x in numbers.items()}
            return jax.jvp(outputs, (numbers,), (directions,))[1]
        results, pull = jax.vjp(outputs, numbers)
        return pull({k: jnp.ones_like(x) for k, x in results.items()})[0]

    compiled = jax.jit(derivatives)  # once for all points
    for name, (p_entries, g_entries) in POINTS.items():
        p, g = _filled(tree, p_entries), _filled(grads, g_entries)
        numbers, outputs = _numbers_and_outputs(case, (g, case.bound.init(p), p))
        _check_finite_derivatives(name, mode, compiled(numbers))


# With this step, central differences in float64 are right to about 1e-10 of the result, and where
# the rule is smooth to about 1e-6 of the derivative.
STEP = 1e-6


@promise(
    "The derivative of an update is that of its rule. What is cut from it by stop_gradient, or "
    "given to it by a custom derivative, must be constant; jnp.where must choose between results."
)
def derivatives_equal_differences(case: Case) -> None:
    """Derivatives along a direction are the limits of differences, away from 0 and from ties."""
    if case.foreign:
        raise Skipped("other libraries do not promise this")
    if case.derivatives is None:
        raise Skipped("derivatives are not asked for")
    if case.narrow:
        raise Skipped("differences of rounded numbers do not have a limit")
    with jax.enable_x64(True):
        tree = jax.tree.map(_in_64_bits, case.params())
        first, second = jax.tree.map(_in_64_bits, case.gradients(tree, 2))
        # Two steps, because the numbers of a state depend on each other, as those of a symmetric
        # matrix do. The second does not begin where the first leads, where numbers may be equal.
        state = case.bound.init(tree)
        updates, _ = case.bound.update(first, state, tree)
        elsewhere = jax.tree.map(lambda p, q: q + p / 16, tree, apply_updates(tree, updates))
        numbers, outputs = _numbers_and_outputs(case, (first, state, tree), (second, elsewhere))
        # A share of each number: a step of one size for all may exceed a second moment.
        rng = np.random.default_rng(2)
        along = {
            path: jnp.where(jnp.isfinite(x), x, 0)
            * jnp.asarray(rng.uniform(0.5, 1, np.shape(x)), x.dtype)
            for path, x in numbers.items()
            if x.dtype in (jnp.float64, jnp.complex128)
        }
        numbers = {path: numbers[path] for path in along}

        def at(t: float) -> dict[str, Any]:
            point = {path: x + t * along[path] for path, x in numbers.items()}
            return {path: as_numpy(x) for path, x in outputs(point).items()}

        _, derivative = jax.jvp(outputs, (numbers,), (along,))
        ahead, behind = at(STEP), at(-STEP)
        for path, x in derivative.items():
            # An infinite bound that stays has a derivative of 0, and a difference that is NaN.
            stays = ahead[path] == behind[path]
            rise = np.where(stays, 0, ahead[path]) - np.where(stays, 0, behind[path])
            difference = rise / (2 * STEP)
            allowed = [1e-4 * _largest_finite(difference) + 1e-8 * _largest_finite(ahead[path])]
            what = ", the limit of differences"
            check_close(path, as_numpy(x), difference, 1e-4, allowed, what)


def _filled(tree: PyTree, entries: float | None) -> PyTree:
    if entries is None:
        return tree
    return jax.tree.map(lambda x: jnp.full_like(x, entries), tree)


def _largest_finite(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def _in_64_bits(x: Array) -> Array:
    if not _is_inexact(x):
        return x
    return x.astype(jnp.complex128 if jnp.iscomplexobj(x) else jnp.float64)


def _numbers_and_outputs(
    case: Case, first: tuple[PyTree, PyTree, PyTree], then: tuple[PyTree, PyTree] | None = None
) -> tuple[dict[str, Array], Callable[..., dict[str, Array]]]:
    """Return the floating arrays that steps start from, and the function from these to results.

    Args:
      case: the transform.
      first: the gradients, the state and the parameters of a step.
      then: the gradients and the parameters of another step, if there is one.
    """
    leaves, treedef = jax.tree.flatten((first, then or ()))
    names = ("gradients", "state", "params", "then.gradients", "then.params")
    trees = zip(names, (*first, *(then or ())), strict=False)
    paths = [path for name, x in trees for path in leaves_of(name, x)]
    inputs = dict(zip(paths, leaves, strict=True))

    def outputs(numbers: dict[str, Array]) -> dict[str, Array]:
        (g, state, p), then = treedef.unflatten((inputs | numbers).values())
        updates, state = case.bound.update(g, state, p)
        if then:
            updates, state = case.bound.update(then[0], state, then[1])
        results = leaves_of("updates", updates) | leaves_of("state", state)
        return {path: x for path, x in results.items() if _is_inexact(x)}

    return {path: x for path, x in inputs.items() if _is_inexact(x)}, outputs


def _is_inexact(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _check_finite_derivatives(point: str, mode: str, derivatives: dict[str, Array]) -> None:
    for path, x in derivatives.items():
        if not np.all(np.isfinite(as_numpy(x))):
            raise Broken(
                "NaN" if np.any(np.isnan(as_numpy(x))) else "an infinity",
                expected=f"finite {mode} derivatives at {point}",
                leaf=path,
            )
