"""The only module that may ask which JAX it runs on, or depend on the answer (jax 0.10 to 0.12).

Everything here is public JAX API; when a name moves, it moves here and nowhere else.
"""

from typing import Any

import jax
import jax.core
import jax.extend.random as random_extension
import jax.numpy as jnp


def is_tracer(x: Any) -> bool:
    """Whether `x` is a value of a trace (under jit, vmap, grad, ...) and has no number yet."""
    return isinstance(x, jax.core.Tracer)


# ------------------------------------------------------------------- integers without arithmetic


def _no_random_numbers(*args: Any, **kwargs: Any) -> Any:
    raise TypeError("the rows of a RowSparse are no random keys")


# The one public way to a dtype of one's own. JAX prints the tag in every message that refuses it.
_ROWS = random_extension.define_prng_impl(
    key_shape=(1,),
    seed=_no_random_numbers,
    split=_no_random_numbers,
    random_bits=_no_random_numbers,
    fold_in=_no_random_numbers,
    name="gradxform_rows",
    tag="rows of a RowSparse: call gradxform.sparse.densify() first",
)


def opaque(x: Any) -> Any:
    """Return uint32 integers in a dtype that nothing can be computed with, of the same shape."""
    return jax.random.wrap_key_data(x[..., None], impl=_ROWS)


def transparent(x: Any) -> Any:
    """Undo `opaque`.

    Raises:
      TypeError: if something has been made of `x`.
    """
    if not jnp.issubdtype(getattr(x, "dtype", jnp.int32), jax.dtypes.prng_key):
        raise TypeError(
            "RowSparse: its rows have been replaced by something else, as by a tree map over its "
            "leaves; call gradxform.sparse.densify() first."
        )
    return jax.random.key_data(x)[..., 0]
