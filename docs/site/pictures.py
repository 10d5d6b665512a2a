"""The pictures of the site, as SVG: paths on the surfaces, and curves of losses.

Their colors can be read on a light and on a dark page.
"""

import functools
import html
import math
from collections.abc import Iterable, Sequence

import numpy as np

from docs.site.surfaces import SURFACES

OURS, OTHER, LINE, TEXT = "#5c6bc0", "#e6862e", "#8a8f98", "#7d828c"
SERIES = (OURS, OTHER, "#2e9e7a", "#b4539b")
_FONT = 'font-family="system-ui, sans-serif"'


def _svg(width: int, height: int, title: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{html.escape(title)}</title>{body}</svg>\n'
    )


def _points(points: Iterable[Sequence[float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(points: Iterable[Sequence[float]], color: str, width: float, more: str = "") -> str:
    return (
        f'<polyline points="{_points(points)}" fill="none" stroke="{color}" '
        f'stroke-width="{width}" stroke-linejoin="round" stroke-linecap="round"{more}/>'
    )


# ----------------------------------------------------------------------------------------- paths


@functools.cache
def _contours(name: str, width: int, height: int) -> str:
    """Return lines of equal loss."""
    from contourpy import contour_generator

    surface = SURFACES[name]
    x, y = np.linspace(*surface.x, 60), np.linspace(*surface.y, 60)
    z = np.asarray(surface.loss(*np.meshgrid(x, y)))
    found = contour_generator(x, y, z)
    low, high = float(z.min()), float(z.max())
    levels = [low + (high - low) * (k / 8) ** 2.5 for k in range(1, 8)]
    lines = []
    for level in levels:
        for line in map(np.asarray, found.lines(level)):
            kept = [*line[::2], line[-1]]
            lines.append(_line(_placed(name, kept, width, height), LINE, 0.8, ' opacity="0.8"'))
    return "".join(lines)


def _placed(
    name: str, points: Iterable[Sequence[float]], width: int, height: int
) -> list[tuple[float, float]]:
    surface = SURFACES[name]
    (x0, x1), (y0, y1) = surface.x, surface.y
    return [((x - x0) / (x1 - x0) * width, (y1 - y) / (y1 - y0) * height) for x, y in points]


def path(
    name: str,
    points: Sequence[Sequence[float]],
    evaluated: Sequence[Sequence[float]] | None,
    title: str,
    width: int = 240,
    height: int = 200,
) -> str:
    """Return the picture of a path on a surface.

    Args:
      name: the surface.
      points: where the parameters have been.
      evaluated: the averages that the optimizer is evaluated at; None if it has none.
      title: what the picture says to those who do not see it.
      width: of the picture.
      height: of the picture.
    """
    surface = SURFACES[name]
    body = [_contours(name, width, height)]
    for x, y in _placed(name, surface.minima, width, height):
        cross = f"M{x - 4:.1f} {y:.1f}h8M{x:.1f} {y - 4:.1f}v8"
        body.append(f'<path d="{cross}" stroke="{TEXT}" stroke-width="1.5"/>')
    placed = _placed(name, points, width, height)
    body.append(_line(placed, OURS, 2))
    body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.9" fill="{OURS}"/>' for x, y in placed[:40]]
    if evaluated:
        body.append(_line(_placed(name, evaluated, width, height), OTHER, 2))
    (x, y), *_ = _placed(name, [surface.start], width, height)
    body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{TEXT}"/>')
    return _svg(width, height, title, "".join(body))


# ---------------------------------------------------------------------------------------- curves


class Axis:
    """A range of numbers, on a line of some length; in logarithms if asked."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool) -> None:
        self.log, self.start, self.end = log, start, end
        self.low, self.high = self._at(low), self._at(high)
        self.ticks = self._ticks(low, high)

    def _at(self, x: float) -> float:
        return math.log10(x) if self.log else x

    def __call__(self, x: float) -> float:
        share = (self._at(x) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(max(share, -0.05), 1.05) * (self.end - self.start)

    def _ticks(self, low: float, high: float) -> list[float]:
        if self.log:
            exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(self.high + 1e-9) + 1)
            every = max(1, len(exponents) // 4)
            return [10.0**k for k in exponents][::every]
        step = 10 ** math.floor(math.log10((high - low) / 2))
        for factor in (1, 2, 5, 10):
            if (high - low) / (step * factor) <= 5:
                step *= factor
                break
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _number(x: float) -> str:
    return f"{x:.0e}".replace("e-0", "e-") if 0 < x < 1e-3 else f"{x:g}"


def curves(
    series: Sequence[tuple[str, str, Sequence[tuple[float, float | None]]]],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = True,
    floor: float = 1e-3,
    ceiling: float = np.inf,
    size: tuple[int, int] = (420, 240),
    marks: bool = False,
    legend: int = 118,
) -> str:
    """Return a picture of lines.

    Args:
      series: a label, a color and the points of each; a point without a number is left out.
      title: what the picture says to those who do not see it.
      x_label: what is along.
      y_label: what is up.
      log_x: whether along in logarithms.
      log_y: whether up in logarithms.
      floor: the least number up in logarithms.
      ceiling: the greatest number up.
      size: width and height.
      marks: whether the points are marked.
      legend: the width of the list of labels.
    """
    width, height = size
    lines = [
        (label, color, [(x, max(y, floor) if log_y else y) for x, y in points if y is not None])
        for label, color, points in series
    ]
    lines = [line for line in lines if line[2]]
    along = [x for *_, points in lines for x, _ in points]
    up = [min(y, ceiling) for *_, points in lines for _, y in points]
    x_axis = Axis(min(along), max(along), 44, width - 10, log_x)
    y_axis = Axis(min(up), max(up), height - 36, 12, log_y)
    body = []
    small = f'{_FONT} font-size="11" fill="{TEXT}"'
    for x in x_axis.ticks:
        at = x_axis(x)
        body.append(f'<path d="M{at:.1f} 12V{height - 36}" stroke="{LINE}" opacity="0.25"/>')
        body.append(
            f'<text x="{at:.1f}" y="{height - 22}" text-anchor="middle" {small}>{_number(x)}</text>'
        )
    for y in y_axis.ticks:
        at = y_axis(y)
        body.append(f'<path d="M44 {at:.1f}H{width - 10}" stroke="{LINE}" opacity="0.25"/>')
        body.append(f'<text x="39" y="{at + 4:.1f}" text-anchor="end" {small}>{_number(y)}</text>')
    body.append(
        f'<text x="{width - 10}" y="{height - 6}" text-anchor="end" {small}>{x_label}</text>'
    )
    body.append(f'<text x="4" y="{height - 6}" {small}>{y_label}</text>')
    clipped = f'<clipPath id="c"><rect x="44" y="6" width="{width - 54}" height="{height - 40}"/>'
    body.append(f'<defs>{clipped}</clipPath></defs><g clip-path="url(#c)">')
    for _, color, points in lines:
        placed = [(x_axis(x), y_axis(y)) for x, y in points]
        body.append(_line(placed, color, 2))
        if marks:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in placed]
    body.append("</g>")
    labels = [(label, color) for label, color, _ in lines if label]
    for i, (label, color) in enumerate(labels):
        y = 24 + 15 * i
        body.append(
            f'<path d="M{width - legend} {y - 4}h14" stroke="{color}" stroke-width="3"/>'
            f'<text x="{width - legend + 19}" y="{y}" {_FONT} font-size="12" fill="{TEXT}">'
            f"{html.escape(label)}</text>"
        )
    return _svg(width, height, title, "".join(body))


def thumbnail(
    ours: Sequence[float | None], other: Sequence[float | None], title: str, floor: float = 1e-2
) -> str:
    """Return a small picture of two losses over the steps, ours in front."""
    width, height = 120, 100
    top = 3.0
    body = [f'<rect width="{width}" height="{height}" fill="none"/>']
    y_axis = Axis(floor, top, height - 6, 6, True)
    for losses, color, stroke in ((other, OTHER, 1.5), (ours, OURS, 2.2)):
        points = [
            (6 + (width - 12) * i / max(1, len(losses) - 1), y_axis(min(max(y, floor), top)))
            for i, y in enumerate(losses)
            if y is not None
        ]
        body.append(_line(points, color, stroke))
    return _svg(width, height, title, "".join(body))
