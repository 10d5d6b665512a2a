"""The targets, and whether the measured figures reach them."""

from typing import Any

from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.tables.figures import at_most, show_ratio, show_value

# (chain, tree, figure) -> the largest ratio to Optax.
RATIOS: dict[tuple[str, str, str], float] = {
    ("clip+adamw", "256-mixed", "trace+lower"): 0.25,
    ("clip+adamw", "1024-mixed", "trace+lower"): 0.25,
    ("clip+adamw", "256-mixed", "step"): 0.95,
    ("clip+adamw", "1024-mixed", "step"): 0.5,
    ("clip+adamw", "256-mixed", "eager"): 0.2,
    ("clip+adamw", "1024-mixed", "eager"): 0.2,
}
# (chain, tree) -> the largest temporary memory, as a part of the parameters' bytes.
TEMP_SHARES: dict[tuple[str, str], float] = {
    ("clip+adamw", "256-mixed"): 0.02,
    ("clip+adamw", "1024-mixed"): 0.02,
}
# The largest ratio of every figure of every other pair of a chain and a tree.
OTHERWISE = 1.05


def judge(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per target for which there are results.

    A row has the `case`, the `target`, the `measured` figure, whether it `reached` the target, and,
    if not, whether the samples scatter so much that this is `unsettled`.
    """
    rows = []
    for case in results["cases"]:
        pair = case["chain"], case["tree"]
        if pair in TEMP_SHARES:
            rows += _stated(case)
        else:
            rows += _no_worse(case)
    return rows


def _stated(case: dict[str, Any]) -> list[dict[str, Any]]:
    pair = case["chain"], case["tree"]
    figures = case["figures"]
    rows = []
    for (chain, tree, name), limit in RATIOS.items():
        if (chain, tree) == pair and name in figures:
            figure = figures[name]
            rows.append(
                _row(
                    case,
                    f"{name} at most {limit}x",
                    f"{show_ratio(figure['ratio'])} ({_absolute(figure)})",
                    at_most(figure["ratio"], limit),
                    _unsettled(figure, limit),
                )
            )
    if "temp" in figures:
        limit = TEMP_SHARES[pair]
        ours = figures["temp"]["median"][OURS]
        share = ours / case["param_bytes"]
        rows.append(
            _row(
                case,
                f"temp at most {limit:.0%} of parameters",
                f"{share:.2%} ({show_value(ours, 'B')})",
                share <= limit,
            )
        )
    return rows


def _no_worse(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Judge all figures of a case together; name those that miss, or else the worst."""
    ratios = {name: figure["ratio"] for name, figure in case["figures"].items()}
    if not ratios:
        return []
    ranked = sorted(ratios, key=lambda k: float("inf") if ratios[k] is None else ratios[k])
    missed = [name for name in ranked if not at_most(ratios[name], OTHERWISE)]
    named = missed[::-1] or ranked[-1:]
    measured = ", ".join(f"{name} {show_ratio(ratios[name])}" for name in named)
    unsettled = all(_unsettled(case["figures"][name], OTHERWISE) for name in missed)
    return [_row(case, f"nothing above {OTHERWISE}x", measured, not missed, unsettled)]


def _unsettled(figure: dict[str, Any], limit: float) -> bool:
    """Return whether a timing misses its limit, but might reach it with more samples."""
    if figure["unit"] != "s" or at_most(figure["ratio"], limit):
        return False
    few = len(figure["samples"][OURS]) < 3
    return few or figure["interval"] is None or figure["interval"][0] <= limit


def _absolute(figure: dict[str, Any]) -> str:
    ours, theirs = (figure["median"][name] for name in (OURS, THEIRS))
    return f"{show_value(ours, figure['unit'])} / {show_value(theirs, figure['unit'])}"


def _row(
    case: dict[str, Any], target: str, measured: str, reached: bool, unsettled: bool = False
) -> dict[str, Any]:
    return {
        "case": f"{case['chain']}, {case['tree']}",
        "target": target,
        "measured": measured,
        "reached": reached,
        "unsettled": not reached and unsettled,
    }
