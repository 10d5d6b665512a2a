"""The compiled forms of a function over leaves, and the choice among them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradxform._jax.jaxprs import count_equations

# Below this many operations per leaf, lowering the body for every call is cheaper than having XLA
# inline the calls. (Momentum SGD has three, Adam thirteen.)
BRIEF = 6


class Calls(NamedTuple):
    """A function of a list of leaves, in each form in which it can run."""

    plain: Callable[..., Any]  # traced where it stands
    called: Callable[..., Any]  # compiled; a trace keeps a call of it
    inlined: Callable[..., Any]  # compiled; a trace takes over its body

    def choose(self, alike: bool, tracing: bool, brief: bool) -> Callable[..., Any]:
        """Return the form for a chunk of leaves.

        Outside a trace, the compiled function runs. Under a trace, a chunk that is the only one of
        its kind is traced in place. If several chunks are alike, JAX traces the first and emits a
        call for each; very short functions are inlined instead, because XLA would take longer to
        inline the calls.

        Args:
          alike: whether another chunk has leaves of the same signatures.
          tracing: whether the leaves are traced.
          brief: whether the function has few operations per leaf; see `is_brief`.
        """
        if not tracing:
            return self.called
        if not alike:
            return self.plain
        return self.inlined if brief else self.called

    def is_brief(self, leaves: int, *args: Any) -> bool:
        """Whether the function, called with `args`, has few operations for each of the leaves."""
        called: Any = self.called
        return count_equations(called.trace(*args).jaxpr) <= BRIEF * leaves


def compiled_calls(function: Callable[..., Any], static: tuple[int, ...] = ()) -> Calls:
    """Return the forms of a function whose arguments at the positions `static` are values."""
    return Calls(
        function,
        jax.jit(function, static_argnums=static),
        jax.jit(function, static_argnums=static, inline=True),
    )
