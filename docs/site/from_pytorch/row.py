"""A row of a table: a call in PyTorch, the same here, and what shows that they compute the same."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import gradxform as gx
from tests.interop.recordings import STEPS, Recording, Step, by_gradient, recording, replayed


class Row(NamedTuple):
    """A call in PyTorch and the same here."""

    theirs: str  # as the guide shows it
    # An expression of `gx`, of the arguments that were recorded (such as `lr`) and of `names`.
    ours: str
    difference: float | None  # at most; relative to how far the parameters move. None: not computed
    recorded: str | None = None  # the name of the recording
    notes: str = ""
    names: Mapping[str, Any] = {}
    step: Step = by_gradient
    # Where nothing was recorded: a function of the first parameters and the list of gradients, in
    # NumPy, that returns the parameters after each update.
    formula: Callable[[Any, list[Any]], list[Any]] | None = None
    compared: str = "params"  # or what else was recorded, such as "aux/eval"
    shown: str = ""  # instead of `ours`, where that needs more than the guide should show
    leaves: tuple[str, ...] = ()  # which are compared, if not all
    steps: int = STEPS  # how many updates are compared
    result: Callable[[Any, Any], Any] = lambda params, state: params  # what is compared

    def measured(self) -> float:
        """Return the largest difference, relative to how far the parameters move."""
        # What a guide shows is written for JAX as it is, and not for the strict promotion of tests.
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            recorded = recording(self.recorded or "torch.SGD")
            names = {} if self.recorded is None else recorded.kwargs
            tx = eval(self.ours, {"gx": gx, "np": np, **names, **self.names})
            if self.formula is not None:
                recorded = computed(recorded, self.formula)
            steps, state = replayed(tx, recorded, self.step)
            if self.compared != "params":
                steps = [self.result(steps[-1], state)]
            return recorded.difference(steps[: self.steps], self.compared, self.leaves)


def computed(recorded: Recording, formula: Callable[[Any, list[Any]], list[Any]]) -> Recording:
    """Return a recording of what a formula computes from the inputs of another."""
    arrays = recorded.arrays
    inputs = {leaf: arrays[f"init/{leaf}"] for leaf in recorded.moved}
    grads = [{leaf: arrays[f"grad/{leaf}"][t] for leaf in inputs} for t in range(STEPS)]
    steps = formula(inputs, grads)
    params = {leaf: np.stack([step[leaf] for step in steps]) for leaf in inputs}
    moved = {leaf: float(np.max(np.abs(params[leaf][-1] - x))) for leaf, x in inputs.items()}
    arrays = arrays | {f"params/{leaf}": x for leaf, x in params.items()}
    return recorded._replace(moved=moved, arrays=arrays)
