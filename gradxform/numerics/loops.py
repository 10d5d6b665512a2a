"""Loops that may end early, with derivatives of both modes."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from gradxform._jax.programs import with_constants
from gradxform.types import PyTree, Scalar


def loop_at_most(
    most: Scalar,
    goes_on: Callable[..., Any],
    turn: Callable[..., Any],
    carry: PyTree,
    given: PyTree = None,
) -> Any:
    """Return the carry of `lax.while_loop` after turns that end by themselves.

    JAX does not differentiate such a loop in reverse mode. Its derivatives, of both modes, are
    those of `most` turns, each of them a branch. They run only where something is differentiated.

    Args:
      most: the largest number of turns. With an array, reverse mode does not work.
      goes_on: `goes_on(carry)`, whether there is another turn.
      turn: `turn(carry)`, the next carry.
      carry: a tree of arrays.
      given: all else that derivatives may be with respect to, the last argument of both functions;
        its leaves that are not arrays are constants. By default both are traced once more to find
        what they have from elsewhere, which takes a third longer to trace.
    """
    if not isinstance(most, int):
        return lax.while_loop(goes_on, turn, carry)
    # A custom derivative must get all that it may be with respect to as arguments.
    test, change = goes_on, turn
    if given is None:
        known_test, of_test = with_constants(goes_on, carry)
        known_turn, of_turn = with_constants(turn, carry)
        given = of_test, of_turn

        def test(x: PyTree, given: Any) -> Any:
            return known_test(given[0], x)

        def change(x: PyTree, given: Any) -> Any:
            return known_turn(given[1], x)

    leaves, treedef = jax.tree.flatten(given)
    # JAX keeps a custom derivative as long as its program: a traced array in a closure of it would
    # leak out of the trace.
    known = [None if isinstance(x, jax.Array) else x for x in leaves]
    arrays = [x if isinstance(x, jax.Array) else None for x in leaves]

    @jax.custom_jvp
    def run(carry: PyTree, arrays: list[Any]) -> PyTree:
        given = whole(arrays)
        return lax.while_loop(lambda x: test(x, given), lambda x: change(x, given), carry)

    def branching(carry: PyTree, arrays: list[Any]) -> PyTree:
        given = whole(arrays)

        def step(x: PyTree, _: None) -> tuple[PyTree, None]:
            return lax.cond(test(x, given), lambda x: change(x, given), lambda x: x, x), None

        return lax.scan(step, carry, None, length=most)[0]

    def whole(arrays: list[Any]) -> PyTree:
        pairs = zip(known, arrays, strict=True)
        return treedef.unflatten([x if new is None else new for x, new in pairs])

    run.defjvp(lambda primals, tangents: jax.jvp(branching, primals, tangents))
    return run(carry, arrays)
