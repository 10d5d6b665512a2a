"""The figures that are measured: their names, meanings and formats."""

from typing import Any, NamedTuple


class Figure(NamedTuple):
    """A measured quantity; smaller is always better."""

    unit: str  # "s", "B" (bytes) or "x" (times the floor)
    about: str


FIGURES: dict[str, Figure] = {
    "trace": Figure("s", "jax.jit(step).trace(...), all caches cleared"),
    "lower": Figure("s", ".lower() of the traced step"),
    "trace+lower": Figure("s", "the sum of both, round by round"),
    "compile": Figure("s", ".compile() of the lowered step"),
    "step": Figure("s", "one compiled step, parameters and state donated"),
    "eager": Figure("s", "tx.update(grads, state, params) without jit, in steady state"),
    "temp": Figure("B", "temporary memory of the compiled step"),
    "bytes": Figure("x", "bytes accessed by the compiled step, as a multiple of the floor"),
}


def show_value(value: float, unit: str) -> str:
    """Return a value with three digits and its unit, in at most six characters."""
    if unit == "x":
        return f"{value:.2f}"
    scales = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    if unit == "B":
        scales = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
    name, scale = next((s for s in scales if value >= s[1]), scales[-1])
    scaled = value / scale
    if name == "B":
        return f"{scaled:.0f}B"
    digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{digits}f}{name}"


def show_ratio(ratio: float | None) -> str:
    """Return a ratio with two digits; a small one with two significant digits."""
    if ratio is None:
        return "infx"
    if 0 < ratio < 0.095:
        return f"{ratio:.3f}x" if ratio >= 0.0005 else "<0.001x"
    return f"{ratio:.2f}x" if ratio < 99.5 else f"{ratio:.0f}x"


def at_most(ratio: float | None, limit: float) -> bool:
    """Return whether a ratio, None for infinity, is within a limit."""
    return ratio is not None and ratio <= limit


def title(case: dict[str, Any]) -> str:
    """Return a case's tree with its size, for headings."""
    return (
        f"{case['tree']}: {case['leaves']} {'leaf' if case['leaves'] == 1 else 'leaves'}, "
        f"{case['entries'] / 1e6:.3g}M entries, {show_value(case['param_bytes'], 'B')}"
    )
