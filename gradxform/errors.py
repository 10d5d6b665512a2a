"""Range checks of hyperparameters, suggestions, and how messages write values and paths.

Every message names the part, the field or the leaf, the rule, the value, and the remedy if it is
not obvious. Hyperparameters are checked when a transform is made. Traced values and schedules pass.
"""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer
from gradxform.types import Range

# The most dicts (or values), and the most lists, that may be nested in each other.
DEPTH = 200
TOO_DEEP = f"nested more than {DEPTH} deep"


class TracedCallError(TypeError):
    """A function without arguments would be called once, while a program is traced."""


class TypeAndRuntimeError(TypeError, RuntimeError):
    """Raised for a wrong type where TensorFlow raises a RuntimeError."""


class TypeAndValueError(TypeError, ValueError):
    """Raised for a wrong type where TensorFlow raises a ValueError."""


def name_of(part: Any) -> str:
    """Return the name of `part` in messages: of its class, of a function, or the string itself."""
    if isinstance(part, str):
        return part
    if isinstance(part, type):
        return part.__name__
    registered = getattr(type(part), "registered_name", None)
    if isinstance(registered, str):
        return registered
    return getattr(part, "__name__", type(part).__name__)


def shown(x: Any) -> str:
    """Return a value as one line for a message, without the entries of arrays."""
    if getattr(x, "shape", ()) and hasattr(x, "dtype"):
        return f"an array of shape {x.shape}"
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return "a PRNG key"
    if isinstance(x, tuple | list | dict) and _is_data_too_deep(x):
        return f"a {type(x).__name__} {TOO_DEEP}"
    if isinstance(x, tuple | list | dict) and any(hasattr(k, "shape") for k in jax.tree.leaves(x)):
        return f"a {type(x).__name__} of arrays"
    if isinstance(x, int) and x.bit_length() > 1024:  # too long for Python to print
        return f"an integer of {x.bit_length()} bits"
    if inspect.isroutine(x):
        return f"the function {x.__name__}"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    text = re.sub(" at 0x[0-9a-fA-F]+", "", " ".join(repr(x).split()))
    return text if len(text) <= 200 else text[:200] + " ..."


def _is_data_too_deep(x: Any) -> bool:
    """Whether data is deeper than `DEPTH`, or part of itself, so that it cannot be printed."""
    level = [x]
    for _ in range(DEPTH + 1):
        inner = [y for parts in level for _, y in parts_of_data(parts) or ()]
        # What stands in several places is looked at once.
        level = list({id(y): y for y in inner if isinstance(y, tuple | list | dict)}.values())
        if not level:
            return False
    return True


def must_be(part: Any, name: str, rule: str, x: Any) -> str:
    """Return the message about a field, or an argument, that must be something else.

    Args:
      part: the part, or its name.
      name: the field or the argument.
      rule: what it must be.
      x: what it is.
    """
    return f"{name_of(part)}: {name} must be {rule}, got {shown(x)}."


def _is_python_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_hyperparams(
    part: Any, names: Iterable[str], holds: Callable[[float], bool], rule: str
) -> None:
    for name in names:
        _require_hyperparam(part, name, getattr(part, name), holds, rule)


def _require_hyperparam(
    part: Any, name: str, value: Any, holds: Callable[[float], bool], rule: str
) -> None:
    if _is_python_number(value) and not holds(value):
        hint = _TO_MAXIMIZE if name == "learning_rate" and value < 0 else ""
        raise ValueError(f"{name_of(part)}: {name} must be {rule}, got {shown(value)}.{hint}")


_TO_MAXIMIZE = " To maximize, negate the gradients first: chain(scale(-1), ...)."


def require_range(part: Any, name: str, rule: Range | None) -> None:
    """Require the named field to be in a range; anything but a number passes."""
    if rule is not None:
        require_in(part, name, getattr(part, name), rule)


def require_in(part: Any, name: str, value: Any, rule: Range | None) -> None:
    """Require the value of a field or an argument to be in a range; all but numbers pass."""
    if rule is not None:
        _require_hyperparam(part, name, value, rule.holds, rule.words)
        if rule.finite:
            _require_hyperparam(part, name, value, math.isfinite, "finite")


def require_int32(part: Any, name: str, x: Any) -> None:
    """Require a number to be one that an int32, as every count is, can hold; a tracer passes."""
    if isinstance(x, np.ndarray | jax.Array) and not is_tracer(x) and x.shape == ():
        is_integer = jnp.issubdtype(x.dtype, jnp.integer)
        x = int(x) if is_integer and x.dtype.itemsize >= 4 and x.dtype != np.int32 else x
    if isinstance(x, int | np.integer) and not -(2**31) <= x < 2**31:
        raise ValueError(must_be(part, name, "an integer of 32 bits, at most 2**31 - 1", x))


def require_decay(part: Any, *names: str) -> None:
    """Require every named field to lie in [0, 1)."""
    _require_hyperparams(part, names, lambda v: 0 <= v < 1, "in [0, 1)")


def require_unit_interval(part: Any, *names: str) -> None:
    """Require every named field to lie in [0, 1]."""
    _require_hyperparams(part, names, lambda v: 0 <= v <= 1, "in [0, 1]")


def require_non_negative(part: Any, *names: str) -> None:
    """Require every named field to be at least 0."""
    _require_hyperparams(part, names, lambda v: v >= 0, "at least 0")


def require_positive(part: Any, *names: str) -> None:
    """Require every named field to be greater than 0."""
    _require_hyperparams(part, names, lambda v: v > 0, "greater than 0")


def require_at_least(part: Any, least: float, *names: str) -> None:
    """Require every named field to be at least `least`."""
    _require_hyperparams(part, names, lambda v: v >= least, f"at least {least}")


def require_finite(part: Any, *names: str) -> None:
    """Require every named field to be finite."""
    _require_hyperparams(part, names, math.isfinite, "finite")


def require_one_of(part: Any, name: str, choices: Iterable[str]) -> None:
    """Require the named field, a `Choice`, to be one of `choices`."""
    require_choice(part, name, getattr(part, name), choices)


def require_choice(part: Any, name: str, value: Any, choices: Iterable[str]) -> None:
    """Require the value of a field or an argument to be one of `choices`."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        listed, hint = ", ".join(map(repr, choices)), did_you_mean(value, choices)
        raise ValueError(must_be(part, name, f"one of {listed}", value) + hint)


def remedy_for_pair(x: Any, remedy: str = "give the value alone") -> str:
    """Return what to do about a loss that is a pair of it and something else; "" otherwise."""
    is_pair = isinstance(x, tuple) and len(x) == 2
    return f" Of a pair (value, aux), {remedy}." if is_pair else ""


def require_bool(part: Any, name: str, value: Any) -> None:
    """Require the value of an argument to be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(must_be(part, name, "True or False", value))


def require_dict(part: Any, name: str, value: Any) -> None:
    """Require the value of an argument to be a dict, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(must_be(part, name, "a dict", value))


def did_you_mean(name: Any, choices: Iterable[str], n: int = 3, cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x' or 'y'?" for the nearest of `choices`, or an empty string."""
    if not isinstance(name, str):
        return ""
    near = difflib.get_close_matches(name, list(choices), n=n, cutoff=cutoff)
    return f" Did you mean {' or '.join(repr(c) for c in near)}?" if near else ""


def leaf_path(path: Any) -> str:
    """Return a key path for messages: `['dense']['kernel']`, or `the root` if it is empty."""
    return jax.tree_util.keystr(tuple(path)) or "the root"


def cut_name(text: str) -> str:
    """Return a name for messages; a long one is cut."""
    return text if len(text) <= 80 else f"{text[:60]} ..."


def extended_path(path: str, text: str) -> str:
    """Return `path` extended by `text`; the middle of a long path is left out."""
    full = path + cut_name(" ".join(text.split()))
    return full if len(full) <= 200 else f"{full[:80]} ... {full[-100:]}"


def parts_of_data(x: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the parts of plain data, each with its step in the path, or None without parts."""
    if isinstance(x, dict):
        return ((f".{k}", v) for k, v in x.items())
    return ((f"[{i}]", v) for i, v in enumerate(x)) if isinstance(x, list | tuple) else None


def check_nesting(
    x: Any, path: str, parts: Callable[[Any], Iterable[tuple[str, Any]] | None]
) -> None:
    """Require `x` not to be deeper than `DEPTH` or part of itself, and its integers to fit floats.

    To be called before all else that walks `x`, because recursion fails on deep trees. Does not
    recurse itself.

    Args:
      x: data.
      path: the name of `x` in messages.
      parts: returns the parts of an object, each with the text that leads to it, or None for an
        object without parts.

    Raises:
      ValueError: with the path, if one of these does not hold.
    """
    trail = [(path, x, iter(parts(x) or ()))]
    while trail:
        path, _, rest = trail[-1]
        for text, part in rest:
            if isinstance(part, int):
                _check_integer_fits_float(part, path, text)
            its_parts = parts(part)
            if its_parts is None:
                continue
            here = extended_path(path, text)
            if any(part is above for _, above, _ in trail):
                raise ValueError(f"{here}: contains itself.")
            trail.append((here, part, iter(its_parts)))
            lists = sum(isinstance(above, list | tuple) for _, above, _ in trail)
            if max(lists, len(trail) - lists) > DEPTH:
                raise ValueError(f"{here}: {TOO_DEEP}.")
            break
        else:
            trail.pop()


def _check_integer_fits_float(x: int, path: str, text: str) -> None:
    try:
        float(x)
    except OverflowError:
        raise ValueError(
            f"{extended_path(path, text)}: must be in the range of a float, got {shown(x)}."
        ) from None
