"""A row of a table: a call in PyTorch, the same here, and what shows that they compute the same.

What is compared is the call of the guide, as it stands there, from the first to the last update:
`measured` takes its text, and nothing of a `Row` can change the state, the parameters or the
updates. What a `Row` limits, or what it draws, stands in its notes, which `text` completes.
"""

import ast
import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from docs.site.from_pytorch import torch_formulas
from tests.interop.recordings import (
    STEPS,
    Inputs,
    Recording,
    gradients,
    nothing_drawn,
    recording,
    replayed,
)

# The numbers of calls whose configuration was not recorded.
NUMBERS = {"lr": 0.01, "w": 0.1, "d": 0.3}


class Drawn(NamedTuple):
    """Random numbers that were recorded, which are drawn again."""

    text: str  # as the notes have it
    instead: Callable[[Recording, int], Any]  # a context in which update t draws them


class Row(NamedTuple):
    """A call in PyTorch and the same here."""

    theirs: str  # as the guide shows it
    # As the guide shows it: an expression of `gx`, of the arguments there (such as `lr`), and of
    # the names that the page gives (`names_of`). "" if there is nothing here.
    ours: str
    difference: float | None  # at most; relative to how far the parameters move. None: not computed
    recorded: str | None = None  # the name of the recording; None: its formula
    notes: str = ""
    inputs: Inputs = gradients  # what each update gets
    drawn: Drawn | None = None
    evaluated: str = ""  # what was recorded of `gx.eval_params`, if that is compared
    leaves: tuple[str, ...] = ()  # which are compared, if not all
    steps: int = STEPS  # how many updates are compared

    def text(self) -> str:
        """Return the notes, with all that the number of this row depends on."""
        parts = [self.notes.rstrip(".")] if self.notes else []
        parts += [self.drawn.text] if self.drawn else []
        parts += ["compared is `gx.eval_params(state, params)`"] if self.evaluated else []
        limits = [listed(self.leaves)] if self.leaves else []
        limits += [f"after the first {self.steps} updates"] if self.steps < STEPS else []
        parts += [" ".join(["compared", *limits])] if limits else []
        return ". ".join(part[:1].upper() + part[1:] if i else part for i, part in enumerate(parts))

    def measured(self, call: str, names: dict[str, Any]) -> float:
        """Return the largest difference of a call, relative to how far the parameters move.

        Args:
          call: the text that a guide shows.
          names: what its page defines, by name.
        """
        # What a guide shows is written for JAX as it is, and not for the strict promotion of tests.
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            recorded = self.trace()
            tx = eval(call, {"gx": gx, **names, **self.arguments()})
            instead = self.drawn.instead if self.drawn else nothing_drawn
            steps, state = replayed(tx, recorded, self.inputs, instead)
            if self.evaluated:
                return recorded.difference([gx.eval_params(state, steps[-1])], self.evaluated)
            return recorded.difference(steps[: self.steps], "params", self.leaves)

    def trace(self) -> Recording:
        """Return what was recorded, or what the formula of the call computes."""
        if self.recorded is not None:
            return recording(self.recorded)
        call = call_in(self.theirs)
        kwargs = {kw.arg: value_of(kw.value) for kw in call.keywords if kw.arg}
        kwargs |= {ast.unparse(x): NUMBERS[ast.unparse(x)] for x in call.args}
        formula = torch_formulas.OF_CLASS[ast.unparse(call.func)]
        return computed(recording("torch.SGD"), formula(**kwargs))

    def arguments(self) -> dict[str, Any]:
        """Return what the names of the arguments there are."""
        return NUMBERS if self.recorded is None else recording(self.recorded).kwargs


def drawing(module: Any, function: str, drawn: np.ndarray) -> Any:
    """Return a context in which a function of random numbers returns what was drawn."""
    context = contextlib.ExitStack()
    context.enter_context(jax.disable_jit())
    context.enter_context(mock.patch.object(module, function, lambda *_: jnp.asarray(drawn)))
    return context


def listed(words: tuple[str, ...]) -> str:
    """Return words as a sentence has them."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def call_in(theirs: str) -> ast.Call:
    """Return the call of a class in the first cell of a row."""
    found = [x for x in ast.walk(ast.parse(theirs, mode="eval")) if isinstance(x, ast.Call)]
    return next(x for x in found if isinstance(x.func, ast.Name))


def value_of(node: ast.expr) -> Any:
    """Return a literal, or the number of a name."""
    return NUMBERS[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def names_of(page: str) -> dict[str, Any]:
    """Return what the block after `<!-- names of the rows -->` defines in the text of a page."""
    block = re.search(r"<!-- names of the rows -->\n+```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    if block:
        exec(block[1], names)
        names.pop("__builtins__")
    return names


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
