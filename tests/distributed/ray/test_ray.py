"""Centers and workers on a cluster of Ray, which runs on this machine alone."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.distributed import center as gc, ray as gr
from tests.distributed.center.traces import TRACES
from tests.environment import environment, limit
from tests.trees import assert_identical

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.xdist_group("ray"),
    # Ray starts its processes by forks, of which JAX warns.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
]

PARAMS: Any = {
    "dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)},
    "scale": jnp.ones(()),
}


def full(x, like=PARAMS):
    return jax.tree.map(lambda p: jnp.full_like(p, x), like)


def seconds():
    """Return the limit for whatever a call may take."""
    return limit(30, 60)


@pytest.fixture(scope="module")
def ray():
    """A cluster of two CPUs on the loopback interface, with a token of its own."""
    env = environment()  # for its processes; of Ray's own variables, see conftest.py
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(env):
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        ray = pytest.importorskip("ray", reason="ray is not installed; the extra `ray` has it")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )
        try:
            yield ray
        finally:
            ray.shutdown()


def refused(kind, words, make):
    with pytest.raises(kind) as caught:
        make()
    message = str(caught.value)
    assert words in message and "\n" not in message and message[-1] in ".?", message


@contextlib.contextmanager
def made(params, method, *args, **kwargs):
    with gr.RayCenter(params, method, *args, timeout=seconds(), **kwargs) as center:
        yield center


@pytest.fixture(scope="module")
def pushed(ray):
    """A center of two shards that takes gradients, which several tests share."""
    with made(PARAMS, gc.agn(gx.sgd(1.0)), "pushed", shards=2) as center:
        yield center


@pytest.mark.parametrize(("follow", "shards"), [*zip(TRACES, [1, 2, 2], strict=True)])
def test_a_center_on_ray_follows_the_recorded_trace(ray, follow, shards):
    @contextlib.contextmanager
    def serve(params, method):
        with made(params, method, shards=shards) as center:
            yield center, lambda: gr.RayWorker(center, timeout=seconds())

    follow(serve)


def test_a_killed_center_restarts_from_its_save_and_goes_on_bit_for_bit(ray, tmp_path):
    key = jax.random.key(0)
    grads = [
        jax.tree.map(lambda p, i=i: jax.random.normal(jax.random.fold_in(key, i), p.shape), PARAMS)
        for i in range(5)
    ]
    method, path = gc.drop_stale(gx.adam(0.1), 1), str(tmp_path / "run.npz")
    local = gc.Center(PARAMS, method)
    wanted = gc.Worker(local.answer, PARAMS)
    with made(PARAMS, method, "run", checkpoint=path, save_every=1, shards=2) as center:
        worker = gr.RayWorker("run", timeout=seconds())
        pids = center.pids()
        for i, step in enumerate([0, 0, 0, 2, 3]):  # the third is stale
            if i == 3:
                os.kill(pids[1], signal.SIGKILL)
            assert_identical(worker.push(grads[i], step)[0], wanted.push(grads[i], step)[0])
        assert center.pids()[0] == pids[0] and center.pids()[1] != pids[1]
        assert (center.global_step, center.stale_counter) == (4, 1)
    names = ["run.0-of-2.npz", "run.1-of-2.npz"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_a_center_goes_on_from_a_file_of_a_local_one(ray, tmp_path):
    local, path = gc.Center(PARAMS, gc.elastic(0.5)), str(tmp_path / "local.npz")
    header = {"operation": "exchange", "worker": "a" * 32, "number": 3, "version": gx.__version__}
    sent = [np.asarray(x) for x in jax.tree.leaves(full(3.0))]
    answer, arrays = local.answer(header, sent)
    local.save(path)
    with made(full(9.0), gc.elastic(0.5), checkpoint=path, resume=True) as center:
        again, found = center.sender("test", seconds())(header, sent)  # the answer was lost
        assert again == answer and center.metrics()["repeated"] == 1
        assert_identical([*map(jnp.asarray, found)], [*map(jnp.asarray, arrays)])
        assert_identical(center.params, local.params)
        center.save(str(tmp_path / "saved.npz"))
        with pytest.raises(ValueError, match=r"RayCenter: center 'center-\w+': No such file"):
            center.save(str(tmp_path / "nowhere" / "saved.npz"))
    saved = gc.Center(full(7.0), gc.elastic(0.5)).load(tmp_path / "saved.npz")
    assert_identical(saved.params, local.params)


def test_a_request_that_is_sent_by_many_threads_is_carried_out_once(ray, pushed):
    worker, send = gr.RayWorker(pushed, timeout=seconds()), pushed.sender("test", seconds())
    step, before = worker.join().global_step, pushed.params
    header = {"operation": "push", "worker": "b" * 32, "number": 1, "version": gx.__version__}
    sent, steps = [np.asarray(x) for x in jax.tree.leaves(full(1.0))], []
    threads = [
        threading.Thread(target=lambda: steps.append(send(header, sent)[0]["global_step"]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds())
    assert steps == [step + 1] * 4
    assert_identical(pushed.params, jax.tree.map(lambda p: p - 1, before))
    counts = pushed.metrics()
    assert counts["shard0/global_step"] == counts["shard1/global_step"] == step + 1


def test_a_killed_worker_stops_nobody(ray, pushed):
    class Endless:
        def __init__(self, center):
            self.worker = gr.RayWorker(center)
            assert center.global_step <= gr.RayWorker("pushed").join().global_step

        def pid(self):
            return os.getpid()

        def push(self, grads):
            while True:
                self.worker.push(grads)

    endless = ray.remote(Endless).remote(pushed)
    pid = ray.get(endless.pid.remote(), timeout=seconds())
    before = pushed.global_step
    lost = endless.push.remote(jax.tree.map(np.asarray, full(0.0)))
    deadline = time.monotonic() + seconds()
    while pushed.global_step < before + 3:
        assert time.monotonic() < deadline
    os.kill(pid, signal.SIGKILL)
    worker = gr.RayWorker(pushed, timeout=seconds())
    step = worker.join().global_step
    assert [worker.push(full(0.0)).applied for _ in range(5)] == [True] * 5
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(lost, timeout=seconds())
    assert step + 5 <= pushed.global_step <= step + 6


# --------------------------------------------------------------------------- names and bad input


def test_two_centers_of_one_name_and_unknown_names_are_refused(ray, pushed):
    words = "a center named 'pushed' runs already on this cluster; choose another name="
    refused(ValueError, words, lambda: gr.RayCenter(PARAMS, gc.elastic(0.1), "pushed"))
    words = "no center named 'pushd' on this cluster within 0.3 s; there are: 'pushed'. Did you"
    refused(gc.CenterUnavailableError, words, lambda: gr.RayWorker("pushd", timeout=0.3))
    assert gr.RayCenter.connect("pushed").global_step == pushed.global_step  # it goes on


def test_workers_of_another_kind_or_tree_are_refused(ray, pushed, monkeypatch):
    worker = gr.RayWorker(pushed, timeout=seconds())
    before = pushed.global_step
    refused(gc.RefusedError, "the center runs agn", lambda: worker.exchange(PARAMS))
    wrong = PARAMS | {"scale": jnp.ones(2)}
    refused(ValueError, "['scale'] of shape (2,)", lambda: worker.push(wrong))
    other = gr.RayWorker(pushed, wrong, timeout=seconds())
    refused(gc.RefusedError, "the center's own parameters", other.join)
    nan = PARAMS | {"scale": jnp.asarray(np.nan)}
    refused(gc.RefusedError, "['scale'] of what was sent has a NaN", lambda: worker.push(nan))
    refused(gc.RefusedError, "takes no local_step", lambda: worker.push(PARAMS, 1))
    refused(ValueError, "save needs a path", pushed.save)
    for module in ("center.worker", "ray.center"):
        importlib.import_module(f"gradxform.distributed.{module}")
        monkeypatch.setattr(sys.modules[f"gradxform.distributed.{module}"], "__version__", "0.0.1")
    words = "install the same version on both"
    refused(gc.RefusedError, words, lambda: gr.RayWorker("pushed"))
    refused(gc.RefusedError, words, lambda: worker.pull())
    assert pushed.global_step == before and pushed.refused["version"] == 1


def test_calls_end_within_their_limit_of_time(ray, pushed):
    [pid, _] = pushed.pids()
    worker = gr.RayWorker(pushed, timeout=0.5)
    worker.join()
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)  # as a machine that swaps
    try:
        words = "no answer from center 'pushed' within 0.5 s"
        refused(gc.CenterUnavailableError, words, lambda: worker.push(full(0.0)))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < limit(1, 5)
    assert gr.RayWorker(pushed, timeout=seconds()).push(full(0.0)).applied
    words = "finds no free CPU on the cluster"

    def too_many():
        return gr.RayCenter(PARAMS, gc.elastic(0.1), "many", options={"num_cpus": 50}, timeout=0.5)

    refused(gc.CenterUnavailableError, words, too_many)


def test_a_center_that_is_gone_is_an_error_and_frees_its_name(ray):
    # Without a checkpoint Ray does not start it again, because it would start from nothing.
    center = gr.RayCenter(PARAMS, gc.elastic(0.1), "gone", timeout=seconds())
    worker = gr.RayWorker(center, timeout=seconds())
    worker.join()
    os.kill(center.pids()[0], signal.SIGKILL)
    words = "center 'gone' is gone"
    refused(gc.CenterUnavailableError, words, lambda: worker.exchange(PARAMS))
    with pytest.raises(KeyError):  # not that it cannot be saved any more
        with center:
            center._checkpoint = "gone.npz"
            raise KeyError
    refused(gc.CenterUnavailableError, "'gone' was stopped here", lambda: center.params)
    words = "no center named 'gone'"
    refused(gc.CenterUnavailableError, words, lambda: gr.RayWorker("gone", timeout=0.3))


JOIN = """
import json, os, sys, time
from gradxform.distributed.center import CenterUnavailableError
from gradxform.distributed.ray import RayWorker
try:
    worker = RayWorker("pushed", address=sys.argv[1], timeout=float(sys.argv[2]))
    print(json.dumps(worker.join().global_step))
except CenterUnavailableError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("knows", [True, False, None])
def test_a_driver_joins_by_address_with_the_token_of_the_cluster(ray, pushed, knows):
    """None: with another token and hardly any time."""
    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    env = dict(os.environ) if knows else os.environ | {"RAY_AUTH_TOKEN": "0" * 64}
    argv = [sys.executable, "-c", JOIN, address, "0.2" if knows is None else str(seconds())]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=seconds())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    if knows:
        assert said == pushed.global_step
    elif knows is None:
        assert "does not let this process join within 0.2 s" in said and "RAY_AUTH_TOKEN" in said
    else:
        assert f"cannot join the cluster at {address}" in said and "RAY_AUTH_TOKEN" in said
