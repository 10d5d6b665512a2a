"""What a workload is: everything that a run of an optimizer needs."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Start(NamedTuple):
    """What a seed decides."""

    params: Any
    batches: Any  # of all steps, along the first axis of every array


class Workload(NamedTuple):
    """A loss to minimize, and the loss by which a run is measured.

    Attributes:
      about: one line for readers.
      start: returns what a seed decides, for a number of steps.
      loss: the loss of parameters and a batch, which is differentiated.
      total: the loss that must reach the target, of parameters.
      steps: the budget of steps.
      every: the steps from one measurement of `total` to the next.
      over: of how many measurements the mean must reach the target: several where batches differ,
        so that no single lucky one counts.
      data: a checksum of the data, on which the target depends.
      tables: a pattern of the paths of tables in which the loss looks rows up; "" without tables.
      same_examples: whether every batch has all examples.
    """

    about: str
    start: Callable[[int, int], Start]
    loss: Callable[[Any, Any], jax.Array]
    total: Callable[[Any], jax.Array]
    steps: int
    every: int
    over: int
    data: int
    tables: str = ""
    same_examples: bool = False


def checksum(*arrays: Any) -> int:
    """Return a checksum of arrays that is the same on every machine."""
    found = 0
    for x in arrays:
        found = zlib.crc32(np.ascontiguousarray(x).tobytes(), found)
    return found


def dense(random: np.random.Generator, rows: int, columns: int) -> dict[str, jax.Array]:
    """Return a layer whose units are of variance 1 before the nonlinearity, and begin at 0."""
    kernel = random.normal(size=(rows, columns)) * np.sqrt(2 / rows)
    return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.zeros(columns)}


def applied(layer: Any, x: Any) -> jax.Array:
    """Return what a layer makes of rows."""
    return x @ layer["kernel"] + layer["bias"]
