"""Which differences apply to a use, given the arguments of the call."""

import ast
import contextlib
import math
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gradxform._names.deferred import signature_of
from gradxform.commands.port.differences import Difference, differences
from gradxform.commands.port.uses import Use

# An argument whose value the source does not say.
UNKNOWN = object()
# What a condition asks of a value that the source says.
TESTS = {
    "value": operator.eq,
    "above": lambda x, bound: _is_number(x) and x > bound,
    "below": lambda x, bound: _is_number(x) and x < bound,
    "has": lambda x, item: isinstance(x, tuple) and item in x,
}
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def applying_differences(
    use: Use, part: Any, constants: Mapping[str, ast.expr] = MappingProxyType({})
) -> list[Difference]:
    """Return the differences that apply to a use, those that may change numbers first.

    Args:
      use: the use.
      part: what the name stands for here, whose signature orders the arguments; None: not known.
      constants: names of the file whose values are known, with these.
    """
    about = [row for row in differences() if row.is_about(use.name)]
    if not about:
        return []
    arguments = _arguments(use.call, part, constants)
    return [row for row in about if all(_any_holds(c, use, arguments) for c in row.when)]


def _any_holds(choices: Any, use: Use, arguments: dict[str, Any] | None) -> bool:
    return any(_holds(choice, use, arguments) for choice in choices)


def _holds(condition: dict[str, Any], use: Use, arguments: dict[str, Any] | None) -> bool:
    """Whether a condition holds, or may hold."""
    if "within" in condition:
        return use.within == condition["within"]
    if "called" in condition:
        return use.call is not None
    if use.call is None:  # passed on, annotated or imported: nothing is known of a call
        return False
    if arguments is None:  # with stars: nothing is known of the arguments
        return True
    name, (test, expected) = condition["argument"], list(condition.items())[-1]
    if test == "given":
        return (name in arguments) == expected
    if name not in arguments:
        return False
    return arguments[name] is UNKNOWN or TESTS[test](arguments[name], expected)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _arguments(
    call: ast.Call | None, part: Any, constants: Mapping[str, ast.expr]
) -> dict[str, Any] | None:
    """Return the arguments of a call by name; None if stars hide some.

    An argument of `None` counts as left out.
    """
    if call is None:
        return {}
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    names: list[str] = []
    if callable(part):
        with contextlib.suppress(TypeError, ValueError):
            names = list(signature_of(part).parameters)
    pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    values = {name: _value(node, constants) for name, node in pairs if name is not None}
    return {name: value for name, value in values.items() if value is not None}


def _value(node: ast.expr, constants: Mapping[str, ast.expr]) -> Any:
    """Return a literal, a number that literals are computed to, infinity, or `UNKNOWN`."""
    match node:
        case ast.Attribute(attr="inf") | ast.Call(args=[ast.Constant(value="inf")]):
            return math.inf
        case ast.Name() if node.id in constants:
            # Not of itself, nor of another: a constant of constants is not looked through.
            return _value(constants[node.id], {})
        case ast.UnaryOp(op=ast.USub()) if _is_number(x := _value(node.operand, constants)):
            return -x
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            pair = _value(node.left, constants), _value(node.right, constants)
            if all(map(_is_number, pair)):  # floats: a power of integers may take forever
                with contextlib.suppress(ArithmeticError):
                    x = ARITHMETIC[type(node.op)](*map(float, pair))
                    return x if _is_number(x) else UNKNOWN
            return UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return UNKNOWN
