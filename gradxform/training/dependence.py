"""The parameters on which a loss depends, found out while JAX differentiates it."""

from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from gradxform._jax.versions import zeros_of


class Dependence:
    """Which of several arrays a loss depends on, as far as its derivative goes.

    The derivative with respect to another one is not zero by its value, but by the program: JAX
    never forms it. A `stop_gradient` and an integer end a dependence; a branch that is not taken
    does not.
    """

    def __init__(self) -> None:
        self.indices: set[int] = set()  # known once the loss has been differentiated

    def watched(self, i: int, x: Any) -> Any:
        """Return `x`; when a derivative with respect to it is formed, `i` is noted."""

        @jax.custom_vjp
        def watch(x: Any) -> Any:
            return x

        def forward(x: Any) -> tuple[Any, None]:
            return x.value, None

        def backward(_: None, cotangent: Any) -> tuple[Any]:
            if isinstance(cotangent, SymbolicZero):
                return (zeros_of(cotangent.aval),)
            self.indices.add(i)
            return (cotangent,)

        watch.defvjp(forward, backward, symbolic_zeros=True)
        return watch(x)
