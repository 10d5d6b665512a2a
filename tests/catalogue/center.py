"""Calls of centers and workers that must be refused; Ray is a module that stands for it."""

import sys
import types
from typing import Any
from unittest import mock

import jax.numpy as jnp

import gradxform as gx
from gradxform.distributed import center as gc

PARAMS = {"w": jnp.ones(3), "b": jnp.ones(())}
METHOD = gc.agn(gx.sgd(0.1))
NOWHERE = "127.0.0.1:1"  # where nothing listens
TAKEN = type("ActorAlreadyExistsError", (Exception,), {})


def with_ray(make, joined=False, version="2.60.0"):
    """Call in a process that is connected to a cluster, or not; all names are taken there."""

    def start(_):
        raise TAKEN("of Ray")

    actors = types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=start))
    ray = types.SimpleNamespace(
        __version__=version,
        is_initialized=lambda: joined,
        remote=lambda _: actors,
        exceptions=types.SimpleNamespace(ActorAlreadyExistsError=TAKEN),
    )
    with mock.patch.dict(sys.modules, ray=ray):
        return make()


def worker(like: Any = PARAMS, method=METHOD, **changes):
    """A worker whose requests reach a center with these changes."""
    center = gc.Center(PARAMS, method)
    return gc.Worker(lambda header, arrays: center.answer(header | changes, arrays), like)


REFUSED = [
    ("worker(version='0.0.1').join()",
     gc.RefusedError, "Worker", "gradxform 0.0.1", gx.__version__, "same version on both"),
    ("worker(PARAMS | {'b': jnp.ones(2)}).join()", gc.RefusedError, "Worker", "['b']", "(2,)"),
    ("worker({'w': jnp.ones(3)}).join()", gc.RefusedError, "Worker", "['b']"),
    ("worker().push(PARAMS | {'b': jnp.asarray(jnp.nan)})",
     gc.RefusedError, "Worker", "['b']", "NaN"),
    ("worker().push({'w': jnp.ones(3)})", ValueError, "Worker", "['b']"),
    ("worker().exchange(PARAMS)", gc.RefusedError, "runs agn", "push, not 'exchange'"),
    ("worker(method=gc.drop_stale(sgd(0.1), 1)).push(PARAMS)",
     gc.RefusedError, "drop_stale needs local_step"),
    ("worker().push(PARAMS, 1.5)", TypeError, "Worker", "local_step", "1.5"),
    ("with_ray(lambda: gd.ray.RayCenter(PARAMS, METHOD, 'line'), joined=True)",
     ValueError, "RayCenter", "a center named 'line' runs already", "RayCenter.connect('line')"),
    ("with_ray(lambda: gd.ray.RayCenter.connect('line', NOWHERE))",
     gc.CenterUnavailableError, "RayCenter", f"nothing answers at {NOWHERE}", "ray start --head"),
    ("with_ray(lambda: gd.ray.RayWorker('line', address=NOWHERE))",
     gc.CenterUnavailableError, "RayCenter", f"nothing answers at {NOWHERE}"),
    ("with_ray(lambda: gd.ray.RayWorker('line'))",
     gc.CenterUnavailableError, "not connected to Ray", "ray.init(...)", "address='host:port'"),
    ("with_ray(lambda: gd.ray.RayCenter.connect('line'), version='2.9.3')",
     ImportError, "ray 2.9.3 is too old", "gradxform[ray]"),
]  # fmt: skip
