"""Shared by the examples' command lines: one-line errors, numbers, optimizers by name."""

import argparse
import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, get_args, get_origin

import jax

import gradxform as gx


class Refused(Exception):
    """An error that the user can correct: one line on stderr and exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors on one line."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message if message.endswith((".", "?")) else message + ".")

    def parse_strictly(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments, and suggest the nearest options for an unknown one."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0].split("=")[0]
            flags = dict.fromkeys(re.findall(r"--[a-z][a-z-]*", self.format_usage()))
            self.error(f"unknown argument {word!r}. {did_you_mean(word, flags) or 'See --help.'}")
        return args


def positive(text: str) -> float:
    """Read a positive, finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return number


def whole(least: int) -> Any:
    """Return a reader of integers from `least` that fit into 32 bits."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < 2**31:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text!r}")
        return int(text)

    return read


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "Did you mean 'x'?" for the nearest choices, or an empty string."""
    near = difflib.get_close_matches(name, list(choices))
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    # str(KeyError("x")) is the repr of its message.
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(message).split()) or type(error).__name__


def exit_code(example: str, run: Callable[[], None], failed: type[Exception]) -> int:
    """Run an example; return its exit code, after one line on stderr if it ends early.

    Args:
      example: the name of its file.
      run: does the work.
      failed: what it raises when the work fails, which is not the user's mistake.
    """
    message, code = "", 0
    try:
        run()
    except (Refused, OSError) as error:
        message, code = f"error: {one_line(error)}", 2
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE" not in str(error):
            raise
        message, code = "error: not enough memory; ask for a smaller model or batches.", 2
    except failed as error:
        message, code = str(error), 1
    except KeyboardInterrupt:
        message, code = "interrupted; no figure was written.", 130
    if code:
        print(f"{example}: {message}", file=sys.stderr)
    return code


# ---------------------------------------------------------------------------- optimizers by name


def factory_of(name: str) -> Any:
    """Return the factory of an optimizer of gradxform."""
    if name not in gx.OPTIMIZERS:
        hint = did_you_mean(name, gx.OPTIMIZERS)
        listed = "List them with: python -m gradxform list optimizers"
        raise Refused(f"no optimizer named {name!r}. {hint or listed}")
    return gx.OPTIMIZERS[name]


def has_learning_rate(name: str) -> bool:
    """Return whether the optimizer takes a learning rate; some determine their own."""
    return "learning_rate" in inspect.signature(factory_of(name)).parameters


def takes_schedule(name: str) -> bool:
    """Return whether the learning rate of the optimizer may be a schedule."""
    parameter = inspect.signature(factory_of(name)).parameters.get("learning_rate")
    kinds = get_args(parameter.annotation) if parameter is not None else ()
    return any(get_origin(kind) is Callable for kind in kinds)


def make_by_name(name: str, learning_rate: Any, seed: int) -> Any:
    """Return the optimizer of that name.

    Args:
      name: the name of an optimizer of gradxform.
      learning_rate: a number or a schedule, for optimizers that take one.
      seed: a seed, for optimizers that draw random numbers.
    """
    factory = factory_of(name)
    arguments: dict[str, Any] = {}
    missing = []
    parameters = inspect.signature(factory).parameters
    random = "key" if "key" in parameters else "seed"  # if both exist, seed is the old name of key
    for parameter in parameters.values():
        if parameter.name == "learning_rate":
            arguments["learning_rate"] = learning_rate
        elif parameter.name == random:
            arguments[parameter.name] = seed
        elif parameter.default is parameter.empty:
            missing.append(parameter.name)
    if missing:
        raise Refused(f"{name} needs {', '.join(missing)} too, and can only be made in code.")
    try:
        tx = factory(**arguments)
    except (TypeError, ValueError) as error:
        raise Refused(one_line(error)) from error
    if "input_moments" in (tx.extra_names() or ()):  # only a model knows what goes into its layers
        raise Refused(f"{name} needs input_moments= at every step, and can only be made in code.")
    return tx
