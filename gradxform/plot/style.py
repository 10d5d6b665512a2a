"""How all pictures look: colors that color-blind readers can tell apart, on light and dark."""

import functools
import io
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gradxform.errors import require_bool, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors; their yellow does not show on white, nor their black on black.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
DARK = ("#4f94ff", "#ff8a3d", "#2fc79a", "#e69ac4", "#f0c04a", "#9fe3ff", "#c8c8c8")
# After the last color the next dash pattern begins.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))
MARKS = ("o", "s", "^", "D", "v", "P", "X")


class Look(NamedTuple):
    """The colors of a picture."""

    paper: str
    ink: str
    faint: str  # of grids and contours
    low: str  # of a surface, at its lowest
    colors: tuple[str, ...]

    def line(self, i: int) -> dict[str, Any]:
        """Return color and dashes of the i-th line."""
        dashes = DASHES[i // len(self.colors) % len(DASHES)]
        return {"color": self.colors[i % len(self.colors)], "linestyle": dashes}


LOOKS = {
    False: Look("#ffffff", "#24292f", "#c3cad4", "#c2d3e8", LIGHT),
    True: Look("#16181d", "#e3e6ea", "#48505c", "#31496b", DARK),
}


def look_of(function: str, dark: Any) -> Look:
    """Return the colors for light or dark paper."""
    require_bool(function, "dark", dark)
    return LOOKS[dark]


def new_figure(function: str, width: float, height: float, look: Look) -> "Figure":
    """Return an empty figure of that many inches.

    Raises:
      ModuleNotFoundError: if matplotlib is not installed; the message says how to install it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError(
            f"gradxform.plot.{function} needs matplotlib: pip install 'gradxform[plot]'.",
            name=error.name,
        ) from None
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor=look.paper)
    FigureCanvasAgg(figure)
    # IPython looks for this, and knows figures by itself only after pyplot was imported.
    vars(figure)["_repr_png_"] = functools.partial(_png_of_styled_figure, figure)
    return figure


def _png_of_styled_figure(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def axes_for(function: str, ax: Any, width: float, height: float, look: Look) -> Any:
    """Return the caller's axes, or those of a new figure in our colors."""
    if ax is None:
        return dressed_axes(new_figure(function, width, height, look).subplots(), look)
    if not hasattr(ax, "plot") or not hasattr(ax, "figure"):
        raise TypeError(f"{function}: ax must be matplotlib axes, got {shown(ax)}.")
    return ax


def dressed_axes(axes: Any, look: Look) -> Any:
    """Color axes of our own."""
    axes.set_facecolor(look.paper)
    axes.tick_params(colors=look.ink, which="both", labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(look.faint)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(look.ink)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set_color(look.ink)
    return axes


def title_axes(axes: Any, title: str, look: Look) -> None:
    """Write the title of axes, in several lines if it is long."""
    lines = textwrap.wrap(title, 64, break_on_hyphens=False)
    axes.set_title("\n".join(lines), fontsize=10, loc="left", color=look.ink)


def draw_grid(axes: Any, look: Look, **which: Any) -> None:
    """Draw a grid below everything."""
    axes.grid(color=look.faint, linewidth=0.6, alpha=0.7, **which)
    axes.set_axisbelow(True)


def draw_legend(axes: Any, look: Look, lines: int, **options: Any) -> None:
    """Draw a legend; one of many lines goes beside the axes."""
    beside = options.pop("beside", lines > 5)
    place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if beside else {"loc": "best"}
    box = axes.legend(
        **place, fontsize=9, frameon=not beside, labelcolor=look.ink, handlelength=2.6, **options
    )
    box.get_title().set_color(look.ink)
    box.get_frame().set(facecolor=look.paper, edgecolor=look.faint, alpha=0.85)


def by_name(
    function: str, what: str, x: Any, is_one: Callable[[Any], bool], name_of: Callable[[Any], str]
) -> dict[str, Any]:
    """Return what is to be drawn by name: one thing, a list of them, or a dict.

    Args:
      function: its name, for messages.
      what: what one is called, such as "a schedule".
      x: one, a list or tuple, or a dict from names.
      is_one: returns whether something is one.
      name_of: returns the name of one that does not have a name.

    Raises:
      TypeError, ValueError: if it is none of these, or empty.
    """
    if not is_one(x) and isinstance(x, Mapping):
        named = {str(name): item for name, item in x.items()}
    elif not is_one(x) and isinstance(x, list | tuple):
        named = {}
        for item in x:
            name = first = name_of(item) if is_one(item) else shown(item)
            n = 2
            while name in named:
                name, n = f"{first} ({n})", n + 1
            named[name] = item
    else:
        named = {name_of(x) if is_one(x) else shown(x): x}
    if not named:
        raise ValueError(f"{function}: needs at least one {what}, got {shown(x)}.")
    for name, item in named.items():
        if not is_one(item):
            article = "an" if what[0] in "aeiou" else "a"
            where = f" for {name!r}" if isinstance(x, Mapping) else ""
            raise TypeError(
                f"{function}: needs {article} {what}, a list or a dict of them, got "
                f"{shown(item)}{where}."
            )
    return named


def short_label(text: str) -> str:
    """Return a text that fits into a legend."""
    return text if len(text) <= 40 else text[:37] + "..."


def width_of(names: Iterable[str]) -> float:
    """Return about how many inches a legend with these names takes."""
    return 0.75 + 0.075 * max(map(len, names))


def check_count(function: str, name: str, n: Any, most: int) -> None:
    """Require a number of steps from 1."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{function}: {name} must be an integer, got {shown(n)}.")
    if not 1 <= n <= most:
        raise ValueError(f"{function}: {name} must be from 1 to {most}, got {n}.")
