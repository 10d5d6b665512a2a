"""A parser of arguments with errors of one line, and readers of arguments."""

import argparse
import pathlib
import sys
from typing import Any, NoReturn

# The readers of shapes refuse more entries than an array may have.
_MOST = 2**31 - 1


def program() -> str:
    """Return how the program was called: `gradxform`, or by its module."""
    stem = pathlib.Path(sys.argv[0]).stem  # the script may end in .exe
    return "gradxform" if stem == "gradxform" else "python -m gradxform"


class Parser(argparse.ArgumentParser):
    """A parser with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return " ".join(str(error).split()) or type(error).__name__


def whole_number(text: str) -> int:
    """Read an integer from 1 that fits into 32 bits."""
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:20]) <= _MOST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


SHAPES = "dense/kernel=300x20,dense/bias=20:bfloat16"


def params(text: str) -> Any:
    """Read the shapes of parameters, as in `SHAPES`; a scalar is `name=()`."""
    import jax  # the help does not need arrays
    import jax.numpy as jnp

    tree: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        path, equals, rest = word.partition("=")
        shape, _, dtype = rest.partition(":")
        keys = path.split("/")
        if not equals or not all(keys):
            raise argparse.ArgumentTypeError(f"{word!r} must be PATH=SHAPE, such as {SHAPES}")
        try:
            sizes = () if shape == "()" else tuple(whole_number(size) for size in shape.split("x"))
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"the shape in {word!r} must be sizes with x between them, or () for a scalar"
            ) from None
        try:
            leaf = jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype or "float32"))
        except TypeError:
            raise argparse.ArgumentTypeError(f"no dtype {dtype!r} in {word!r}") from None
        inside = tree
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise argparse.ArgumentTypeError(f"{word!r} is inside of an array")
        if keys[-1] in inside:
            raise argparse.ArgumentTypeError(f"{path!r} is given twice")
        inside[keys[-1]] = leaf
    if not tree:
        raise argparse.ArgumentTypeError(f"needs shapes, such as {SHAPES}")
    return tree
