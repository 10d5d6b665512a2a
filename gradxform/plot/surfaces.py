"""Test surfaces: losses of two parameters, on which one can watch optimizers."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.errors import did_you_mean, shown
from gradxform.types import Array
from gradxform.values import Value


@dataclasses.dataclass(frozen=True)
class Surface:
    """A loss of two parameters, with where to start and what to show.

    Args:
      function: the loss, a function of an array of two numbers that returns one real number.
      start: the parameters before the first step.
      x: the range of the first parameter that is shown; None: as far as the paths go.
      y: the range of the second parameter that is shown; None: as far as the paths go.
      minimum: where the loss is lowest, if that is known; several minima are pairs in a tuple.
      title: what the surface is called in pictures.
    """

    function: Callable[[Array], Array]
    start: tuple[float, float] = (1.0, 1.0)
    x: tuple[float, float] | None = None
    y: tuple[float, float] | None = None
    minimum: tuple[Any, ...] | None = None
    title: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"Surface: function must be a function, got {shown(self.function)}.")
        _check_pair("start", self.start)
        for name in ("x", "y"):
            ends = getattr(self, name)
            if ends is not None:
                _check_pair(name, ends)
                if not ends[0] < ends[1]:
                    raise ValueError(f"Surface: {name} must rise, got {shown(ends)}.")
        for point in self.minima:
            _check_pair("minimum", point)
        if not isinstance(self.title, str):
            raise TypeError(f"Surface: title must be a string, got {shown(self.title)}.")

    def __call__(self, point: Any) -> Array:
        """Return the loss at a point."""
        return self.function(point)

    @property
    def minima(self) -> tuple[Any, ...]:
        """The minima, each a pair."""
        if self.minimum is None:
            return ()
        return self.minimum if isinstance(self.minimum[0], tuple) else (self.minimum,)


def _check_pair(name: str, pair: Any) -> None:
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not is_pair or not all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in pair
    ):
        raise ValueError(f"Surface: {name} must be a pair of finite numbers, got {shown(pair)}.")


def valley(point: Array) -> Array:
    """Return a quadratic, 50 times as steep across as along, at 30 degrees to the axes."""
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    along, across = c * point[0] + s * point[1], c * point[1] - s * point[0]
    return 0.5 * (along**2 + 50 * across**2)


def saddle(point: Array) -> Array:
    """Return a surface with a saddle at the origin, between two minima at (-1, 0) and (1, 0)."""
    return 0.25 * (point[0] ** 2 - 1) ** 2 + 0.5 * point[1] ** 2


def rosenbrock(point: Array) -> Array:
    """Return Rosenbrock's curved valley: easy to reach, hard to follow."""
    return (1 - point[0]) ** 2 + 100 * (point[1] - point[0] ** 2) ** 2


# The named surfaces. `valley` has the condition 50; on `saddle` the start is almost on the line
# that leads into the saddle; `rosenbrock` is not convex.
SURFACES: dict[str, Surface] = {
    "valley": Surface(
        valley, (-2.0, 0.2), (-2.5, 1.3), (-1.9, 1.2), (0.0, 0.0), "a valley of condition 50"
    ),
    "saddle": Surface(
        saddle, (0.02, 1.4), (-1.1, 1.7), (-0.9, 1.6), ((-1.0, 0.0), (1.0, 0.0)), "a saddle"
    ),
    "rosenbrock": Surface(
        rosenbrock, (-1.2, 1.0), (-1.8, 1.6), (-0.6, 2.0), (1.0, 1.0), "Rosenbrock's valley"
    ),
}


def as_surface(function: str, surface: Any, **changes: Any) -> Surface:
    """Return a named surface, a surface itself, or one of a plain function, checked at its start.

    Args:
      function: its name, for messages.
      surface: the name, the surface, or a function of an array of two numbers.
      changes: fields to replace; None keeps the surface's own.

    Raises:
      TypeError, ValueError: if it is none of these, or does not return one finite real number.
    """
    if isinstance(surface, str):
        if surface not in SURFACES:
            hint = did_you_mean(surface, SURFACES) or f" There are {', '.join(SURFACES)}."
            raise ValueError(f"{function}: no surface named {surface!r}.{hint}")
        surface = SURFACES[surface]
    elif not isinstance(surface, Surface):
        if not callable(surface) or isinstance(surface, type | Value):
            raise TypeError(
                f"{function}: surface must be the name of one, a Surface or a function of an array "
                f"of two numbers, got {shown(surface)}."
            )
        name = getattr(surface, "__name__", "")
        function_of_two: Any = surface
        surface = Surface(function_of_two, title="" if name == "<lambda>" else name)
    pairs = {k: _pair(function, k, v) for k, v in changes.items() if v is not None}
    surface = dataclasses.replace(surface, **pairs)
    _check_start(function, surface)
    return surface


def _pair(function: str, name: str, x: Any) -> tuple[float, ...]:
    try:
        return tuple(float(v) for v in x)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: {name} must be two numbers, got {shown(x)}.") from None


def _check_start(function: str, surface: Surface) -> None:
    """Require one finite real number at the start.

    Raises:
      TypeError, ValueError: if it is something else, or the function fails.
    """
    start = jnp.asarray(surface.start, jnp.float32)
    try:
        loss = surface.function(start)
        jax.eval_shape(surface.function, start)  # it is traced too
    except Exception as error:  # the user's function may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{function}: surface failed for an array of two numbers: "
            f"{type(error).__name__}: {reason}"
        ) from error
    array = jnp.asarray(loss) if isinstance(loss, float | int | jax.Array) else None
    if array is None or array.shape != () or not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{function}: surface must return one real number for an array of two, got "
            f"{shown(loss)}."
        )
    if not jnp.isfinite(array):
        raise ValueError(
            f"{function}: surface is {float(array)} at the start {surface.start}; choose another "
            "with start=."
        )
