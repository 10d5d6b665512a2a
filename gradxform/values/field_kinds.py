"""Fields of three kinds: PRNG keys, dtypes and masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import must_be, name_of, shown
from gradxform.values.value import FrozenTree, Value, is_function, normal


def static_key(part: Any, field: str, key: Any) -> Any:
    """Return a PRNG key as something that hashes and prints: a seed, or the words of the key."""
    key = normal(tuple(key) if isinstance(key, list) else key)
    if isinstance(key, int) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError(must_be(part, field, "a seed of at most 64 bits, such as 0", key))
        return key
    if isinstance(key, tuple) and key:
        words = key[1:] if isinstance(key[0], str) else key
        if words and all(type(w) is int for w in words):
            for w in words:
                if not 0 <= w < 2**32:
                    raise ValueError(
                        f"{name_of(part)}: {field} must be a PRNG key of words of 32 bits, got the "
                        f"word {shown(w)}; for a key of a seed give the seed alone."
                    )
            if words is key and len(words) not in (2, 4):  # of threefry, and of rbg
                raise ValueError(
                    f"{name_of(part)}: {field} must be a PRNG key of 2 or 4 words, got "
                    f"{shown(key)}; for a key of a seed give the seed alone."
                )
            return key
    if isinstance(key, np.ndarray | jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            words = tuple(int(w) for w in np.asarray(jax.random.key_data(key)).ravel())
            return (str(jax.random.key_impl(key)), *words)
        if key.dtype == np.uint32 and key.ndim == 1:
            return tuple(int(w) for w in np.asarray(key))
    raise TypeError(must_be(part, field, "an integer or one PRNG key", key))


def dtype_name(part: Any, field: str, x: Any) -> str:
    """Return the name of a floating dtype."""
    try:
        if isinstance(x, np.ndarray | jax.Array):
            raise TypeError
        dtype = jnp.dtype(x)
    except (TypeError, ValueError, SyntaxError):  # NumPy reads "f4,i4" as one would code
        raise TypeError(must_be(part, field, "a dtype or None", x)) from None
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(must_be(part, field, "a floating dtype", str(dtype)))
    return dtype.name


def check_mask(part: Any, mask: Any, field: str = "mask") -> None:
    """Require a mask, a tree of booleans or a function of the parameters."""
    is_other = isinstance(mask, Value) and mask.never_mask
    if is_other or not (isinstance(mask, bool | FrozenTree) or is_function(mask)):
        raise TypeError(
            f"{name_of(part)}: {field} must be a mask such as ndim_at_least(2), a tree of booleans "
            f"or a function of the parameters, got {shown(mask)}."
        )
    for leaf in mask.leaves if isinstance(mask, FrozenTree) else ():
        if not isinstance(leaf, bool) and leaf is not None:
            entries = "the mask's entries" if field == "mask" else f"the entries of {field}"
            raise TypeError(f"{name_of(part)}: {entries} must be True or False, got {shown(leaf)}.")
