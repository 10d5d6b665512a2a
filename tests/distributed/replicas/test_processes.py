"""Replicas in processes of their own, on loopback: they do what they should, or end together.

Every process is killed by the id with which it was started, and ends by itself after a while.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.replicas.processes_worker import (
    HEARTBEAT,
    METHODS,
    PERIOD,
    RATE,
    ROWS,
    START,
    batch,
)
from tests.environment import environment, limit

pytestmark = pytest.mark.xdist_group("processes")


class Processes:
    """Processes that train together; all are gone at the end of the `with`."""

    def __init__(self, n, out, jobs):
        self.logs = [out / f"log-{i}" for i in range(n)]
        longest = limit(60, 180)
        self.deadline = time.monotonic() + longest
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = environment(LIMIT=str(round(longest)))
        worker = str(Path(__file__).with_name("processes_worker.py"))
        self.all = []
        for i, path in enumerate(self.logs):
            argv = [sys.executable, worker, str(i), str(n), str(port), str(out), json.dumps(jobs)]
            with path.open("wb") as log:
                self.all.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.kill()
            process.wait()

    def wait(self):
        """Return the exit codes of all, by the deadline."""
        return [p.wait(max(0.1, self.deadline - time.monotonic())) for p in self.all]

    def said(self):
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.logs)

    def until(self, done):
        """Wait until something is true while all are running."""
        while not done():
            assert time.monotonic() < self.deadline, self.said()
            assert all(p.poll() is None for p in self.all), self.said()
            time.sleep(0.02)


def run(n, out, *jobs):
    with Processes(n, out, jobs) as processes:
        assert processes.wait() == [0] * n, processes.said()


class Simulation:
    """Both methods with SGD, in float64."""

    def __init__(self, method, n):
        self.method, self.t = method, 0
        self.center = self.seen = np.asarray(START)
        self.w = np.stack([self.center] * n)

    def resize(self, n):
        self.w = np.stack([self.w.mean(0)] * n)

    def train(self, steps):
        for t in range(self.t + 1, steps + 1):
            x, y = (a.astype(np.float32).astype(np.float64) for a in batch(t))
            n, b = len(self.w), ROWS // len(self.w)
            for i in range(n):
                rows = slice(i * b, (i + 1) * b)
                g = 2 / b * x[rows].T @ (x[rows] @ self.w[i] - y[rows])
                if self.method == "elastic_average":
                    g = g + 0.5 * (self.w[i] - self.seen)
                self.w[i] = self.w[i] - RATE * g
            meet = t % PERIOD == 0
            if self.method == "elastic_average" and meet:
                apart = self.w - self.center
                self.seen = self.center
                self.center = self.center + 0.2 * apart.sum(0)
                self.w = self.w - 0.2 * apart
            elif self.method == "model_average" and (meet or t <= 1):
                self.w = np.stack([self.w.mean(0)] * n)
            self.t = t
        return self


def read(path):
    """Return the arrays of a checkpoint, and at which step it was written."""
    with np.load(path) as saved:
        leaves = [saved[str(i)] for i in range(len(saved.files))]
    return leaves, next(int(x) for x in leaves if x.shape == ())  # schedule_step comes first


def assert_equal(path, simulation, steps):
    """The saved state is that of the simulation, to float32's rounding."""
    leaves, step = read(path)
    w = leaves[0]
    assert step == steps
    assert w.dtype == np.float32 and np.ptp(simulation.w) > 0.1
    np.testing.assert_allclose(w, simulation.w, rtol=0, atol=1e-6)
    if simulation.method == "elastic_average":
        center, seen = leaves[-2:]
        np.testing.assert_allclose(center, [simulation.center] * len(w), rtol=0, atol=1e-6)
        np.testing.assert_allclose(seen, [simulation.seen] * len(w), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "modes"), [(2, ["shard_map", "pmap", "jit"]), (4, ["shard_map"])])
def test_processes_do_what_the_formulas_say(n, modes, tmp_path):
    steps = 4 * PERIOD + 2  # the last ones after the last exchange
    each = [{"method": name, "mode": mode} for name in METHODS for mode in modes]
    run(n, tmp_path, *(job | {"steps": steps} for job in each))
    for job in each:
        simulation = Simulation(job["method"], n).train(steps)
        assert np.ptp(simulation.w, axis=0).max() > 1e-3  # replicas are apart
        assert_equal(tmp_path / f"{job['method']}-{job['mode']}.npz", simulation, steps)


def test_one_killed_ends_all_and_fewer_go_on_from_the_checkpoint(tmp_path):
    every, path = 2 * PERIOD - 1, tmp_path / "elastic_average-shard_map.npz"
    job = {"method": "elastic_average", "steps": 10**6, "save_every": every, "pause": 0.02}

    with Processes(4, tmp_path, [job]) as processes:
        processes.until(path.exists)
        first = read(path)[1]
        processes.until(lambda: read(path)[1] > first + every)
        processes.all[2].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        codes = processes.wait()
        took = time.monotonic() - killed
    assert codes[2] == -signal.SIGKILL and 0 not in codes, codes
    assert took < HEARTBEAT + limit(3, 5), took

    saved = read(path)[1]
    assert saved % every == 0
    simulation = Simulation("elastic_average", 4).train(saved)
    assert_equal(path, simulation, saved)
    more = saved + 2 * PERIOD
    run(3, tmp_path, {"method": "elastic_average", "steps": more})
    simulation.resize(3)
    assert_equal(path, simulation.train(more), more)
    print(f"all ended {took:.1f} s after one was killed, with {codes}")
