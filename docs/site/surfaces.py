"""The two surfaces in the plane on which the site shows the paths of optimizers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp


class Surface(NamedTuple):
    """A loss of two parameters."""

    title: str
    loss: Callable[[Any, Any], Any]  # of arrays x and y
    start: tuple[float, float]
    x: tuple[float, float]  # the part that is drawn
    y: tuple[float, float]
    minima: tuple[tuple[float, float], ...]


def _valley(x: Any, y: Any) -> Any:
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    return 0.5 * ((c * x + s * y) ** 2 + 50 * (c * y - s * x) ** 2)


def _saddle(x: Any, y: Any) -> Any:
    return 0.5 * x**2 - 0.5 * y**2 + 0.25 * y**4 + 0.25


SURFACES = {
    "valley": Surface(
        "a valley, 50 times as steep across as along",
        _valley,
        start=(-2.0, -0.2),
        x=(-2.4, 0.9),
        y=(-1.9, 1.0),
        minima=((0.0, 0.0),),
    ),
    "saddle": Surface(
        "a saddle between two minima",
        _saddle,
        start=(-1.6, 0.02),
        x=(-1.9, 0.9),
        y=(-1.3, 1.5),
        minima=((0.0, 1.0), (0.0, -1.0)),
    ),
}


def loss_of(index: Any, xy: Any) -> Any:
    """Return the loss of a point on the surface with that number, which may be traced."""
    x, y = xy[..., 0], xy[..., 1]
    losses = jnp.stack([surface.loss(x, y) for surface in SURFACES.values()])
    return losses[index]
