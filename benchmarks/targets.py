"""The stated targets, and whether the measured figures reach them."""

from typing import Any

from benchmarks.cases import OURS, THEIRS
from benchmarks.figures import at_most, show_ratio, show_value

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
# Every figure of every other pair of a chain and a tree.
OTHERWISE = 1.05


def judge(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per target that the results can speak to.

    A row holds the `case`, the `target`, what was `measured`, whether that `reached` it, and, if
    not, whether the samples spread so far that it is `unsettled`.
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
            found = figures[name]
            rows.append(
                _row(
                    case,
                    f"{name} at most {limit}x",
                    f"{show_ratio(found['ratio'])} ({_absolute(found)})",
                    at_most(found["ratio"], limit),
                    _unsettled(found, limit),
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
    ratios = {name: found["ratio"] for name, found in case["figures"].items()}
    if not ratios:
        return []
    ranked = sorted(ratios, key=lambda k: float("inf") if ratios[k] is None else ratios[k])
    missed = [name for name in ranked if not at_most(ratios[name], OTHERWISE)]
    named = missed[::-1] or ranked[-1:]
    measured = ", ".join(f"{name} {show_ratio(ratios[name])}" for name in named)
    unsettled = all(_unsettled(case["figures"][name], OTHERWISE) for name in missed)
    return [_row(case, f"nothing above {OTHERWISE}x", measured, not missed, unsettled)]


def _unsettled(found: dict[str, Any], limit: float) -> bool:
    """Return whether a timing misses its limit, but more samples might tell otherwise."""
    if found["unit"] != "s" or at_most(found["ratio"], limit):
        return False
    few = len(found["samples"][OURS]) < 3
    return few or found["interval"] is None or found["interval"][0] <= limit


def _absolute(found: dict[str, Any]) -> str:
    ours, theirs = (found["median"][name] for name in (OURS, THEIRS))
    return f"{show_value(ours, found['unit'])} / {show_value(theirs, found['unit'])}"


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
