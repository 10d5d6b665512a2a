"""Expressions of the command line: calls of registered names, read without running any code.

`chain(clip_by_global_norm(1.0), adamw(1e-3))` is parsed into a syntax tree. Names are looked up
only in the registry, as configs do: an expression can call registered constructors, with numbers,
strings, lists, tuples, dicts and other such calls, and nothing else.
"""

import ast
import math
from typing import Any, NoReturn

from gradxform._names.deferred import signature_of
from gradxform._names.guesses import argument_suggestion, suggestion
from gradxform.commands.parser import program
from gradxform.leaves.masks import Mask
from gradxform.types import SupportsTransform
from gradxform.values import Value
from gradxform.values.config import is_plain_function
from gradxform.values.known_arguments import own_name
from gradxform.values.registry import REGISTRY
from gradxform.wrappers.hyperparams.inject import inject_hyperparams

# Longer and deeper expressions are refused.
LENGTH, DEPTH = 20_000, 60
# What may stand before a name, as in a program.
PREFIXES = ("gx", "gradxform", "gradxform.schedules")
DTYPES = ("jnp", "jax.numpy", "np", "numpy")


class ExpressionError(ValueError):
    """An expression that cannot be read; the message says at which word."""


def read_expression(text: str) -> Any:
    """Return the value that an expression describes.

    Args:
      text: such as `"adamw(cosine_decay_schedule(1e-3, 1000), weight_decay=0.01)"`.

    Returns:
      A transform, a schedule, a mask, a number, or lists, tuples and dicts of these.

    Raises:
      ExpressionError: with the word and its column, if it is anything else, a name is not
        registered, or a constructor refuses its arguments.
    """
    if len(text) > LENGTH:
        raise ExpressionError(f"the expression is longer than {LENGTH} characters.")
    if not text.strip():
        raise ExpressionError("the expression is empty.")
    source = text.strip().replace("\n", " ")
    try:
        tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        column = error.offset or 1
        raise ExpressionError(
            f"{_short(source)!r} is not an expression: {error.msg} at column {column}"
            f"{_word(source[column - 1 : column + 19])}."
        ) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"the expression cannot be parsed: {error}.") from None
    return _Reader(source).read(tree.body, 0)


def _word(text: str) -> str:
    words = text.split()
    return f", {_short(words[0])!r}" if words else ""


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


class _Reader:
    """Reads the nodes of one expression."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, node: Any, message: str) -> NoReturn:
        """Raise an error that points to a node."""
        word = ast.get_source_segment(self.source, node) or ""
        word = _short(word)
        before = self.source.encode()[: node.col_offset].decode()
        raise ExpressionError(f"at column {len(before) + 1}, {word!r}: {message}")

    def read(self, node: ast.expr, depth: int) -> Any:
        """Return the value of a node."""
        if depth > DEPTH:
            self.fail(node, f"nested more than {DEPTH} deep.")
        depth += 1
        match node:
            case ast.Constant(value=None | bool() | str()):
                return node.value
            case ast.Constant(value=int() | float()):
                return self.number(node, node.value)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant()):
                number = self.read(node.operand, depth)
                if isinstance(number, bool) or not isinstance(number, int | float):
                    self.fail(node, "a sign goes before a number.")
                return -number if isinstance(node.op, ast.USub) else number
            case ast.UnaryOp(op=ast.Invert()):
                return ~self.mask(node.operand, depth)
            case ast.BinOp(op=ast.BitAnd()):
                return self.mask(node.left, depth) & self.mask(node.right, depth)
            case ast.BinOp(op=ast.BitOr()):
                return self.mask(node.left, depth) | self.mask(node.right, depth)
            case ast.List():
                return [self.read(item, depth) for item in node.elts]
            case ast.Tuple():
                return tuple(self.read(item, depth) for item in node.elts)
            case ast.Dict():
                return self.dict(node, depth)
            case ast.Call():
                return self.call(node, depth)
            case ast.Name() | ast.Attribute():
                return self.name(node)
        self.fail(
            node, "only calls of registered names, numbers, strings, lists, tuples and dicts."
        )

    def number(self, node: ast.expr, x: Any) -> Any:
        """Return a number that a float can hold."""
        try:
            float(x)
        except OverflowError:
            self.fail(node, "beyond the range of a float.")
        return x

    def mask(self, node: ast.expr, depth: int) -> Any:
        """Return an operand of `&`, `|` or `~`."""
        mask = self.read(node, depth)
        if not isinstance(mask, Mask):
            self.fail(node, "&, | and ~ are for masks, such as ndim_at_least(2).")
        return mask

    def dict(self, node: ast.Dict, depth: int) -> Any:
        """Return a dict."""
        items: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node is None:
                self.fail(value_node, "write the entries of the dict instead of **.")
            key = self.read(key_node, depth)
            try:
                is_twice = key in items
            except TypeError:
                self.fail(key_node, f"a {type(key).__name__} cannot be a key.")
            if is_twice:
                self.fail(key_node, "this key is given twice.")
            items[key] = self.read(value_node, depth)
        return items

    def dotted(self, node: ast.expr) -> str:
        """Return a name with its prefixes; "" for anything else."""
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return node.id if isinstance(node, ast.Name) else ""

    def registered(self, node: ast.expr) -> tuple[str, Any]:
        """Return a registered name, and what it names."""
        prefix, _, name = self.dotted(node).rpartition(".")
        if not name or (prefix and prefix not in PREFIXES):
            self.fail(node, "not the name of a part of gradxform.")
        if name not in REGISTRY:
            hint = suggestion(name, REGISTRY) or f" List all: {program()} list."
            self.fail(node, f"nothing is registered under this name.{hint}")
        return name, REGISTRY[name]

    def name(self, node: ast.expr) -> Any:
        """Return what a bare name stands for: a dtype, or a registered function or class."""
        prefix, _, name = self.dotted(node).rpartition(".")
        if prefix in DTYPES:
            return name  # fields take dtypes by their names too
        if not prefix and name in ("inf", "nan"):
            self.fail(node, f"write it as float('{name}').")
        return self.registered(node)[1]

    def call(self, node: ast.Call, depth: int) -> Any:
        """Return what a call of a registered constructor returns."""
        if isinstance(node.func, ast.Name) and node.func.id == "float":
            return self.special_float(node)
        if isinstance(node.func, ast.Call):  # inject_hyperparams(adamw)(learning_rate=...)
            function: Any = self.read(node.func, depth)
            if not isinstance(function, inject_hyperparams):
                self.fail(node.func, "only inject_hyperparams returns something to be called.")
            name = "inject_hyperparams"
        else:
            name, function = self.registered(node.func)
            if is_plain_function(function):
                self.fail(node.func, "a function, which is passed by its name, without a call.")
        args, kwargs = [], {}
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                self.fail(arg, "write the arguments instead of a star.")
            args.append(self.read(arg, depth))
        parameters = signature_of(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail(keyword, "write the arguments instead of **.")
            if keyword.arg in kwargs:
                self.fail(keyword, "this argument is given twice.")
            own = own_name(keyword.arg, parameters)
            if own not in parameters and not takes_any:
                hint = argument_suggestion(own, parameters)
                self.fail(keyword, f"{name} takes {', '.join(parameters) or 'no argument'}.{hint}")
            kwargs[own] = self.read(keyword.value, depth)
        try:
            signature_of(function).bind(*args, **kwargs)
        except TypeError as error:
            self.fail(node, f"{name}: {error}.")
        try:
            value = function(*args, **kwargs)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self.fail(node, " ".join(str(error).split()))
        if not isinstance(value, Value | SupportsTransform):
            self.fail(node, "does not return a transform, schedule or mask.")
        return value

    def special_float(self, node: ast.Call) -> float:
        """Return `float('inf')`, as values print it."""
        match node.args:
            case [ast.Constant(value="inf" | "-inf" as text)] if not node.keywords:
                return math.inf if text == "inf" else -math.inf
        self.fail(node, "float is for 'inf' and '-inf' only.")
