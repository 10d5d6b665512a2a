"""The actor of Ray that holds a center of some of the leaves."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._names.version import __version__
from gradxform.distributed.center.center import Answer, Center
from gradxform.distributed.center.methods import Method
from gradxform.distributed.ray.calls import last_line
from gradxform.errors import name_of
from gradxform.types import PyTree

# What an actor gives back of a call: a result, or else the text of an error on one line.
Outcome = tuple[Any, str | None]
COUNTED = ("applied", "dropped", "repeated", "refused", "pulled")


class Settings(NamedTuple):
    """All that an actor needs to start, and to start again."""

    name: str  # of the center
    like: PyTree  # the shapes and dtypes of all leaves
    leaves: list[int]  # those of this actor
    index: int  # of this actor
    shards: int  # the number of actors
    method: Method
    checkpoint: str | None  # the path of the center; None if it does not save
    save_every: int  # requests
    on_cpu: bool

    @property
    def path(self) -> str | None:
        """The file that this actor saves."""
        return self.checkpoint and shard_path(self.checkpoint, self.index, self.shards)


class Shard:
    """A `Center` of some of the leaves, as an actor: it saves itself, and starts from its save."""

    def __init__(self, settings: Settings) -> None:
        if settings.on_cpu:
            jax.config.update("jax_platforms", "cpu")
        self._settings = settings
        self._center: Center | None = None
        self._problem: str | None = None
        self._saved_at, self._finished = 0, False
        self._meters: Meters | None = None
        if _is_restarted():
            leaves = jax.tree.leaves(settings.like)
            zeros = [np.zeros(leaves[i].shape, leaves[i].dtype) for i in settings.leaves]
            _, self._problem = self._try(lambda: self._open(zeros, resume=True, restarted=True))

    def start(self, arrays: Sequence[np.ndarray], resume: bool) -> Outcome:
        """Make the center; a repeated call does nothing.

        Args:
          arrays: the parameters to start from, unless it resumes from a file.
          resume: whether it does, if there is a file.
        """
        if self._center is not None or self._problem is not None:
            return None, self._problem
        return self._try(lambda: self._open(arrays, resume=resume, restarted=False))

    def _open(self, arrays: Sequence[Any], resume: bool, restarted: bool) -> None:
        settings = self._settings
        # The tree is that of all shards, with holes in place of the leaves of others.
        holes: list[Any] = [None] * len(jax.tree.leaves(settings.like))
        for i, array in zip(settings.leaves, arrays, strict=True):
            holes[i] = jnp.asarray(array)
        params = jax.tree.unflatten(jax.tree.structure(settings.like), holes)
        center = Center(params, settings.method, part="RayCenter")
        path = settings.path
        if path is not None:
            exists = os.path.exists(path)
            other = None if exists else other_file(path, settings.index, settings.shards)
            if (exists or other) and not resume:
                raise FileExistsError(
                    f"{other or path} is of an earlier run; continue from it with resume=True, or "
                    "choose another checkpoint="
                )
            if other:
                raise FileNotFoundError(
                    f"{path} does not exist, but {other} of another number of shards does; resume "
                    "with that number"
                )
            if restarted and not exists:
                raise FileNotFoundError(f"{path} is not there to restart from")
            if exists:
                center.load(path)
            else:
                center.save(path)
        center.prepare()
        self._saved_at = center.global_step + center.stale_counter
        self._meters = Meters(settings, center)
        self._center = center

    def about(self) -> dict[str, Any]:
        """Return what every version of a worker can read."""
        settings = self._settings
        return {
            "version": __version__,
            "shards": settings.shards,
            "method": name_of(settings.method),
            "decides": settings.method.counts_staleness,
            "checkpoint": settings.checkpoint,
            "started": self._center is not None,
            "problem": self._problem,
        }

    def like(self) -> PyTree:
        """Return the shapes and dtypes of all leaves."""
        return self._settings.like

    def answer(self, header: dict[str, Any], arrays: list[np.ndarray]) -> tuple[Answer, str | None]:
        """Carry out a request of a worker; save if it is time, before the worker knows."""
        center = self._center
        if center is None or self._meters is None:
            return ({}, []), self._problem or "it was not started; make it again"
        answer = center.answer(header, arrays)
        changes = center.global_step + center.stale_counter
        problem = None
        if self._settings.path is not None:
            if changes - self._saved_at >= self._settings.save_every:
                _, problem = self.save(self._settings.path)
        self._meters.update()
        return answer, problem

    def save(self, path: str) -> Outcome:
        """Write the center to a file."""
        center = self._center
        if center is None:
            return None, self._problem or "it was not started; make it again"

        def write() -> None:
            center.save(path)
            if path == self._settings.path:
                self._saved_at = center.global_step + center.stale_counter

        return self._try(write)

    def finish(self) -> Outcome:
        """Save, and take no request from then on, so that none is answered and then lost."""
        if self._finished or self._settings.path is None:
            return None, None
        _, problem = self.save(self._settings.path)
        if problem is None:
            self._center, self._finished, self._problem = None, True, "it was stopped"
        return None, problem

    def metrics(self) -> tuple[dict[str, Any], str | None]:
        """Return the counts, and the refusals by reason."""
        if self._center is None:
            return {}, self._problem or "it was not started; make it again"
        return self._center.metrics() | {"reasons": self._center.refused}, None

    def pid(self) -> int:
        """Return the number of the actor's process."""
        return os.getpid()

    def _try(self, work: Callable[[], Any]) -> Outcome:
        try:
            return work(), None
        except (OSError, ValueError, TypeError) as error:
            text = last_line(error).removeprefix("RayCenter: ")
            if isinstance(error, OSError) and error.filename is not None:
                text = f"{error.strerror}: {error.filename}"
            return None, text


def _is_restarted() -> bool:
    """Whether Ray has started this actor again."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Ray itself uses here
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class Meters:
    """The counts of a center as metrics of Ray, beside those of all other actors."""

    def __init__(self, settings: Settings, center: Center) -> None:
        from ray.util import metrics

        tags = {"center": settings.name, "shard": str(settings.index)}
        names = tuple(tags)
        self._requests = metrics.Counter(
            "gradxform_center_requests",
            "Requests of workers, by what came of them.",
            (*names, "outcome"),
        )
        self._step = metrics.Gauge(
            "gradxform_center_global_step", "Exchanges or gradients that were applied.", names
        )
        self._requests.set_default_tags(tags)
        self._step.set_default_tags(tags)
        self._center, self._told = center, dict.fromkeys(COUNTED, 0)
        self.update()

    def update(self) -> None:
        """Tell Ray what has changed since."""
        counts = self._center.metrics()
        for outcome in COUNTED:
            more = counts[outcome] - self._told[outcome]
            if more:
                self._requests.inc(more, {"outcome": outcome})
                self._told[outcome] = counts[outcome]
        self._step.set(counts["global_step"])


def shard_path(path: str, index: int, shards: int) -> str:
    """Return the file of one shard: the path itself if it is the only one."""
    root, ending = os.path.splitext(path)
    return path if shards == 1 else f"{root}.{index}-of-{shards}{ending}"


def other_file(path: str, index: int, shards: int) -> str | None:
    """Return a file that the same center saved with another number of shards; None if none."""
    root, ending = os.path.splitext(path)
    root = root.removesuffix(f".{index}-of-{shards}") if shards > 1 else root
    whole = root + ending
    if shards > 1 and os.path.exists(whole):
        return whole
    folder, stem = os.path.split(os.path.abspath(root))
    if not os.path.isdir(folder):
        return None
    for name in sorted(os.listdir(folder)):
        middle = name.removeprefix(f"{stem}.0-of-").removesuffix(ending)
        if name == f"{stem}.0-of-{middle}{ending}" and middle.isdigit() and int(middle) != shards:
            return os.path.join(folder, name)
    return None
