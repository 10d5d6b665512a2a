"""The only module that may ask which JAX it runs on, or depend on the answer (jax 0.10 to 0.12).

Everything here is public JAX API; when a name moves, it moves here and nowhere else.
"""

from typing import Any

import jax
import jax.core


def is_tracer(x: Any) -> bool:
    """Whether `x` is a value of a trace (under jit, vmap, grad, ...) and has no number yet."""
    return isinstance(x, jax.core.Tracer)
