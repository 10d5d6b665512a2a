"""Tracing, lowering and compiling the training step of each library, without caches."""

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from benchmarks.options import Options
from benchmarks.subjects.cases import LIBRARIES, make_step
from benchmarks.timing.measure import Budget, turned

# The figures that this module measures.
STAGED = ("trace", "lower", "trace+lower", "compile")


@dataclasses.dataclass
class Staged:
    """Samples in seconds, `samples[figure][library]`, and the compiled steps by library.

    There is one dict of steps for each order in which the libraries were compiled, with its keys in
    that order. Of two equal programs, the one compiled first was measured to be a few percent
    faster.
    """

    samples: dict[str, dict[str, list[float]]]
    programs: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        """The steps that were compiled last; empty if none were compiled."""
        return self.programs[-1] if self.programs else {}


def orders(options: Options) -> int:
    """Return the number of orders to compile in: 2 if steps are compared."""
    return 1 if options.quick or "step" not in options.only else 2


def stage(
    make: Callable[[Any], Any],
    params: Any,
    grads: Any,
    tracing: Budget,
    compiling: Budget,
    extra: Mapping[str, Any] | None = None,
) -> Staged:
    """Stage the step of each library in turn, in changing order, until both budgets are used up.

    Args:
      make: a function of a library that returns its optimizer.
      params: the parameters; only shapes and dtypes matter.
      grads: the gradients, likewise.
      tracing: the number of rounds of tracing and lowering.
      compiling: the number of these rounds that also compile; none with a goal of 0.
      extra: extra arguments of the update.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, grads))
    # Stage a tree of one leaf first, so that no sample pays for modules imported at first use.
    for name in LIBRARIES:
        one, its_gradient = ({"w": jax.tree.leaves(tree)[0]} for tree in shapes)
        _trace_and_lower(name, make, one, its_gradient, extra)
    out = Staged({figure: {name: [] for name in LIBRARIES} for figure in STAGED}, [])
    rounds = compiled = 0
    spent = 0.0  # on compiling, which has its own time limit
    start = time.perf_counter()
    while True:
        more = not compiling.exhausted(compiled, spent)
        if not more and tracing.exhausted(rounds, time.perf_counter() - start - spent):
            return out
        steps = {}
        for name in turned(LIBRARIES, rounds):
            (trace, lower), lowered = _trace_and_lower(name, make, shapes[0], shapes[1], extra)
            out.samples["trace"][name].append(trace)
            out.samples["lower"][name].append(lower)
            out.samples["trace+lower"][name].append(trace + lower)
            if more:
                begin = time.perf_counter()
                steps[name] = lowered.compile()
                out.samples["compile"][name].append(time.perf_counter() - begin)
                spent += out.samples["compile"][name][-1]
        if more:
            out.programs = [*out.programs[-1:], steps]
        rounds += 1
        compiled += more


def _trace_and_lower(
    name: str,
    make: Callable[[Any], Any],
    params: Any,
    grads: Any,
    extra: Mapping[str, Any] | None,
) -> tuple[tuple[float, float], Any]:
    """Return the seconds of tracing and of lowering, and the lowered step."""
    lib = LIBRARIES[name]
    tx = make(lib)
    state = jax.eval_shape(tx.init, params)
    jitted = jax.jit(make_step(lib, tx, extra), donate_argnums=(0, 1))
    jax.clear_caches()
    gc.collect()
    start = time.perf_counter()
    traced = jitted.trace(params, state, grads)
    middle = time.perf_counter()
    lowered = traced.lower()
    end = time.perf_counter()
    return (middle - start, end - middle), lowered


def static_costs(compiled: Any) -> dict[str, float]:
    """Return the compiler's figures of memory, in bytes, as far as the backend has them."""
    costs = {}
    memory = compiled.memory_analysis()
    if memory is not None:
        costs["temp"] = memory.temp_size_in_bytes
    analysis = compiled.cost_analysis()
    if analysis and "bytes accessed" in analysis:
        costs["bytes"] = analysis["bytes accessed"]
    return costs
