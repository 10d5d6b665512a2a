"""Compiling for TPUs, without one, in another process that is ended where it takes too long."""

import importlib.metadata
import importlib.util
import multiprocessing
import os
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from benchmarks.options import Refused
from benchmarks.timing import machine

# Without a TPU, its library would ask the network where it is.
ALONE = {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def mesh(topology: str = "") -> Mesh:
    """Return a mesh of all devices of a topology; without its name, of one TPU v5e."""
    from jax.experimental import topologies

    name = topology or "v5e:2x2"
    found = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    devices = sorted(found, key=lambda d: d.id)[: None if topology else 1]
    shape = (*map(int, name.split(":")[1].split("x")), 1)[:3] if topology else (1, 1, 1)
    return Mesh(np.array(devices).reshape(shape), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)


def _serve(pipe: Any, compiled: Callable[..., dict[str, Any]]) -> None:
    """Say what the machine is, and then compile what is asked for, until nothing is."""
    jax.config.update("jax_enable_compilation_cache", False)
    warnings.simplefilter("ignore")
    pipe.send({**machine.describe(), "libtpu": importlib.metadata.version("libtpu")})
    while asked := pipe.recv():
        try:
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                pipe.send(compiled(*asked))
        except Exception as error:  # of a single row, and no reason to lose the others
            pipe.send({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"})
        jax.clear_caches()  # rows that are compiled one after the other would fill the memory


class Compiler:
    """A process that compiles one row at a time.

    Args:
      section: which section asks, for messages.
      compiled: returns the figures of a row, from what `figures` gets; a function of a module.
      limit: the seconds for a row.

    Raises:
      Refused: without the compiler for TPUs.
    """

    def __init__(self, section: str, compiled: Callable[..., dict[str, Any]], limit: float) -> None:
        if importlib.util.find_spec("libtpu") is None:
            raise Refused(
                f"the section {section} needs libtpu, the compiler for TPUs: `make bench "
                f"ARGS={section}` installs it in .venv-tpu; without make, install the extras "
                "examples and tpu."
            )
        self.compiled, self.limit = compiled, limit
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.compiled), daemon=True)
        with mock.patch.dict(os.environ, ALONE):
            self.process.start()
        self.machine = self.pipe.recv()

    def figures(self, *asked: Any) -> dict[str, Any]:
        """Return the figures of a row; those of one that takes too long say so."""
        self.pipe.send(asked)
        error = f"more than {self.limit:.0f} s"
        try:
            if self.pipe.poll(self.limit):
                return self.pipe.recv()
        except EOFError:
            error = "the compiler broke off"
        self.process.kill()
        self._begin()
        return {"error": error}

    def end(self) -> None:
        """End the process."""
        self.pipe.send(None)
        self.process.join()
