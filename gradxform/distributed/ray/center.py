"""A center on a cluster of Ray."""

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._names.version import __version__
from gradxform.distributed.center.center import Answer
from gradxform.distributed.center.layout import (
    check_arrays,
    check_leaves,
    divide_leaves,
    layout_of,
    layout_of_params,
    not_finite,
)
from gradxform.distributed.center.methods import Method, check_method
from gradxform.distributed.center.refusal import (
    NOT_FINITE,
    CenterUnavailableError,
    Refusal,
    RefusedError,
)
from gradxform.distributed.center.worker import Send
from gradxform.distributed.ray.calls import (
    ask_actors,
    check_timeout,
    join_cluster,
    ray_library,
    within,
)
from gradxform.distributed.ray.names import (
    LOOK_AGAIN,
    NAMESPACE,
    actor_name,
    check_name,
    find_actor,
)
from gradxform.distributed.ray.shard import Settings, Shard, shard_path
from gradxform.distributed.shares.reach import check_leafwise
from gradxform.errors import shown
from gradxform.leaves import dtype_of
from gradxform.types import Params, PyTree

PART = "RayCenter"
OWN_OPTIONS = {"name", "namespace", "lifetime", "max_restarts", "max_task_retries"}


class RayCenter:
    """A `Center` in actors of Ray, which workers anywhere on the cluster find by its name.

        ray.init()
        with RayCenter(params, elastic(0.1), name="digits", checkpoint="digits.npz") as center:
            ray.get([train.remote(center) for _ in range(4)])
            print(center.global_step, center.params)

    With `checkpoint`, Ray restarts a killed actor, which goes on from its last save. Requests after
    that save are lost; with `save_every=1` none is, because a center saves before it answers. A
    worker waits meanwhile, and sends its request again.

    With `shards=K`, K actors hold about as many bytes of whole leaves each. Each of them is a
    `Center` of its own: requests of different workers may reach them in different orders, a result
    that is not finite is refused by the actors where it would arise, and a worker that dies within
    a request may leave a part of it undone. For `drop_stale` the first actor decides for all.

    A RayCenter may be passed to tasks and actors. It ends with the driver that made it, unless it
    is `detached`, and with `stop()` or the end of a `with` block.

    Args:
      params: the initial parameters, all floating.
      method: `elastic(...)`, `agn(...)` or `drop_stale(...)`, of `gradxform.distributed.center`.
      name: what workers find it by. Defaults to a random one.
      checkpoint: the path of an `.npz` file that the center writes on the machine where it runs; if
        that may change, on a disk that all machines share. With several shards, each has a file.
        Keyword-only.
      save_every: the number of requests between two saves. Keyword-only.
      resume: whether to go on from the file of `checkpoint`, if it exists. Keyword-only.
      shards: the number of actors. The method's optimizer must not look at several arrays at once.
        Keyword-only.
      timeout: the limit of time of a call, in seconds. Keyword-only.
      detached: whether the center stays when the driver ends. Keyword-only.
      options: options of Ray for its actors, such as `{"num_cpus": 1}`. An actor computes on the
        CPU, unless they reserve `num_gpus` or `resources`. Keyword-only.

    Raises:
      ImportError: if Ray is not installed.
      TypeError: if an argument has the wrong type.
      ValueError: if an argument is out of range, if the name is taken, if the optimizer cannot run
        in shards, or if the file of `checkpoint` is of an earlier run or another center.
      CenterUnavailableError: if this process is not connected to Ray, or the center does not start.
    """

    def __init__(
        self,
        params: Params,
        method: Method,
        name: str | None = None,
        *,
        checkpoint: str | None = None,
        save_every: int = 100,
        resume: bool = False,
        shards: int = 1,
        timeout: float = 60.0,
        detached: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        timeout = check_timeout(PART, timeout)
        check_method(PART, method)
        layout = layout_of_params(PART, params)
        name = check_name(PART, f"center-{secrets.token_hex(4)}" if name is None else name)
        for what, count in (("save_every", save_every), ("shards", shards)):
            if type(count) is not int or count < 1:
                raise ValueError(f"{PART}: {what} must be at least 1, got {shown(count)}.")
        if shards > len(layout.paths):
            raise ValueError(
                f"{PART}: shards must be at most the number of arrays in params, "
                f"{len(layout.paths)}, got {shards}."
            )
        if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
            raise TypeError(f"{PART}: checkpoint must be a path, got {shown(checkpoint)}.")
        if resume and checkpoint is None:
            raise ValueError(f"{PART}: resume needs the checkpoint= to go on from.")
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"{PART}: options must be a dict, got {shown(options)}.")
        clashes = sorted(OWN_OPTIONS & set(options or ()))
        if clashes:
            raise ValueError(f"{PART}: options has {clashes[0]!r}, which the center sets itself.")
        checkpoint = checkpoint and os.path.abspath(checkpoint)  # actors have folders of their own
        optimizer = getattr(method, "optimizer", None)
        if shards > 1 and optimizer is not None:
            check_leafwise(PART, optimizer, params)
        ray = join_cluster(PART, None, timeout)
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), dtype_of(p)), params)
        self._set(name, like, shards, method.counts_staleness, timeout)
        actor_options = dict(options or {})
        on_cpu = not actor_options.get("num_gpus") and not actor_options.get("resources")
        # Without a file to go on from, an actor that starts again would have lost the center. A
        # request that Ray sends again does no harm: the center carries out each number once.
        actor_options |= {"max_restarts": -1 if checkpoint else 0, "max_task_retries": -1}
        actor_options |= {"namespace": NAMESPACE, "lifetime": "detached" if detached else None}
        arrays = [np.asarray(p, dtype_of(p)) for p in jax.tree.leaves(params)]
        try:
            for k, leaves in enumerate(self._division):
                settings = Settings(
                    name, like, leaves, k, shards, method, checkpoint, save_every, on_cpu
                )
                actor = ray.remote(Shard).options(name=actor_name(name, k), **actor_options)
                start = functools.partial(actor.remote, settings)
                self._actors.append(within(PART, timeout, "start an actor", start))
            self._checkpoint = checkpoint
            parts = [[arrays[i] for i in leaves] for leaves in self._division]
            self._ask("start", [(part, resume) for part in parts], ValueError)
        except ray.exceptions.ActorAlreadyExistsError as error:
            self._end()
            raise ValueError(
                f"{PART}: a center named {name!r} runs already on this cluster; choose another "
                f"name=, or work for it with RayCenter.connect({name!r})."
            ) from error
        except BaseException:
            self._end()
            raise

    def _set(self, name: str, like: PyTree, shards: int, decides: bool, timeout: float) -> None:
        self.name, self.like, self._timeout = name, like, timeout
        self._layout, self._treedef = layout_of(PART, like), jax.tree.structure(like)
        self._division = divide_leaves(self._layout, shards)
        self._decides = decides  # the first actor, whether a gradient counts
        self._checkpoint: str | None = None
        self._actors: list[Any] = []

    @classmethod
    def connect(
        cls, name: str, address: str | None = None, *, timeout: float = 60.0
    ) -> "RayCenter":
        """Return a center that runs on the cluster, also one that starts within `timeout`.

        Args:
          name: the name of the center.
          address: the address of the cluster, "host:port" of its head, if this process is not
            connected to Ray. The cluster's token is Ray's own matter: RAY_AUTH_MODE=token, and
            RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
          timeout: the limit of time of a call, in seconds. Keyword-only.

        Raises:
          ImportError: if Ray is not installed.
          CenterUnavailableError: without such a cluster, or such a center in time.
          RefusedError: if the center has another version of gradxform.
        """
        timeout = check_timeout(PART, timeout)
        name = check_name(PART, name)
        join_cluster(PART, address, timeout)
        deadline = time.monotonic() + timeout
        first = find_actor(PART, name, 0, deadline)
        while True:
            [about] = ask_actors(PART, name, [first.about.remote], deadline - time.monotonic())
            if about["version"] != __version__:
                raise RefusedError(
                    f"{PART}: center {name!r} has gradxform {about['version']}, and this process "
                    f"{__version__}; install the same version on both."
                )
            if about["problem"] is not None:
                raise CenterUnavailableError(f"{PART}: center {name!r}: {about['problem']}.")
            if about["started"]:
                break
            if time.monotonic() + LOOK_AGAIN >= deadline:
                raise CenterUnavailableError(
                    f"{PART}: center {name!r} did not start within {timeout:.3g} s; see its driver."
                )
            time.sleep(LOOK_AGAIN)
        [like] = ask_actors(PART, name, [first.like.remote], timeout)
        center = cls.__new__(cls)
        center._set(name, like, about["shards"], about["decides"], timeout)
        more = [find_actor(PART, name, k, deadline) for k in range(1, about["shards"])]
        center._actors, center._checkpoint = [first, *more], about["checkpoint"]
        return center

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_treedef"}  # not every one can be sent

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _treedef=jax.tree.structure(state["like"]))

    def __repr__(self) -> str:
        return f"<RayCenter {self.name!r} in {len(self._actors)} actors>"

    # ------------------------------------------------------------------------------ properties

    @property
    def params(self) -> Params:
        """The current parameters."""
        header = {"operation": "pull", "version": __version__}
        answer, arrays = self.sender(PART, self._timeout)(header, [])
        if "refused" in answer:
            raise RefusedError(f"{PART}: refused by the center: {answer['why']}.")
        return jax.tree.unflatten(self._treedef, [jnp.array(x) for x in arrays])

    @property
    def global_step(self) -> int:
        """The number of exchanges or gradients that were applied (by the first actor)."""
        return self.metrics()["global_step"]

    @property
    def stale_counter(self) -> int:
        """The number of gradients that were dropped as stale."""
        return self.metrics()["stale_counter"]

    @property
    def refused(self) -> dict[str, int]:
        """The number of refused requests by reason, since each actor started."""
        total: dict[str, int] = {}
        for counts in self._ask("metrics", [()] * len(self._actors)):
            for reason, n in counts["reasons"].items():
                total[reason] = max(total.get(reason, 0), n)
        return total

    def metrics(self) -> dict[str, int]:
        """Return the counts of the first actor by name, as `Center.metrics` does.

        With several shards, also `shard<k>/global_step`. The same counts are metrics of Ray:
        `gradxform_center_requests`, by outcome, and `gradxform_center_global_step`.
        """
        of_actors = self._ask("metrics", [()] * len(self._actors))
        counts = {k: v for k, v in of_actors[0].items() if k != "reasons"}
        if len(of_actors) > 1:
            counts |= {
                f"shard{k}/global_step": one["global_step"] for k, one in enumerate(of_actors)
            }
        return counts

    def pids(self) -> list[int]:
        """Return the numbers of the actors' processes, on their machines."""
        calls = [actor.pid.remote for actor in self._actors]
        return ask_actors(PART, self.name, calls, self._timeout)

    # ----------------------------------------------------------------------------------- calls

    def save(self, path: str | None = None) -> None:
        """Write the center to a file on its machine, or a file for each shard.

        Args:
          path: the path of the file. Defaults to `checkpoint`.
        """
        path = self._checkpoint if path is None else path
        if not isinstance(path, str) or not path:
            raise ValueError(f"{PART}: save needs a path, or a center with checkpoint=.")
        path, shards = os.path.abspath(path), len(self._actors)
        self._ask("save", [(shard_path(path, k, shards),) for k in range(shards)], ValueError)

    def stop(self) -> None:
        """Save, if the center has a checkpoint, and end its actors."""
        try:
            if self._checkpoint is not None and self._actors:
                self._ask("finish", [()] * len(self._actors), ValueError)
        finally:
            self._end()

    def __enter__(self) -> "RayCenter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # What ended the block says more than that there is nothing left to save.
        with contextlib.suppress(*([] if kind is None else [CenterUnavailableError])):
            self.stop()

    def _end(self) -> None:
        ray = ray_library(PART)
        actors, self._actors = self._actors, []
        actors = actors if ray.is_initialized() else []  # else they ended with the cluster
        for actor in actors:
            within(PART, self._timeout, "end an actor", functools.partial(ray.kill, actor))

    def _ask(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        error: type[Exception] = CenterUnavailableError,
    ) -> list[Any]:
        """Return the results of a call of each actor; raise what one of them could not do."""
        calls = [
            functools.partial(getattr(actor, method).remote, *args)
            for actor, args in zip(self._actors, arguments, strict=True)
        ]
        outcomes = ask_actors(PART, self.name, calls, self._timeout)
        for _, problem in outcomes:
            if problem is not None:
                raise error(f"{PART}: center {self.name!r}: {problem}.")
        return [result for result, _ in outcomes]

    def sender(self, part: str, timeout: float) -> Send:
        """Return the function by which a `Worker` sends its requests.

        Args:
          part: the part that error messages name.
          timeout: the limit of time of a request, in seconds.
        """
        return functools.partial(self._send, part, check_timeout(part, timeout))

    def _send(
        self, part: str, timeout: float, header: dict[str, Any], arrays: Sequence[np.ndarray]
    ) -> Answer:
        if not self._actors:
            raise CenterUnavailableError(
                f"{part}: center {self.name!r} was stopped here; make it again, with resume=True "
                "to go on from its checkpoint."
            )
        deadline = time.monotonic() + timeout
        try:
            headers = self._headers(header, arrays)
        except Refusal as refusal:
            return {"refused": refusal.reason, "why": refusal.message}, []

        def send(shards: Sequence[int]) -> list[Answer]:
            calls = []
            for k in shards:
                shard_arrays = [arrays[i] for i in self._division[k]] if arrays else []
                calls.append(
                    functools.partial(self._actors[k].answer.remote, headers[k], shard_arrays)
                )
            outcomes = ask_actors(part, self.name, calls, max(0.001, deadline - time.monotonic()))
            for _, problem in outcomes:
                if problem is not None:
                    raise CenterUnavailableError(f"{part}: center {self.name!r}: {problem}.")
            return [answer for answer, _ in outcomes]

        everywhere = range(len(self._actors))
        if len(self._actors) > 1 and self._decides and arrays:
            answers = send([0])
            if "refused" not in answers[0][0]:
                for one in headers[1:]:
                    one["applied"] = answers[0][0]["applied"]
                answers += send(everywhere[1:])
        else:
            answers = send(everywhere)
        refused = [answer for answer in answers if "refused" in answer[0]]
        if refused:
            return refused[0]
        merged: list[Any] = [None] * len(self._layout.paths)
        for leaves, (_, result) in zip(self._division, answers, strict=True):
            for i, array in zip(leaves, result, strict=False):  # a hello has none
                merged[i] = array
        return answers[0][0], [array for array in merged if array is not None]

    def _headers(self, header: dict[str, Any], arrays: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the header of each actor's part; refuse what must not be done in one part only."""
        if len(self._actors) == 1:
            return [header]
        if header["operation"] == "hello":
            check_leaves(header["leaves"], self._layout)
            parts = [self._layout.only(leaves).described() for leaves in self._division]
            return [header | {"leaves": part} for part in parts]
        if arrays:
            check_arrays(arrays, self._layout)
            path = not_finite(self._layout, arrays)
            if path is not None:
                raise Refusal(NOT_FINITE, f"{path} of what was sent has a NaN or an infinity")
        return [dict(header) for _ in self._division]
