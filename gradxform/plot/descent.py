"""Optimizers on a surface: the path of each, as numbers and as a picture."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import GradientTransformation, check_transform
from gradxform.plot.style import (
    MARKS,
    Look,
    axes_for,
    by_name,
    check_count,
    draw_legend,
    look_of,
    short_label,
    title_axes,
    width_of,
)
from gradxform.plot.surfaces import Surface, as_surface
from gradxform.tables.describe import describe
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, SupportsTransform
from gradxform.values.extra_args import accepted_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 1_000_000
# How many points of a path are marked, and points along each side of the contours.
MARKED, POINTS = 12, 201
LEVELS = 14
# What an optimizer that takes any extra argument gets: what Optax's line searches look for. They
# refuse others.
LINE_SEARCH = frozenset({"value", "grad", "value_fn"})


class Path(NamedTuple):
    """Where an optimizer went."""

    points: Any  # (steps + 1, 2), float32; the start first
    losses: Any  # (steps + 1,), float32


def descend(tx: Any, surface: Any = "valley", steps: int = 100, *, start: Any = None) -> Path:
    """Run an optimizer on a surface, and return its path.

    The whole run is one compiled loop. `update` gets the extra arguments that the optimizer takes,
    of these: `value`, `grad`, `value_fn`, `obj_fn` and `grad_fn`.

    Args:
      tx: a transform, of this library or of Optax.
      surface: the name of one of `SURFACES`, a `Surface`, or a function of an array of two numbers.
      steps: how many steps, at least 1.
      start: two numbers, in the place of the surface's own start. Keyword-only.

    Returns:
      The `Path`. Its numbers are not finite where the optimizer diverges.

    Raises:
      TypeError, ValueError: if an argument is wrong, or the optimizer does not run on this problem.
    """
    check_count("descend", "steps", steps, MOST)
    check_transform("descend", tx, "tx")
    return _descend(
        "descend", "the optimizer", tx, as_surface("descend", surface, start=start), steps
    )


def _descend(function: str, name: str, tx: Any, surface: Surface, steps: int) -> Path:
    loss_fn, takes = surface.function, _extra_names(tx)
    functions = {
        "value_fn": loss_fn,
        "obj_fn": loss_fn,
        "grad_fn": lambda point, *_: jax.grad(loss_fn)(point),
    }

    def step(carry: Any, _: Any) -> Any:
        point, state = carry
        loss, grad = jax.value_and_grad(loss_fn)(point)
        offers = {"value": loss, "grad": grad, **functions}
        extra = {k: v for k, v in offers.items() if k in (LINE_SEARCH if takes is None else takes)}
        update, state = tx.update(grad, state, point, **extra)
        new = apply_updates(point, update)
        return (new, state), (new, loss_fn(new))

    @jax.jit
    def run(point: Array) -> Any:
        _, (points, losses) = jax.lax.scan(step, (point, tx.init(point)), None, length=steps)
        return jnp.vstack([point[None], points]), jnp.hstack([loss_fn(point)[None], losses])

    try:
        points, losses = run(jnp.asarray(surface.start, jnp.float32))
    except Exception as error:  # the optimizer may be anyone's
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{function}: {name} does not run on an array of two parameters: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return Path(np.asarray(points), np.asarray(losses))


def _extra_names(tx: Any) -> frozenset[str] | None:
    """Return the names of the extra arguments that `update` takes; None: any name."""
    if isinstance(tx, GradientTransformation):
        return tx.extra_names()
    takes = accepted_extra(tx, tx.update)
    return None if takes.anything else takes.named


def paths(
    optimizers: Any,
    surface: Any = "valley",
    *,
    steps: int = 100,
    start: Any = None,
    x: Any = None,
    y: Any = None,
    ax: Any = None,
    title: str | None = None,
    dark: bool = False,
) -> "Figure":
    """Draw the paths of optimizers on a surface, over its contours.

    Every optimizer runs as `descend` says. The legend has the loss at the end of each path. The
    contours are spaced evenly in the logarithm of the loss above its lowest value.

    Args:
      optimizers: a transform, a list of transforms, or a dict from the names in the legend.
      surface: the name of one of `SURFACES`, a `Surface`, or a function of an array of two numbers.
      steps: how many steps, at least 1. Keyword-only.
      start: two numbers, in the place of the surface's own start. Keyword-only.
      x: the range of the first parameter that is shown. Keyword-only.
      y: the range of the second parameter that is shown. Keyword-only.
      ax: matplotlib axes to draw on; by default those of a new figure. Keyword-only.
      title: the title; by default that of the surface. Keyword-only.
      dark: whether to use colors for a dark page. Keyword-only.

    Returns:
      The matplotlib figure.

    Raises:
      TypeError: if an optimizer is not a transform, or `surface` is not a surface.
      ValueError: if the surface is not finite at the start, an optimizer does not run on it, the
        list is empty, or a number is out of range.
      ModuleNotFoundError: if matplotlib is not installed.
    """
    look = look_of("paths", dark)
    named = by_name("paths", "transform", optimizers, _is_transform_to_descend, _name)
    check_count("paths", "steps", steps, MOST)
    surface = as_surface("paths", surface, start=start, x=x, y=y)
    walked = {
        name: _descend("paths", f"the optimizer {name!r}", tx, surface, steps)
        for name, tx in named.items()
    }
    labels = {name: f"{short_label(name)}: {_end(path)}" for name, path in walked.items()}
    axes = axes_for("paths", ax, 4.8 + width_of(labels.values()), 4.4, look)
    x_range, y_range = surface.x or _paths_range(walked, 0), surface.y or _paths_range(walked, 1)
    _contours(axes, surface, x_range, y_range, look)
    for i, (name, path) in enumerate(walked.items()):
        _draw(axes, i, labels[name], path, look)
    edge = {"markeredgecolor": look.ink, "linestyle": "none", "zorder": 4}
    axes.plot(*surface.start, "o", color=look.paper, markersize=8, **edge)
    for minimum in surface.minima:
        axes.plot(*minimum, "*", color="#f0c04a", markersize=14, **edge)
    axes.set_xlim(x_range)
    axes.set_ylim(y_range)
    axes.set_xlabel("first parameter")
    axes.set_ylabel("second parameter")
    noun = "step" if steps == 1 else "steps"
    about = f"{surface.title}, {steps} {noun}" if surface.title else f"{steps} {noun}"
    title_axes(axes, about if title is None else title, look)
    draw_legend(axes, look, len(named), title="loss at the end", alignment="left", beside=True)
    return axes.figure


def _is_transform_to_descend(x: Any) -> bool:
    return isinstance(x, SupportsTransform) and not isinstance(x, type)


def _name(tx: Any) -> str:
    """Return a short name: that of the transform, or those of the parts of a chain."""
    rows = describe(tx).rows
    parts = [row.name for row in rows if row.depth == 1]
    return ", ".join(parts) if rows[0].name == "chain" and parts else rows[0].name


def _end(path: Path) -> str:
    return f"{path.losses[-1]:.2g}" if np.isfinite(path.losses[-1]) else "diverged"


def _paths_range(walked: dict[str, Path], axis: int) -> tuple[float, float]:
    """Return what is to be shown of a parameter: as far as paths go that do not climb far."""
    values = []
    for path in walked.values():
        first = path.losses[0]
        near = path.losses <= first + 3 * abs(first)  # false where the loss is NaN
        values.append(path.points[near | (np.arange(len(near)) == 0), axis])
    lowest, highest = float(np.min(np.hstack(values))), float(np.max(np.hstack(values)))
    margin = 0.15 * (highest - lowest) or 1.0
    return lowest - margin, highest + margin


def _contours(axes: Any, surface: Surface, x: Any, y: Any, look: Look) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    xs, ys = np.meshgrid(*(np.linspace(low, high, POINTS) for low, high in (x, y)))
    points = jnp.asarray(np.stack([xs.ravel(), ys.ravel()], axis=1), jnp.float32)
    losses = np.asarray(jax.vmap(surface.function)(points), float).reshape(xs.shape)
    finite = np.isfinite(losses)
    at_minima = [float(surface.function(jnp.asarray(m, jnp.float32))) for m in surface.minima]
    lowest = min([*at_minima, losses[finite].min()]) if finite.any() else 0.0
    highest = float(losses[finite].max()) - lowest if finite.any() else 0.0
    if not highest > 0:  # flat, or finite nowhere: nothing to draw
        axes.set_facecolor(look.low)
        return
    levels = np.geomspace(highest * 1e-4, highest, LEVELS)
    heights = np.ma.masked_invalid(np.maximum(losses - lowest, 0.5 * levels[0]))
    shades = LinearSegmentedColormap.from_list("gradxform", [look.low, look.paper])
    norm = LogNorm(levels[0], levels[-1])
    axes.contourf(xs, ys, heights, levels=levels, cmap=shades, norm=norm, extend="min")
    axes.contour(xs, ys, heights, levels=levels, colors=look.faint, linewidths=0.6)


def _draw(axes: Any, i: int, label: str, path: Path, look: Look) -> None:
    """Draw one path, up to where it is not finite, with marks at its steps."""
    finite = np.isfinite(path.points).all(axis=1)
    n = len(finite) if finite.all() else int(np.argmin(finite))
    axes.plot(
        *path.points[:n].T,
        linewidth=1.7,
        marker=MARKS[i % len(MARKS)],
        markersize=4.5,
        markevery=max(1, len(finite) // MARKED),
        label=label,
        **look.line(i),
    )
