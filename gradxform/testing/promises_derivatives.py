"""Promises about derivatives through a step, which meta-learning and learned optimizers take."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, leaves_of, promise
from gradxform.types import Array, PyTree

# Points at which roots, quotients and sorted values often have no derivative: what all entries of
# the parameters are, and of the gradients; None for entries that differ.
POINTS: dict[str, tuple[float | None, float | None]] = {
    "parameters of 0": (0.0, None),
    "gradients of 0": (None, 0.0),
    "parameters and gradients of 0": (0.0, 0.0),
    "equal entries": (1.0, 1.0),
}


@promise(
    "Guard what has no derivative before it is computed: gradxform's root and over, or jnp.where "
    "on the argument (on the result it is too late, since 0 times an infinite derivative is NaN)."
)
def derivatives_are_finite(case: Case) -> None:
    """Derivatives with respect to parameters, gradients and state are finite at 0 and at ties."""
    if case.foreign:
        raise Skipped("other libraries do not promise this")
    if case.derivatives is None:
        raise Skipped("derivatives are not asked for")
    tree = case.params()
    (given,) = case.gradients(tree, 1)
    for name, (p_entries, g_entries) in POINTS.items():
        p, g = _filled(tree, p_entries), _filled(given, g_entries)
        numbers, outputs = _of_numbers(case, (g, case.bound.init(p), p))
        directions = {path: jnp.full_like(x, 0.5) for path, x in numbers.items()}
        _, forward = jax.jvp(outputs, (numbers,), (directions,))
        _check(name, "forward", forward)
        if case.derivatives == "both":
            made, pull = jax.vjp(outputs, numbers)
            _check(name, "backward", pull({k: jnp.ones_like(x) for k, x in made.items()})[0])


def _filled(tree: PyTree, entries: float | None) -> PyTree:
    if entries is None:
        return tree
    return jax.tree.map(lambda x: jnp.full_like(x, entries), tree)


def _of_numbers(
    case: Case, args: tuple[PyTree, PyTree, PyTree]
) -> tuple[dict[str, Array], Callable[..., dict[str, Array]]]:
    """Return the floating arrays in the arguments, and the update as a function of them."""
    leaves, treedef = jax.tree.flatten(args)
    names = ("gradients", "state", "params")
    paths = [path for name, x in zip(names, args, strict=True) for path in leaves_of(name, x)]
    inputs = dict(zip(paths, leaves, strict=True))

    def outputs(numbers: dict[str, Array]) -> dict[str, Array]:
        given = treedef.unflatten((inputs | numbers).values())
        updates, state = case.bound.update(*given)
        named = leaves_of("updates", updates) | leaves_of("state", state)
        return {path: x for path, x in named.items() if _is_number(x)}

    return {path: x for path, x in inputs.items() if _is_number(x)}, outputs


def _is_number(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _check(point: str, mode: str, derivatives: dict[str, Array]) -> None:
    for path, x in derivatives.items():
        if not np.all(np.isfinite(as_numpy(x))):
            raise Broken(
                "NaN" if np.any(np.isnan(as_numpy(x))) else "an infinity",
                expected=f"finite {mode} derivatives at {point}",
                leaf=path,
            )
