"""A worker's side of the exchange with a center."""

import operator
import secrets
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._names.version import __version__
from gradxform.distributed.center.layout import flatten, layout_of
from gradxform.distributed.center.methods import interpolate
from gradxform.distributed.center.refusal import RefusedError
from gradxform.errors import must_be, shown
from gradxform.types import Params, PyTree, Updates

# Takes the header and the leaves of a request, and returns those of the answer: `Center.answer`.
Send = Callable[[dict[str, Any], list[np.ndarray]], tuple[dict[str, Any], list[np.ndarray]]]


class Pulled(NamedTuple):
    """The center's answer to a worker."""

    params: Params  # to continue from
    global_step: int  # of the center


class Pushed(NamedTuple):
    """The center's answer to a gradient."""

    params: Params  # the center's, to continue from
    global_step: int  # of the center
    applied: bool  # whether the gradient was applied; otherwise it was dropped as stale


class Worker:
    """A worker's side: it exchanges with a center whenever it likes.

    A complete worker for elastic averaging:

        worker = Worker(center.answer, params)
        params = worker.join().params
        state = tx.init(params)
        for t, batch in enumerate(batches, 1):
            grads = grad(loss)(params, batch)
            grads = elastic_gradient(grads, params, worker.local_center, rho)  # optional
            updates, state = tx.update(grads, state, params)
            params = apply_updates(params, updates)
            if t % period == 0:
                params, _ = worker.exchange(params)

    Each request has a name of its own: the worker's, which is random, and a number. `send` may
    therefore pass a request on as often as it takes to get an answer; the center carries it out
    once. A restarted worker is a new one, which calls `join` and continues. Threads that share a
    worker take turns.

    Args:
      send: takes a request to the center and returns the answer: `center.answer`, or a function
        that calls it elsewhere.
      like: a tree with the structure, shapes and dtypes of the parameters; the numbers do not
        matter.
      part: the name of the worker in error messages. Keyword-only.

    Raises:
      TypeError: if `send` cannot be called.
    """

    def __init__(self, send: Send, like: PyTree, *, part: str = "Worker") -> None:
        if not callable(send):
            raise TypeError(must_be(part, "send", "a function, such as center.answer", send))
        self._part, self._send = part, send
        self._layout, self._treedef = layout_of(part, like), jax.tree.structure(like)
        self._name, self._number, self._introduced = secrets.token_hex(16), 0, False
        self._lock = threading.Lock()
        self._interpolate = jax.jit(interpolate)
        self.local_center: PyTree = None  # as last fetched by join or exchange

    def __repr__(self) -> str:
        return f"<{self._part} {self._name[:8]} after {self._number} requests>"

    # ------------------------------------------------------------------------------- requests

    def join(self) -> Pulled:
        """Return the center's parameters to start from, initially and after a restart.

        Raises:
          RefusedError: if the center has another tree or another version of gradxform, or its
            method does not have this call.
          CenterUnavailableError: if the center is elsewhere, and does not answer in time.
        """
        pulled = self.pull()
        self.local_center = pulled.params
        return pulled

    def pull(self) -> Pulled:
        """Return the center's parameters without changing anything; raises as `join` does."""
        header, params = self._call({"operation": "pull"}, [])
        return Pulled(params, header["global_step"])

    def exchange(self, params: Params) -> Pulled:
        """Let worker and center pull each other (`elastic`), and return the worker's parameters.

        Sets `local_center` to the center from before the exchange. Raises as `join` does.

        Args:
          params: the worker's parameters, all finite.
        """
        arrays = flatten(self._part, params, self._layout)
        header, center = self._call({"operation": "exchange"}, arrays)
        self.local_center = center
        pulled = self._interpolate(params, center, header["worker_rate"])
        return Pulled(pulled, header["global_step"])

    def push(self, grads: Updates, local_step: int | None = None) -> Pushed:
        """Send the center a gradient (`agn`, `drop_stale`), and return its parameters.

        Raises as `join` does.

        Args:
          grads: for `agn` the mean gradient of a period, for `drop_stale` the gradient of one step;
            all finite, with the shapes and dtypes of the parameters.
          local_step: for `drop_stale`, the `global_step` of the parameters at which the gradient
            was computed.
        """
        arrays = flatten(self._part, grads, self._layout)
        request: dict[str, Any] = {"operation": "push"}
        if local_step is not None:
            request["local_step"] = _step_as_int(self._part, local_step)
        header, center = self._call(request, arrays)
        return Pushed(center, header["global_step"], header["applied"])

    def _call(self, header: dict[str, Any], arrays: list[np.ndarray]) -> tuple[Any, PyTree]:
        """Return the header and the tree of the answer to a request."""
        with self._lock:
            if not self._introduced:
                self._ask({"operation": "hello", "leaves": self._layout.described()}, [])
                self._introduced = True
            self._number += 1
            answer, leaves = self._ask(header | {"number": self._number}, arrays)
        return answer, jax.tree.unflatten(self._treedef, [jnp.array(x) for x in leaves])

    def _ask(self, header: dict[str, Any], arrays: list[np.ndarray]) -> tuple[Any, list[Any]]:
        """Return the answer to a request; raise what the center refuses."""
        header = header | {"worker": self._name, "version": __version__}
        answer, result = self._send(header, arrays)
        if "refused" in answer:
            raise RefusedError(f"{self._part}: refused by the center: {answer['why']}.")
        return answer, result


def _step_as_int(part: str, step: Any) -> int:
    """Return a step as a Python integer."""
    try:
        number = operator.index(step)
    except TypeError:
        number = None
    if number is None or isinstance(step, bool):
        raise TypeError(f"{part}: local_step must be an integer, got {shown(step)}.")
    return number
