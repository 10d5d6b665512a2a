"""The centre itself: its parameters, its steps and counts, and what it answers to a request.

Nothing here knows of a network. Requests are carried out one after another; what was refused has
changed nothing.
"""

import collections
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import trees
from gradxform.distributed.host import messages, storage
from gradxform.distributed.host.methods import Method
from gradxform.distributed.host.refusing import CORRUPT, NOT_FINITE, OPERATION, REPLAYED, Refusal
from gradxform.errors import name_of, shown
from gradxform.numerics import at_least_float32, cast
from gradxform.types import PyTree

# How many workers' last requests are remembered, to know one that is sent again.
REMEMBERED = 4096

Answer = tuple[dict[str, Any], list[np.ndarray]]


class Snapshot(NamedTuple):
    """All that a centre is, at one moment; never changed in place."""

    params: list[jax.Array]  # at least float32
    state: Any
    global_step: int
    stale_counter: int


class Center:
    """What workers exchange with, whatever the way they reach it.

    16-bit parameters are kept in float32 here, because small steps would be lost otherwise, and
    rounded where they are handed out.

    Args:
      part: who messages speak of.
      params: the parameters to begin with.
      method: what to do with what workers send.
    """

    def __init__(self, part: Any, params: PyTree, method: Method):
        if not isinstance(method, Method):
            raise TypeError(
                f"{name_of(part)}: method must be elastic(...), agn(...) or drop_stale(...), got "
                f"{shown(method)}."
            )
        trees.check_params(part, params)
        self.layout = messages.layout_of(part, params)
        if not self.layout.paths:
            raise ValueError(f"{name_of(part)}: params has no arrays.")
        leaves, self.treedef = jax.tree.flatten(params)
        wide = [jnp.array(p, at_least_float32(trees.dtype_of(p))) for p in leaves]
        bad = messages.not_finite(self.layout, wide)
        if bad is not None:
            raise ValueError(f"{name_of(part)}: parameter {bad} has a NaN or an infinity.")
        self.part, self.method = part, method
        state = jax.tree.map(jnp.asarray, method.init(self._tree(wide)))
        self.now = Snapshot(wide, state, 0, 0)
        self._lock = threading.Lock()
        self._last: collections.OrderedDict[str, tuple[int, bool]] = collections.OrderedDict()

        def apply(params, state, sent):
            center, state = method.apply(self._tree(params), state, self._tree(sent))
            return jax.tree.leaves(center), state

        self._apply = jax.jit(apply)

    def _tree(self, leaves: Sequence[Any]) -> PyTree:
        return jax.tree.unflatten(self.treedef, leaves)

    def params(self) -> PyTree:
        """Return the centre's parameters, in the dtypes in which they were given."""
        pairs = zip(self.now.params, self.layout.dtypes, strict=True)
        return self._tree([cast(p, jnp.dtype(dtype)) for p, dtype in pairs])

    def prepare(self) -> None:
        """Compile what an exchange runs, so that the first one need not wait for it."""
        sent = [
            jnp.zeros(shape, jnp.dtype(dtype))
            for dtype, shape in zip(self.layout.dtypes, self.layout.shapes, strict=True)
        ]
        jax.block_until_ready(self._apply(self.now.params, self.now.state, sent))

    # ------------------------------------------------------------------------------- requests

    def answer(self, header: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        """Carry out a request and return the answer.

        Raises:
          Refusal: if it is none that can be carried out; then nothing has changed.
        """
        operation = header.get("operation")
        if operation == "hello":
            messages.check_leaves(header.get("tree"), self.layout)
            return {"global_step": self.now.global_step}, []
        if operation == "pull":
            return self._told(self.now, self.now, True)
        if operation != self.method.operation:
            raise Refusal(
                OPERATION,
                f"the centre runs {name_of(self.method)}, whose workers call "
                f"{self.method.operation}, not {shown(operation)}",
            )
        if not arrays:
            raise Refusal(CORRUPT, f"a request to {operation} without arrays")
        worker, number, local_step = self._checked(header)
        bad = messages.not_finite(self.layout, arrays)
        if bad is not None:
            raise Refusal(NOT_FINITE, f"{bad} of what was sent has a NaN or an infinity")
        with self._lock:
            return self._received(worker, number, local_step, arrays)

    def _checked(self, header: dict[str, Any]) -> tuple[str, int, int | None]:
        worker, number, step = (header.get(k) for k in ("worker", "number", "local_step"))
        if not isinstance(worker, str) or len(worker) != 32 or not _whole(number):
            raise Refusal(CORRUPT, "a request that does not say whose it is")
        counts = self.method.counts_staleness
        if not (_whole(step) if counts else step is None):
            wanted = "needs" if counts else "takes no"
            raise Refusal(OPERATION, f"{name_of(self.method)} {wanted} local_step, got {step!r}")
        return worker, number, step

    def _received(
        self, worker: str, number: int, local_step: int | None, arrays: list[np.ndarray]
    ) -> Answer:
        last, applied = self._last.get(worker, (-1, False))
        if number < last:
            raise Refusal(REPLAYED, f"request {number} of a worker that has sent {last} since")
        if number == last:  # its answer was lost on the way; what it asked for has been done
            return self._told(self.now, self.now, applied)
        before = self.now
        applied = self.method.accepts(before.global_step, local_step)
        if applied:
            sent = [jnp.array(x) for x in arrays]
            params, state = self._apply(before.params, before.state, sent)
            bad = messages.not_finite(self.layout, params)
            if bad is not None:
                raise Refusal(NOT_FINITE, f"{bad} of the centre would get a NaN or an infinity")
            after = before._replace(params=params, state=state, global_step=before.global_step + 1)
        else:
            after = before._replace(stale_counter=before.stale_counter + 1)
        self.now = after
        self._last[worker] = number, applied
        self._last.move_to_end(worker)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return self._told(before if self.method.answers_before else after, after, applied)

    def _told(self, which: Snapshot, now: Snapshot, applied: bool) -> Answer:
        header = {
            "global_step": now.global_step,
            "applied": applied,
            "worker_rate": self.method.worker_rate(),
        }
        pairs = zip(which.params, self.layout.dtypes, strict=True)
        return header, [np.asarray(cast(p, jnp.dtype(dtype))) for p, dtype in pairs]

    # -------------------------------------------------------------------------------- storage

    def save(self, path: Any) -> None:
        """Write the centre to a file, as it is at one moment."""
        storage.save(path, self.now._asdict(), method=repr(self.method))

    def load(self, path: Any) -> None:
        """Become what was saved.

        Raises:
          ValueError: if it was a centre of other parameters, or of another kind of method.
        """
        with self._lock:
            found = storage.load(self.part, path, self.now._asdict())
            self.now = Snapshot(**found)


def _whole(x: Any) -> TypeGuard[int]:
    return type(x) is int and 0 <= x < 2**63
