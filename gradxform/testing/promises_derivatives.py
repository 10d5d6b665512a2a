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
        directions = [jnp.full_like(x, 0.5) for x in numbers]
        _, forward = jax.jvp(outputs, (numbers,), (directions,))
        _check(name, "forward", forward)
        if case.derivatives == "both":
            made, pull = jax.vjp(outputs, numbers)
            _check(name, "backward", pull({k: jnp.ones_like(x) for k, x in made.items()})[0])


def _filled(tree: PyTree, entries: float | None) -> PyTree:
    if entries is None:
        return tree
    return jax.tree.map(lambda x: jnp.full_like(x, entries), tree)


def _of_numbers(case: Case, args: PyTree) -> tuple[list[Array], Callable[..., dict[str, Array]]]:
    """Return the floating arrays in `args`, and the update as a function of them."""
    leaves, treedef = jax.tree.flatten(args)
    at = [i for i, x in enumerate(leaves) if _is_number(x)]

    def outputs(numbers: list[Array]) -> dict[str, Array]:
        full = list(leaves)
        for i, x in zip(at, numbers, strict=True):
            full[i] = x
        updates, state = case.bound.update(*treedef.unflatten(full))
        named = leaves_of("updates", updates) | leaves_of("state", state)
        return {path: x for path, x in named.items() if _is_number(x)}

    return [leaves[i] for i in at], outputs


def _is_number(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _check(point: str, mode: str, derivatives: Any) -> None:
    for path, x in leaves_of("", derivatives).items():
        if not np.all(np.isfinite(as_numpy(x))):
            raise Broken(
                "NaN" if np.any(np.isnan(as_numpy(x))) else "an infinity",
                expected=f"finite {mode} derivatives at {point}",
                leaf=path,
            )
