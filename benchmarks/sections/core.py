"""Section `core`: the cost of well-known optimizers compared with Optax, from tracing to steps."""

import gc
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import (
    CHAINS,
    DEFAULT_TREES,
    LIBRARIES,
    OURS,
    QUICK_TREES,
    THEIRS,
    make_tree,
)
from benchmarks.tables import plot, report
from benchmarks.tables.figures import FIGURES
from benchmarks.tables.targets import judge
from benchmarks.timing import machine
from benchmarks.timing.measure import Budget, interleave, summarize
from benchmarks.timing.staging import Staged, orders, stage, static_costs
from benchmarks.timing.stepping import size, time_steps

Samples = dict[str, list[float]]  # by library

# The parts of a case, and the figures that need them.
TRACED = {"trace", "lower", "trace+lower"}
PARTS = {
    "stage": TRACED | {"compile", "step", "temp", "bytes"},
    "step": {"step"},
    "eager": {"eager"},
}

# Time limits that keep the whole default run to about twelve minutes on two cores.
STAGE_SECONDS, COMPILE_SECONDS, STEP_SECONDS, EAGER_SECONDS = 15.0, 10.0, 10.0, 10.0
LINGER_SECONDS = 1.0  # for cheap calls; none in a smoke run
STAGE_LINGER_SECONDS = 4.0  # for cheap stages, each of which clears the caches first


def run(options: Options, job: Job) -> Results:
    """Measure every chain on every tree."""
    results: Results = {
        "section": "core",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    parts = sum(_wanted(part, options) for part in PARTS)
    trees = options.trees or (QUICK_TREES if options.quick else DEFAULT_TREES)
    job.plan(len(trees) * len(options.chains) * parts)
    for tree in trees:
        params, grads = make_tree(tree, options.seed)
        for chain in options.chains:
            results["cases"].append(_case(tree, chain, params, grads, options, job))
            results["targets"] = judge(results)
            job.save(results)
        del params, grads  # before the next tree is made
    return results


def _wanted(part: str, options: Options) -> bool:
    return not PARTS[part].isdisjoint(options.only)


def _case(
    tree: str, chain: str, params: Any, grads: Any, options: Options, job: Job
) -> dict[str, Any]:
    """Measure one chain on one tree."""
    txs = {name: CHAINS[chain](lib) for name, lib in LIBRARIES.items()}
    states = {name: size(jax.eval_shape(tx.init, params)) for name, tx in txs.items()}
    case: dict[str, Any] = {
        "tree": tree,
        "chain": chain,
        "load": machine.load(),  # before; much above 1 if other processes used the machine
        "leaves": len(jax.tree.leaves(params)),
        "entries": sum(x.size for x in jax.tree.leaves(params)),
        "param_bytes": size(params),
        "state_bytes": states,
        # Gradients, slots and parameters are read once; slots and parameters are written once.
        # Both libraries have the same floor, so that a larger state shows as more bytes.
        "floor_bytes": size(grads) + 2 * (size(params) + min(states.values())),
    }
    samples: dict[str, Samples] = {}

    if _wanted("stage", options):
        job.begin(f"{tree} {chain}: trace, lower, compile")
        staged = _stage(chain, params, grads, options)
        samples |= staged.samples
        for name, compiled in staged.last.items():
            for figure, value in static_costs(compiled).items():
                samples.setdefault(figure, {})[name] = [value]
        case["accessed_bytes"] = {k: v[0] for k, v in samples.get("bytes", {}).items()}
        for accessed in samples.get("bytes", {}).values():
            accessed[0] /= case["floor_bytes"]
        job.advance()
        if _wanted("step", options):
            job.begin(f"{tree} {chain}: step")
            samples["step"], case["difference"] = _steps(
                staged.programs, txs, params, grads, options
            )
            job.advance()
        del staged
    if _wanted("eager", options):
        job.begin(f"{tree} {chain}: eager update")
        samples["eager"] = _eager(txs, params, grads, options)
        job.advance()

    case["figures"] = {
        name: {"unit": FIGURES[name].unit, **summarize(samples[name], THEIRS, OURS)}
        for name in FIGURES  # in this order
        if name in options.only and all(samples.get(name, {}).get(lib) for lib in LIBRARIES)
    }
    jax.clear_caches()
    gc.collect()
    return case


def _stage(chain: str, params: Any, grads: Any, options: Options) -> Staged:
    """Stage as often as the selected figures need it."""
    only = set(options.only)
    goal = min(5, options.repeats)
    linger = 0.0 if options.quick else STAGE_LINGER_SECONDS
    tracing, compiling = Budget(0, 0, 0.0), Budget(0, 0, 0.0)
    if TRACED & only:
        tracing = Budget(goal, min(3, goal), STAGE_SECONDS, linger)
    if not PARTS["stage"] & only <= TRACED:
        least = orders(options)
        if "compile" in only and not options.quick:
            compiling = Budget(max(goal, least), least, COMPILE_SECONDS, linger)
        else:
            compiling = Budget(least, least, COMPILE_SECONDS)
    return stage(CHAINS[chain], params, grads, tracing, compiling)


def _steps(
    programs: list[dict[str, Any]], txs: dict[str, Any], params: Any, grads: Any, options: Options
) -> tuple[Samples, float]:
    """Return the seconds of each step, and the difference between the libraries' parameters."""
    budget = Budget(options.repeats, min(15, options.repeats), STEP_SECONDS, _linger(options))
    return time_steps(programs, txs, params, grads, budget)


def _eager(txs: dict[str, Any], params: Any, grads: Any, options: Options) -> Samples:
    """Return the seconds of each update without jit. Each library continues from its own state."""
    states = {name: tx.init(params) for name, tx in txs.items()}

    def updater(name: str) -> Callable[[], Any]:
        def update() -> Any:
            updates, states[name] = txs[name].update(grads, states[name], params)
            return updates, states[name]

        return update

    budget = Budget(options.repeats, min(5, options.repeats), EAGER_SECONDS, _linger(options))
    return interleave({name: updater(name) for name in txs}, budget)


def _linger(options: Options) -> float:
    return 0.0 if options.quick else LINGER_SECONDS


SECTION = Section(
    about="trace, lower, compile, step, eager update and memory of four optimizers",
    run=run,
    show=report.show,
    draw=plot.draw,
)
