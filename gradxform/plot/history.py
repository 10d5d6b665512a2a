"""The numbers of a run over its steps, from dicts or a CSV file."""

import csv
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gradxform.errors import did_you_mean, shown
from gradxform.plot.style import (
    Look,
    draw_grid,
    draw_legend,
    dressed_axes,
    look_of,
    new_figure,
    title_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The column that the others are drawn over, and how many panels stand beside each other.
STEP = "step"
COLUMNS = 3
# The most lines in one panel; a group of more keys gets a panel for each.
LINES = 8


def training(
    metrics: Any,
    keys: Iterable[str] | None = None,
    *,
    title: str | None = None,
    dark: bool = False,
) -> "Figure":
    """Draw the numbers of a run over its steps, one panel for each.

    Keys with the same beginning up to the first `/` share a panel, as `gradient_norm/encoder` and
    `gradient_norm/head` do. `key/min` and `key/max`, which `gradxform.metrics` adds for replicas,
    are a band around `key`. Positive numbers over more than two powers of ten have a logarithmic
    axis.

    Args:
      metrics: a list of dicts, one per step, as `gradxform.metrics` returns; or a dict of lists; or
        the path of a CSV file with a head. Numbers are drawn over `step` if they have it, else over
        their index. A cell may be missing, or empty.
      keys: what to draw; by default everything that is numeric.
      title: the title. Keyword-only.
      dark: whether to use colors for a dark page. Keyword-only.

    Returns:
      The matplotlib figure.

    Raises:
      TypeError: if `metrics` has another form, or a key that you name is not numeric.
      ValueError: without numbers, for lists of different lengths, or if a key does not occur.
      OSError: if the file cannot be read.
      ModuleNotFoundError: if matplotlib is not installed.
    """
    look, columns = look_of("training", dark), _columns(metrics)
    numeric = {k: y for k, x in columns.items() if (y := _numbers(x)) is not None}
    steps, label = _steps(numeric)
    wanted = _keys_to_draw(keys, columns, numeric)
    panels = _panels(wanted)
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // across)
    height = 2.5 * down + (0.4 if title else 0.1)
    figure = new_figure("training", 1.0 + 3.6 * across, height, look)
    grids = figure.subplots(down, across, squeeze=False, sharex=True).ravel()
    for axes, (name, members) in zip(grids, panels.items(), strict=False):
        _draw_panel(dressed_axes(axes, look), name, members, steps, numeric, look)
    for i, axes in enumerate(grids):
        if i >= len(panels):
            axes.set_visible(False)
        elif i + across >= len(panels):
            axes.set_xlabel(label)
            axes.tick_params(labelbottom=True)
    if title:
        figure.suptitle(title, fontsize=11, color=look.ink, x=0.01, ha="left")
    return figure


# ------------------------------------------------------------------------------------- reading


def _columns(metrics: Any) -> dict[str, list[Any]]:
    """Return the metrics as a list for each key, None where a cell is missing."""
    if isinstance(metrics, str | os.PathLike):
        return _history_from_csv(metrics)
    if isinstance(metrics, Mapping):
        columns = {str(k): _column(k, x) for k, x in metrics.items()}
        lengths = {k: len(x) for k, x in columns.items()}
        if len(set(lengths.values())) > 1:
            (a, n), (b, m) = (
                min(lengths.items(), key=_length),
                max(lengths.items(), key=_length),
            )
            raise ValueError(f"training: {a!r} has {n} numbers, and {b!r} has {m}.")
        return columns
    if isinstance(metrics, list | tuple):
        for i, row in enumerate(metrics):
            if not isinstance(row, Mapping):
                raise TypeError(f"training: metrics[{i}] must be a dict, got {shown(row)}.")
        rows = jax.device_get([dict(row) for row in metrics])
        names = dict.fromkeys(str(k) for row in metrics for k in row)  # in the caller's order
        named = [{str(k): x for k, x in row.items()} for row in rows]
        return {k: [row.get(k) for row in named] for k in names}
    raise TypeError(
        "training: metrics must be a list of dicts, a dict of lists or the path of a CSV file, got "
        f"{shown(metrics)}."
    )


def _length(pair: tuple[str, int]) -> int:
    return pair[1]


def _column(key: Any, x: Any) -> list[Any]:
    if isinstance(x, str) or not (isinstance(x, list | tuple) or np.ndim(x) == 1):
        raise TypeError(f"training: metrics[{key!r}] must be a list of numbers, got {shown(x)}.")
    return list(jax.device_get(x))


def _history_from_csv(path: Any) -> dict[str, list[Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            head = next(reader, None)
            if not head:
                raise ValueError(f"training: {os.fspath(path)} is empty; it needs a head and rows.")
            columns: dict[str, list[Any]] = {name: [] for name in head}
            if len(columns) < len(head):
                raise ValueError(f"training: {os.fspath(path)} has two columns of one name.")
            for row in filter(None, reader):
                if len(row) != len(head):
                    raise ValueError(
                        f"training: {os.fspath(path)}, line {reader.line_num}: has {len(row)} "
                        f"cells, and the head has {len(head)}."
                    )
                for name, cell in zip(head, row, strict=True):
                    columns[name].append(cell)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"training: {os.fspath(path)} is not a CSV file: {error}.") from None
    return columns


def _numbers(column: list[Any]) -> Any:
    """Return a column as floats, NaN where a cell is missing; None if it is not numeric."""
    numbers = []
    for cell in column:
        try:
            numbers.append(math.nan if cell is None or cell == "" else float(cell))
        except (TypeError, ValueError):
            return None
    y = np.asarray(numbers, float)
    return None if np.isnan(y).all() and all(cell in (None, "") for cell in column) else y


def _steps(numeric: dict[str, Any]) -> tuple[Any, str]:
    if not numeric:
        raise ValueError("training: metrics must have a numeric column.")
    if STEP in numeric and np.isfinite(numeric[STEP]).all():
        return numeric[STEP], "step"
    return np.arange(len(next(iter(numeric.values())))), "row"


def _keys_to_draw(keys: Any, columns: dict[str, Any], numeric: dict[str, Any]) -> list[str]:
    """Return the keys to draw."""
    if keys is None:
        others = [key for key in numeric if key != STEP]
        if not others:
            raise ValueError("training: metrics must have a numeric column besides 'step'.")
        return others
    wanted = [keys] if isinstance(keys, str) else list(keys)
    if not wanted:
        raise ValueError("training: keys are empty; leave them out to draw everything.")
    for key in wanted:
        if key not in columns:
            raise ValueError(f"training: no key {key!r} in metrics.{did_you_mean(key, columns)}")
        if key not in numeric:
            raise TypeError(f"training: {key!r} is not numeric.")
    bands = [f"{key}/{end}" for key in wanted for end in ("min", "max")]
    return wanted + [band for band in bands if band in numeric and band not in wanted]


# ------------------------------------------------------------------------------------- drawing


def _panels(keys: list[str]) -> dict[str, list[str]]:
    """Return the keys of each panel, by its name."""
    all_keys = set(keys)
    ends = {f"{key}/{end}" for key in keys for end in ("min", "max")}
    groups: dict[str, list[str]] = {}
    for key in keys:
        if key not in ends:
            group, slash, _ = key.partition("/")
            groups.setdefault(group if slash and group not in all_keys else key, []).append(key)
    panels: dict[str, list[str]] = {}
    for name, members in groups.items():
        if 1 < len(members) <= LINES:
            panels[name] = members
        else:
            panels |= {key: [key] for key in members}
    return panels


def _draw_panel(
    axes: Any, name: str, keys: list[str], steps: Any, numeric: dict[str, Any], look: Look
) -> None:
    for i, key in enumerate(keys):
        mark = "o" if np.isfinite(numeric[key]).sum() == 1 else None
        label = key.removeprefix(f"{name}/")
        axes.plot(steps, numeric[key], linewidth=1.6, label=label, marker=mark, **look.line(i))
        band = [numeric.get(f"{key}/{end}") for end in ("min", "max")]
        if all(edge is not None for edge in band):
            color = look.line(i)["color"]
            axes.fill_between(steps, *band, color=color, alpha=0.2, linewidth=0)
    everything = np.hstack([numeric[key][np.isfinite(numeric[key])] for key in keys])
    if everything.size and everything.min() > 0 and everything.max() > 100 * everything.min():
        axes.set_yscale("log")
    title_axes(axes, name, look)
    draw_grid(axes, look)
    if len(keys) > 1:
        draw_legend(axes, look, len(keys), beside=False)
