"""Which differences apply to a use, given the arguments of the call."""

import ast
import contextlib
import inspect
import math
from typing import Any

from gradxform.commands.port.differences import Difference, differences
from gradxform.commands.port.uses import Use

# An argument whose value the source does not say.
UNKNOWN = object()


def applying_differences(use: Use, part: Any) -> list[Difference]:
    """Return the differences that apply to a use, those that may change numbers first.

    Args:
      use: the use.
      part: what the name stands for here, whose signature orders the arguments; None: not known.
    """
    about = [row for row in differences() if row.is_about(use.name)]
    if not about:
        return []
    arguments = _arguments(use.call, part)
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
    value = arguments.get(condition["argument"])
    if "given" in condition:
        return (condition["argument"] in arguments) == condition["given"]
    if condition["argument"] not in arguments:
        return False
    expected = math.inf if condition["value"] == "inf" else condition["value"]
    return value is UNKNOWN or (_is_number(value) and value == expected)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _arguments(call: ast.Call | None, part: Any) -> dict[str, Any] | None:
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
            names = list(inspect.signature(part).parameters)
    pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    values = {name: _value(node) for name, node in pairs if name is not None}
    return {name: value for name, value in values.items() if value is not None}


def _value(node: ast.expr) -> Any:
    """Return a number or another constant, infinity, or `UNKNOWN`."""
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Attribute(attr="inf") | ast.Call(args=[ast.Constant(value="inf")]):
            return math.inf
    return UNKNOWN
