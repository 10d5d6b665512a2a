"""A transform as Optax has them: two closures, with arrays in their cells.

Equinox looks for arrays in the cells of functions, to compile once for all of them.
"""

from typing import Any, cast

import jax.numpy as jnp

from gradxform.base import GradientTransformation, check_transform
from gradxform.errors import did_you_mean, name_of
from gradxform.numerics import scalar_dtype
from gradxform.run_states.optax import as_optax
from gradxform.values import Value, fields_of
from gradxform.values.content import parts_of, put_live, take_live, with_parts


def as_optax_closures(tx: Any, *names: str) -> Any:
    """Return `tx` as Optax's pair of closures, with the named hyperparameters as arrays in them.

    A transform here is a value, and static: a step that is compiled for one learning rate is
    compiled anew for another. Optax's transforms are closures, in which
    `equinox.internal.closure_to_pytree` finds arrays, as Optimistix does. For such code

        as_optax_closures(gx.adam(rate), "learning_rate")

    gives a pair whose learning rate is an argument of what is compiled, so that all rates share one
    compiled step. The two functions are neither equal to those of an equal transform nor picklable:
    give `tx` itself, or `as_optax(tx)`, where no array must be found.

    Args:
      tx: a transform of this library.
      *names: the fields that become arrays, wherever in `tx` they hold a float. A live number is
        an array already, and need not be named.

    Raises:
      ImportError: if optax is not installed.
      TypeError: if `tx` is not a transform of this library.
      ValueError: if no field of a name holds a float.
    """
    check_transform("as_optax_closures", tx, "tx")
    if not isinstance(tx, GradientTransformation):
        raise TypeError(f"as_optax_closures: {name_of(tx)} is not a transform of this library.")
    pair = type(as_optax(cast(Any, tx)))
    fields: set[str] = set()
    with_arrays = _with_arrays(tx, frozenset(names), fields)
    for name in names:
        if name not in fields:
            raise ValueError(
                f"as_optax_closures: no field {name!r} of the transform holds a float, only "
                f"{', '.join(sorted(fields)) or 'none'}.{did_you_mean(name, sorted(fields))}"
            )
    live: list[Any] = []
    static = take_live(with_arrays, live)
    numbers = tuple(live)

    def init(params: Any) -> Any:
        return as_optax(put_live(static, numbers)).init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return put_live(static, numbers).update(updates, state, params, **extra)

    return pair(init, update)


def _with_arrays(x: Any, names: frozenset[str], float_fields: set[str]) -> Any:
    """Return `x` with the named floats as arrays; the names of all floats go to `float_fields`."""
    parts = parts_of(x)
    if parts is None:
        return x
    fields = list(fields_of(x)) if isinstance(x, Value) else [""] * len(parts)
    new = []
    for name, part in zip(fields, parts, strict=True):
        if name and isinstance(part, float):
            float_fields.add(name)
            new.append(jnp.asarray(part, scalar_dtype()) if name in names else part)
        else:
            new.append(_with_arrays(part, names, float_fields))
    same = all(n is p for n, p in zip(new, parts, strict=True))
    return x if same else with_parts(x, new)
