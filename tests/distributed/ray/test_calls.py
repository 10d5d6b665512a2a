"""Whatever Ray raises is an error of one line, and nothing waits without a limit; without Ray."""

import sys
import threading
import time
import types

import pytest

from gradxform.distributed import center as gc, ray as gr
from gradxform.distributed.ray import calls, names
from tests.environment import limit


class RayError(Exception):
    pass


KINDS = {
    name: type(name, (RayError,), {})
    for name in ("GetTimeoutError", "RayActorError", "RaySystemError", "ObjectStoreFullError")
}
KINDS |= {"RayError": RayError}
KINDS |= {"ActorUnavailableError": type("ActorUnavailableError", (KINDS["RayActorError"],), {})}


def ray_of(**functions):
    """A module that stands for Ray, in a process that is connected."""
    return types.SimpleNamespace(
        __version__="2.60.0",
        is_initialized=lambda: True,
        exceptions=types.SimpleNamespace(**KINDS),
        **functions,
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("GetTimeoutError", "no answer from center 'line' within 0.2 s"),
        ("ActorUnavailableError", "no answer from center 'line' within 0.2 s"),
        ("RayActorError", "center 'line' is gone (the last line)"),
        ("RaySystemError", "the cluster of center 'line' does not work (the last line)"),
        ("ObjectStoreFullError", "center 'line' could not answer (the last line)"),
        ("RayError", "center 'line' could not answer (the last line)"),
    ],
)
def test_what_ray_raises_is_one_line(monkeypatch, kind, words):
    def fail(*_, **__):
        raise KINDS[kind]("Traceback:\n  many of them\nthe last line.\n")

    monkeypatch.setitem(sys.modules, "ray", ray_of(get=fail))
    with pytest.raises(gc.CenterUnavailableError) as caught:
        calls.ask_actors("RayWorker", "line", [lambda: None], 0.2)
    message = str(caught.value)
    assert message.startswith(f"RayWorker: {words}")
    assert "\n" not in message and message.endswith(".")


def test_names_are_not_listed_without_a_limit(monkeypatch):
    """The head may die between two looks."""
    ends = threading.Event()

    def unknown(*_, **__):
        raise ValueError("unknown")

    util = types.SimpleNamespace(list_named_actors=lambda **_: ends.wait(limit(40, 60)))
    monkeypatch.setitem(sys.modules, "ray", ray_of(get_actor=unknown, util=util))
    monkeypatch.setattr(names, "LIST_WITHIN", 0.1)
    began = time.monotonic()
    with pytest.raises(gc.CenterUnavailableError, match=r"does not list its centers within 0\.1 s"):
        gr.RayCenter.connect("line", timeout=0.1)
    ends.set()
    assert time.monotonic() - began < limit(5, 20)
