"""Calls to actors with a limit of time, and one-line errors for what Ray raises."""

import queue
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradxform.distributed.center.refusal import CenterUnavailableError
from gradxform.errors import must_be, shown

T = TypeVar("T")

# What a process must share with its cluster.
SECRETS = "the token (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH) and TLS (RAY_USE_TLS)"

OLDEST = (2, 52)
_PAUSE = 0.1  # seconds between two attempts


def ray_library(part: str) -> Any:
    """Return the module of Ray.

    Raises:
      ImportError: if it is not installed, or too old.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"{part}: ray is not installed; install gradxform[ray].") from error
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        raise ImportError(
            f"{part}: ray {ray.__version__} is too old; install gradxform[ray], which needs 2.52."
        )
    return ray


def check_timeout(part: str, timeout: Any) -> float:
    """Return a limit of time in seconds as a float; require it to be greater than 0."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"{part}: timeout must be seconds greater than 0, got {shown(timeout)}.")
    return float(timeout)


def join_cluster(part: str, address: Any, timeout: float) -> Any:
    """Connect this process to a cluster, unless it is connected, and return the module of Ray.

    Args:
      part: the part that error messages name.
      address: "host:port" of the head, or another form that `ray.init` takes; None if this process
        is connected already.
      timeout: the limit of time in seconds.

    Raises:
      CenterUnavailableError: without a cluster.
    """
    ray = ray_library(part)
    if ray.is_initialized():
        return ray
    if address is None:
        raise CenterUnavailableError(
            f"{part}: this process is not connected to Ray; call ray.init(...) first, or give "
            "address='host:port' of the cluster."
        )
    if not isinstance(address, str) or not address:
        raise ValueError(must_be(part, "address", "'host:port' of a cluster's head", address))
    _require_listener(part, address, timeout)
    check = "that it runs this version of Ray, " + SECRETS
    try:
        within(part, timeout, "let this process join", lambda: ray.init(address=address), check)
    except CenterUnavailableError:
        raise
    # Ray ends the process where the head does not answer.
    except (Exception, SystemExit) as error:
        raise CenterUnavailableError(
            f"{part}: cannot join the cluster at {address}: {last_line(error)}; check {check}."
        ) from error
    return ray


def _require_listener(part: str, address: str, timeout: float) -> None:
    """Require something to listen at "host:port": Ray itself tries for minutes."""
    try:
        split = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        if address in ("auto", "local"):
            return
        raise ValueError(f"{part}: address must be 'host:port' or 'auto', got {shown(address)}.")
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError as error:
        raise CenterUnavailableError(
            f"{part}: nothing answers at {address} ({last_line(error)}); start the cluster with "
            "`ray start --head`, or correct the address."
        ) from error


def within(
    part: str, timeout: float, what: str, work: Callable[[], T], check: str = "`ray status`"
) -> T:
    """Return what a function of Ray returns, which does not take a limit of time itself.

    Args:
      part: the part that error messages name.
      timeout: the limit of time in seconds.
      what: what the function does, for the error message.
      work: the function.
      check: what the error message asks the user to check.

    Raises:
      CenterUnavailableError: if it takes longer; it then goes on in its thread.
    """
    outcomes: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((work(), None))
        except BaseException as error:
            outcomes.put((None, error))

    threading.Thread(target=run, name="gradxform-ray", daemon=True).start()
    try:
        result, error = outcomes.get(timeout=max(0.001, timeout))
    except queue.Empty:
        raise CenterUnavailableError(
            f"{part}: the cluster does not {what} within {timeout:.3g} s; its head is gone or "
            f"busy. Check {check}, or give it more time."
        ) from None
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text, without its stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")[:300]


def ask_actors(
    part: str, name: str, calls: Sequence[Callable[[], Any]], timeout: float
) -> list[Any]:
    """Return the results of calls to the actors of a center, all of them within a limit of time.

    A call may reach its actor more than once, so it must be safe to repeat.

    Args:
      part: the part that error messages name.
      name: the name of the center.
      calls: functions that submit a call and return the reference of its result.
      timeout: the limit of time in seconds.

    Raises:
      CenterUnavailableError: if one does not have a result in time, or never will.
    """
    ray = join_cluster(part, None, timeout)
    deadline = time.monotonic() + timeout
    while True:
        try:
            refs = [call() for call in calls]
            return ray.get(refs, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.ActorUnavailableError as error:  # it restarts, or the line broke
            if time.monotonic() + _PAUSE >= deadline:
                raise _no_answer(part, name, timeout) from error
            time.sleep(_PAUSE)
        except ray.exceptions.GetTimeoutError as error:
            raise _no_answer(part, name, timeout) from error
        except ray.exceptions.RayActorError as error:
            raise CenterUnavailableError(
                f"{part}: center {name!r} is gone ({last_line(error)}); start it again, with "
                "checkpoint= and resume=True to go on from its last save."
            ) from error
        except (ray.exceptions.RaySystemError, ConnectionError) as error:
            raise CenterUnavailableError(
                f"{part}: the cluster of center {name!r} does not work ({last_line(error)}); "
                "start it again, and the center with resume=True."
            ) from error
        except ray.exceptions.RayError as error:  # no memory, no disk, an error within the actor
            raise CenterUnavailableError(
                f"{part}: center {name!r} could not answer ({last_line(error)}); see Ray's logs."
            ) from error


def _no_answer(part: str, name: str, timeout: float) -> CenterUnavailableError:
    return CenterUnavailableError(
        f"{part}: no answer from center {name!r} within {timeout:.3g} s; it is busy, restarts, or "
        "finds no free CPU on the cluster (`ray list actors`); raise timeout= if it needs longer."
    )
