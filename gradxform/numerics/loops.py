"""Loops that may end early, with derivatives of both modes."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from gradxform._jax.programs import with_constants
from gradxform.types import PyTree, Scalar


def loop_at_most(
    most: Scalar, goes_on: Callable[[Any], Any], turn: Callable[[Any], Any], carry: PyTree
) -> Any:
    """Return the carry of `lax.while_loop` after turns that end by themselves.

    JAX does not differentiate such a loop in reverse mode. Its derivatives, of both modes, are
    those of `most` turns, each of them a branch. They run only where something is differentiated.

    Args:
      most: the largest number of turns. If it is an array, there is no reverse mode.
      goes_on: whether there is another turn, from the carry.
      turn: the next carry.
      carry: a tree of arrays.
    """
    if not isinstance(most, int):
        return lax.while_loop(goes_on, turn, carry)
    # A custom derivative must get all that it may be with respect to as arguments.
    test, of_test = with_constants(goes_on, carry)
    change, of_change = with_constants(turn, carry)

    @jax.custom_jvp
    def run(carry: PyTree, of_test: Any, of_change: Any) -> PyTree:
        return lax.while_loop(lambda x: test(of_test, x), lambda x: change(of_change, x), carry)

    def branching(carry: PyTree, of_test: Any, of_change: Any) -> PyTree:
        def step(x: PyTree, _: None) -> tuple[PyTree, None]:
            due = test(of_test, x)
            return lax.cond(due, lambda x: change(of_change, x), lambda x: x, x), None

        return lax.scan(step, carry, None, length=most)[0]

    run.defjvp(lambda primals, tangents: jax.jvp(branching, primals, tangents))
    return run(carry, of_test, of_change)
