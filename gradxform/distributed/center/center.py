"""The center itself: its parameters, its steps and counts, and its answers to requests.

This module does not know how requests arrive. Requests are carried out one after another. A refused
request does not change anything.
"""

import collections
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._names.version import __version__
from gradxform.distributed.center import layout, storage
from gradxform.distributed.center.methods import Method, check_method
from gradxform.distributed.center.refusal import (
    MALFORMED,
    NOT_FINITE,
    OPERATION,
    REPLAYED,
    VERSION,
    Refusal,
    Refusals,
)
from gradxform.errors import name_of, shown
from gradxform.leaves import dtype_of
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, Params, PyTree

# The number of workers with a last request that is remembered, to recognize a repeated one.
REMEMBERED = 4096
# The number of bytes of answers to such requests that are kept; the oldest are dropped first.
KEPT_BYTES = 2**32

Answer = tuple[dict[str, Any], list[np.ndarray]]


class Answered(NamedTuple):
    """The last request of a worker that was carried out, and its answer."""

    number: int
    applied: bool
    global_step: int
    params: list[Array] | None  # None if those of a later center will do, or once dropped


class Snapshot(NamedTuple):
    """The whole state of a center at one moment; never changed in place."""

    params: list[Array]  # at least float32
    state: Any
    global_step: int
    stale_counter: int
    answered: Mapping[str, Answered]  # by worker, the most recent last


class Stored(NamedTuple):
    """The arrays that a file stores of a center, by their paths."""

    params: PyTree
    state: Any
    global_step: int
    stale_counter: int
    answered: PyTree  # like params, each array with one row per answer that is kept


class Center:
    """The parameters that workers share, and the method by which they change.

    One object in one process; its methods may be called from any thread. Workers reach it through
    `answer`, each as a `Worker`:

        center = Center(params, drop_stale(gx.sgd(0.1), staleness=2))
        worker = Worker(center.answer, params)
        params, step = worker.join()
        params, step, applied = worker.push(grads, step)

    To reach it from other processes and machines, use `gradxform.distributed.ray.RayCenter`.

    Requests are carried out one after another, each one wholly or not at all. Workers number their
    requests. A request that arrives again is not carried out again: an exchange gets the same
    answer, and a push the center as it is now. So a worker that got no answer may repeat its
    request, also after `load`. A request is refused if it comes from another version of gradxform,
    is about another tree, has a NaN or an infinity, or would give the center one. Refusals are
    counted by reason, and logged under the name `gradxform.distributed.center`.

    16-bit parameters are kept in float32, because small steps would be lost otherwise, and rounded
    when they are sent.

    Args:
      params: the initial parameters, all floating.
      method: `elastic(...)`, `agn(...)` or `drop_stale(...)`.
      part: the name of the center in error messages. Keyword-only.

    Raises:
      TypeError: if `method` is another object, or a parameter is not floating.
      ValueError: if `params` does not have arrays, or one has a NaN or an infinity.

    Reference: Dean et al., Large Scale Distributed Deep Networks, 2012, for such a center; each
    method has its own.
    """

    def __init__(self, params: Params, method: Method, *, part: str = "Center") -> None:
        check_method(part, method)
        self.layout = layout.layout_of_params(part, params)
        leaves, self._treedef = jax.tree.flatten(params)
        wide = [jnp.array(p, at_least_float32(dtype_of(p))) for p in leaves]
        self.method, self._part = method, part
        state = jax.tree.map(jnp.asarray, method.init(self._tree(wide)))
        self._now = Snapshot(wide, state, 0, 0, {})
        self._most_kept = max(1, KEPT_BYTES // max(1, sum(p.nbytes for p in wide)))
        self._lock = threading.Lock()
        self._refusals, self._requests = Refusals(), collections.Counter[str]()

        def apply(params: list[Array], state: Any, sent: list[Array]) -> tuple[list[Array], Any]:
            center, state = method.apply(self._tree(params), state, self._tree(sent))
            return jax.tree.leaves(center), state

        self._apply = jax.jit(apply)

    def __repr__(self) -> str:
        return f"<{self._part} {self.method!r} at step {self.global_step}>"

    def _tree(self, leaves: Sequence[Any]) -> PyTree:
        return jax.tree.unflatten(self._treedef, leaves)

    @property
    def params(self) -> Params:
        """The current parameters, in the dtypes of the initial ones; they do not change later."""
        pairs = zip(self._now.params, self.layout.dtypes, strict=True)
        return self._tree([cast(p, jnp.dtype(dtype)) for p, dtype in pairs])

    @property
    def global_step(self) -> int:
        """The number of exchanges or gradients that were applied."""
        return self._now.global_step

    @property
    def stale_counter(self) -> int:
        """The number of gradients that were dropped as stale."""
        return self._now.stale_counter

    @property
    def refused(self) -> dict[str, int]:
        """The number of refused requests since the center was made, by reason."""
        return self._refusals.counts()

    def metrics(self) -> dict[str, int]:
        """Return the counts of the center, by name.

        `global_step` and `stale_counter` go on after `load`. The others count from when this object
        was made: `applied`, `dropped` (as stale), `repeated` (answered again, not carried out
        again), `refused`, and `pulled`.
        """
        now = self._now
        with self._lock:
            counts = {k: self._requests[k] for k in ("applied", "dropped", "repeated", "pulled")}
        counts["refused"] = sum(self.refused.values())
        return {"global_step": now.global_step, "stale_counter": now.stale_counter} | counts

    def prepare(self) -> None:
        """Compile the method, so that the first exchange does not wait for it."""
        zeros = [
            jnp.zeros(shape, jnp.dtype(dtype))
            for dtype, shape in zip(self.layout.dtypes, self.layout.shapes, strict=True)
        ]
        jax.block_until_ready(self._apply(self._now.params, self._now.state, zeros))

    # ------------------------------------------------------------------------------- requests

    def answer(self, header: dict[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
        """Carry out a request of a `Worker`, and return the answer.

        Args:
          header: what the worker asks for, as plain values.
          arrays: the leaves that it sends.

        Returns:
          The header of the answer, and the leaves of the center or none. The header of a refusal
          has the reason as `refused`, and a sentence as `why`.
        """
        try:
            return self._answer_or_refuse(header, arrays)
        except Refusal as refusal:
            self._refusals.count(refusal.reason, refusal.message)
            return {"refused": refusal.reason, "why": refusal.message[:2000]}, []

    def _answer_or_refuse(self, header: dict[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
        if not isinstance(header, dict):
            raise Refusal(MALFORMED, f"a request whose header is {shown(header)}")
        version, operation = header.get("version"), header.get("operation")
        if version != __version__:
            raise Refusal(
                VERSION,
                f"the worker has gradxform {version}, and the center {__version__}; install the "
                "same version on both",
            )
        if operation == "hello":
            layout.check_leaves(header.get("leaves"), self.layout)
            return {"global_step": self._now.global_step}, []
        if operation == "pull":
            now = self._now  # a snapshot never changes: requests only put another in its place
            with self._lock:
                self._requests["pulled"] += 1
            return self._answer(now.params, now.global_step, True)
        if operation != self.method.operation:
            raise Refusal(
                OPERATION,
                f"the center runs {name_of(self.method)}, whose workers call "
                f"{self.method.operation}, not {shown(operation)}",
            )
        # Checked before the lock is taken, so that other workers need not wait for it.
        layout.check_arrays(arrays, self.layout)
        worker, number, local_step = self._read_header(header)
        path = layout.not_finite(self.layout, arrays)
        if path is not None:
            raise Refusal(NOT_FINITE, f"{path} of what was sent has a NaN or an infinity")
        with self._lock:
            return self._carry_out(worker, number, local_step, header.get("applied"), arrays)

    def _read_header(self, header: dict[str, Any]) -> tuple[str, int, int | None]:
        """Return the worker, the number of the request, and its `local_step`."""
        worker, number, step = (header.get(k) for k in ("worker", "number", "local_step"))
        # A `Worker` calls itself by 16 random bytes, in hexadecimal.
        if not isinstance(worker, str) or len(worker) != 32 or not _is_count(number):
            raise Refusal(MALFORMED, "a request without a worker or a number; use Worker")
        needs_step = self.method.counts_staleness
        if not (_is_count(step) if needs_step else step is None):
            rule = "needs" if needs_step else "takes no"
            raise Refusal(OPERATION, f"{name_of(self.method)} {rule} local_step, got {step!r}")
        return worker, number, step

    def _carry_out(
        self,
        worker: str,
        number: int,
        local_step: int | None,
        decided: bool | None,
        arrays: Sequence[np.ndarray],
    ) -> Answer:
        """Carry out a request that changes the center, unless it was carried out already.

        `decided` is whether the gradient counts, if the center of other leaves has decided it.
        """
        before = self._now
        last = before.answered.get(worker)
        if last is not None and number <= last.number:
            answer = self._answer_again(number, last)
            self._requests["repeated"] += 1
            return answer
        applied = self.method.accepts(before.global_step, local_step)
        if decided is not None:
            applied = bool(decided)
        if applied:
            leaves = [jnp.array(x) for x in arrays]
            params, state = self._apply(before.params, before.state, leaves)
            path = layout.not_finite(self.layout, params)
            if path is not None:
                raise Refusal(NOT_FINITE, f"{path} of the center would get a NaN or an infinity")
            after = before._replace(params=params, state=state, global_step=before.global_step + 1)
        else:
            after = before._replace(stale_counter=before.stale_counter + 1)
        # If the answer gets lost, the worker asks again, and must get the same center.
        to_keep = before.params if self.method.answers_before else None
        last = Answered(number, applied, after.global_step, to_keep)
        self._now = after._replace(answered=self._remember(before.answered, worker, last))
        self._requests["applied" if applied else "dropped"] += 1
        return self._answer(to_keep or after.params, after.global_step, applied)

    def _answer_again(self, number: int, last: Answered) -> Answer:
        """Answer a request that was carried out already, because its answer may have been lost."""
        if number < last.number:
            raise Refusal(REPLAYED, f"request {number} of a worker that has sent {last.number}")
        if not self.method.answers_before:
            return self._answer(self._now.params, self._now.global_step, last.applied)
        if last.params is None:
            raise Refusal(REPLAYED, f"request {number} again, but its answer is no longer kept")
        return self._answer(last.params, last.global_step, last.applied)

    def _remember(
        self, answered: Mapping[str, Answered], worker: str, answer: Answered
    ) -> dict[str, Answered]:
        """Return the answers with a new one, and without the oldest beyond the limits."""
        answers = {k: v for k, v in answered.items() if k != worker} | {worker: answer}
        if len(answers) > REMEMBERED:
            del answers[next(iter(answers))]
        oldest = next(itertools.islice(reversed(answers), self._most_kept, None), None)
        if oldest is not None:
            answers[oldest] = answers[oldest]._replace(params=None)
        return answers

    def _answer(self, params: list[Array], global_step: int, applied: bool) -> Answer:
        header = {
            "global_step": global_step,
            "applied": applied,
            "worker_rate": self.method.worker_rate(),
        }
        pairs = zip(params, self.layout.dtypes, strict=True)
        return header, [np.asarray(cast(p, jnp.dtype(dtype))) for p, dtype in pairs]

    # -------------------------------------------------------------------------------- storage

    def save(self, path: Any) -> None:
        """Write a snapshot of the center to an `.npz` file, also between requests of workers.

        The file has the parameters, the optimizer state and the counts by their paths, and the last
        answer to each worker, so that a restarted center recognizes a repeated request. For
        `elastic`, an answer is a copy of the parameters.

        Args:
          path: the path of the file, which is replaced atomically or stays as it was.
        """
        now = self._now
        answered = [[k, *a[:3], a.params is not None] for k, a in now.answered.items()]
        storage.save(path, self._stored(now), method=name_of(self.method), answered=answered)

    def load(self, path: Any) -> "Center":
        """Restore the center from a file, saved with the same parameters and kind of method.

        Args:
          path: the path of the file.

        Returns:
          The center itself, which then continues bit for bit as the saved one would have.

        Raises:
          OSError: if the file cannot be opened.
          ValueError: if `save` did not write it whole, if it was saved with another kind of method,
            or if a leaf is missing, has another shape or dtype, or has a NaN; the message has the
            path of the leaf. The center is then unchanged.
        """
        with self._lock:
            about, stored = storage.load(self._part, path, self._stored_like)
            params = jax.tree.leaves(stored.params)
            leaf = layout.not_finite(self.layout, params)
            if leaf is not None:
                raise ValueError(f"{self._part}: {path} has an infinity in {leaf}.")
            counts = {"global_step": stored.global_step, "stale_counter": stored.stale_counter}
            for name, count in counts.items():
                if count < 0:
                    raise ValueError(f"{self._part}: {path} has a {name} of {count}.")
            rows = iter(zip(*jax.tree.leaves(stored.answered), strict=True))
            answered = {
                worker: Answered(number, applied, step, list(next(rows)) if has_params else None)
                for worker, number, applied, step, has_params in about["answered"]
            }
            self._now = Snapshot(
                params, stored.state, stored.global_step, stored.stale_counter, answered
            )
        return self

    def _stored(self, now: Snapshot) -> Stored:
        """Return the arrays that a file stores of a center."""
        answers = [a.params for a in now.answered.values() if a.params is not None]
        rows = [
            np.asarray([np.asarray(params[i]) for params in answers], p.dtype).reshape(
                len(answers), *p.shape
            )
            for i, p in enumerate(now.params)
        ]
        return Stored(
            self._tree(now.params),
            now.state,
            now.global_step,
            now.stale_counter,
            self._tree(rows),
        )

    def _stored_like(self, path: Any, about: dict[str, Any]) -> Stored:
        """Return a tree with the shapes and dtypes of the tree in a file with this metadata."""
        if about["method"] != name_of(self.method):
            raise ValueError(
                f"{self._part}: {path} is of a center with {about['method']}, but this one "
                f"has {name_of(self.method)}."
            )
        n = sum(row[-1] for row in about["answered"])
        rows = [np.broadcast_to(np.asarray(p), (n, *p.shape)) for p in self._now.params]
        stored = self._stored(self._now._replace(answered={}))
        return stored._replace(answered=self._tree(rows))


def _is_count(x: Any) -> TypeGuard[int]:
    """Whether `x` is an integer in [0, 2^63)."""
    return type(x) is int and 0 <= x < 2**63
