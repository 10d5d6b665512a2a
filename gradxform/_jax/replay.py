"""Programs run anew with numbers as arguments, in the places of some of their constants.

Calls, conditions and loops are run anew with what is in them; all other equations as they are.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.jaxprs import as_function, as_open_jaxpr, is_literal, jaxprs_of, variables_in

# A function of the values of variables.
Function = Callable[..., list[Any]]

# The place of a number: the id of an equation, and the index among its operands.
Place = tuple[int, int]

# The largest number that may be simple.
_SIMPLE = 4


def is_number(atom: Any) -> bool:
    """Whether an operand is a constant that may as well be an argument.

    Halves up to 4 stay constants: a compiler knows that `x ** 0.5` is a root and that `x * 1` is x.
    """
    if not is_literal(atom) or atom.aval.shape != ():
        return False
    if not jnp.issubdtype(atom.aval.dtype, jnp.floating) or atom.aval.dtype.itemsize < 2:
        return False
    x = float(atom.val)
    return math.isfinite(x) and (abs(x) > _SIMPLE or not (2 * x).is_integer())


def is_replayed(eqn: Any) -> bool:
    """Whether the numbers inside of an equation may be arguments."""
    places = [x for k in ("in_shardings", "out_shardings") for x in eqn.params.get(k, ())]
    return eqn.primitive.name in _RUNS and not any(
        isinstance(x, jax.sharding.Sharding) for x in places
    )


class Replay:
    """A trace of a program with numbers in the places of constants.

    Args:
      numbers: the numbers, an array.
      places: the index of each among them.
    """

    def __init__(self, numbers: Any, places: dict[Place, int]) -> None:
        self._numbers, self._places = numbers, places
        self._functions: dict[int, Function] = {}  # by the ids of jaxprs, which may occur twice

    def results(self, jaxpr: Any, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of an open jaxpr for its constants and its arguments."""
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], leaves, strict=True))
        for eqn in jaxpr.eqns:
            places = [self._places.get((id(eqn), i)) for i in range(len(eqn.invars))]
            if any(place is not None for place in places):
                eqn, numbers = self._with_numbers(eqn, places)
                values |= numbers
            if is_replayed(eqn):
                run, inner = (
                    _RUNS[eqn.primitive.name],
                    [self._function(x) for _, x in jaxprs_of(eqn)],
                )
                operands = [x.val if is_literal(x) else values[x] for x in eqn.invars]
                values |= zip(eqn.outvars, run(eqn, inner, operands), strict=True)
            else:
                reads, writes = variables_in(eqn.invars), variables_in(eqn.outvars)
                function = as_function(jaxpr, [eqn], reads, writes)
                values |= zip(writes, function(*[values[x] for x in reads]), strict=True)
        return [x.val if is_literal(x) else values[x] for x in jaxpr.outvars]

    def _with_numbers(self, eqn: Any, places: list[int | None]) -> tuple[Any, dict[Any, Any]]:
        """Return an equation with variables in the places of numbers, and these by variable."""
        pairs = zip(eqn.invars, places, strict=True)
        numbers = [self._number(place, x.aval) for x, place in pairs if place is not None]
        variables = jax.make_jaxpr(lambda *x: x)(*numbers).jaxpr.invars
        rest = iter(variables)
        pairs = zip(eqn.invars, places, strict=True)
        eqn = eqn.replace(invars=[x if place is None else next(rest) for x, place in pairs])
        return eqn, dict(zip(variables, numbers, strict=True))

    def _number(self, place: int, aval: Any) -> Any:
        x = lax.convert_element_type(self._numbers[place], aval.dtype)
        return lax.convert_element_type(x, float) if aval.weak_type else x

    def _function(self, closed: Any) -> Function:
        """Return a jaxpr of an equation as a function, the same for the same jaxpr."""
        jaxpr, constants = as_open_jaxpr(closed)

        def function(*leaves: Any) -> list[Any]:
            return self.results(jaxpr, [*constants, *leaves])

        return self._functions.setdefault(id(jaxpr), function)


# ----------------------------------------------------------- what runs the jaxprs of an equation


def _call(eqn: Any, inner: list[Function], operands: list[Any]) -> list[Any]:
    (function,) = inner
    return function(*operands) if eqn.params.get("inline", True) else jax.jit(function)(*operands)


def _branch(eqn: Any, inner: list[Function], operands: list[Any]) -> list[Any]:
    index, *others = operands
    return lax.switch(index, inner, *others)


def _while(eqn: Any, inner: list[Function], operands: list[Any]) -> list[Any]:
    names = ("cond_jaxpr", "body_jaxpr")
    functions = dict(zip([k for k in eqn.params if k in names], inner, strict=True))
    m, n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_test, of_body, carry = operands[:m], operands[m : m + n], operands[m + n :]

    def test(carry: list[Any]) -> Any:
        return functions["cond_jaxpr"](*of_test, *carry)[0]

    def body(carry: list[Any]) -> list[Any]:
        return functions["body_jaxpr"](*of_body, *carry)

    return lax.while_loop(test, body, carry)


def _scan(eqn: Any, inner: list[Function], operands: list[Any]) -> list[Any]:
    # The body sees its stacked operands and results without their first axis. How many there are,
    # parameters of the equation say in other words in other versions of JAX.
    jaxpr, _ = as_open_jaxpr(eqn.params["jaxpr"])
    stacked_operands, stacked_results = (
        sum(x.aval.ndim > y.aval.ndim for x, y in zip(outer, within, strict=True))
        for outer, within in ((eqn.invars, jaxpr.invars), (eqn.outvars, jaxpr.outvars))
    )
    n, xs_at = len(eqn.outvars) - stacked_results, len(operands) - stacked_operands
    constants, carry, xs = operands[: xs_at - n], operands[xs_at - n : xs_at], operands[xs_at:]

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = inner[0](*constants, *carry, *xs)
        return out[:n], out[n:]

    more = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    carry, ys = lax.scan(body, carry, xs, **more)
    return [*carry, *ys]


_RUNS: dict[str, Callable[..., list[Any]]] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "custom_jvp_call": _call,  # nothing differentiates what has its numbers as arguments
    "custom_vjp_call": _call,
    "cond": _branch,
    "while": _while,
    "scan": _scan,
}
