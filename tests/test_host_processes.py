"""A center and workers that are processes of their own, which are killed, stopped and restarted."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from gradxform.distributed import host
from gradxform.optimizers import sgd
from tests.environment import limit

HERE = pathlib.Path(__file__).parent
PARAMS = {"w": jnp.zeros(4)}
SECRET = "a secret of more than 16 bytes"


def seconds():
    """Return the limit for whatever is started here."""
    return limit(40, 120)


class Worker:
    """A process that works for a center, and what it has written so far."""

    def __init__(self, center, method, pause, folder, timeout=None):
        self.said = folder / f"worker-{time.monotonic_ns()}"
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        env |= {"HOST_SECRET": SECRET, "JAX_PLATFORMS": "cpu"}
        env["HOST_TIMEOUT"] = str(timeout or limit(20, 60))
        env["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), env.get("PYTHONPATH", "")])
        with open(self.said, "wb") as out, open(f"{self.said}.err", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "host_worker.py", center.address, method, str(pause)],
                env=env,
                stdout=out,
                stderr=err,
            )

    def lines(self):
        return self.said.read_text().splitlines()

    def count(self, word):
        return sum(line.startswith(word) for line in self.lines())

    def errors(self):
        return pathlib.Path(f"{self.said}.err").read_text()


@pytest.fixture
def start(tmp_path):
    """Start workers, and end those that are left: these alone, and only by their own number."""
    started = []

    def one(center, method="elastic", pause=0.01, **kwargs):
        started.append(Worker(center, method, pause, tmp_path, **kwargs))
        return started[-1]

    yield one
    for worker in started:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
        worker.process.wait(seconds())


def until(holds, workers):
    """Wait until something holds; return how long that took."""
    began, longest = time.monotonic(), seconds()
    while not holds():
        for worker in workers:
            assert worker.process.poll() is None, worker.errors()
        assert time.monotonic() - began < longest
        time.sleep(0.01)
    return time.monotonic() - began


def slowest(workers, word, rounds=5):
    """Return the longest that any of some rounds took in which every worker goes on."""
    longest = 0.0
    for _ in range(rounds):
        before = [worker.count(word) for worker in workers]

        def all_went_on(before=before):
            return all(w.count(word) > n for w, n in zip(workers, before, strict=True))

        longest = max(longest, until(all_went_on, workers))
    return longest


def test_workers_that_are_killed_stopped_slow_and_restarted_stop_nobody(start):
    with (
        host.CenterServer(PARAMS, host.elastic(0.1), secret=SECRET) as center,
        host.CenterClient(center.address, PARAMS, secret=SECRET) as slow,
    ):
        slow.join()  # and computes for longer than all that follows takes
        first, second, victim = workers = [start(center) for _ in range(3)]
        until(lambda: all(w.count("exchanged") for w in workers), workers)
        others = [first, second]
        usual = slowest(others, "exchanged")

        victim.process.kill()
        assert victim.process.wait(seconds()) == -signal.SIGKILL
        gone = victim.count("exchanged")
        # Within the next second, unless this machine is so busy that they were as slow before.
        assert slowest(others, "exchanged", 1) < max(1.0, 5 * usual)
        until(lambda: center.workers == 3, others)
        assert victim.count("exchanged") == gone

        # Frozen with its connection open, as a machine that swaps or a cable that is cut.
        second.process.send_signal(signal.SIGSTOP)
        assert slowest([first], "exchanged", 1) < max(1.0, 5 * usual)
        second.process.send_signal(signal.SIGCONT)
        slowest(others, "exchanged", 1)  # thawed, it goes on

        step = center.global_step
        back = start(center)
        until(lambda: back.count("exchanged") > 2, [*others, back])
        _, joined_at, value = back.lines()[0].split()
        assert int(joined_at) >= step and float(value) > 0  # it joined from the center, not from 0
        value, late = float(center.params["w"][0]), {"w": jnp.full(4, -1.0)}
        moved, _ = slow.exchange(late)  # nobody has waited for it; now it is welcome
        assert -1 < moved["w"][0] < value
        until(lambda: np.all(np.abs(center.params["w"] - 1) < 0.01), [*others, back])
        assert center.refused == {}


def test_a_gradient_server_drops_what_is_stale(start):
    with host.CenterServer(PARAMS, host.drop_stale(sgd(0.01), 1), secret=SECRET) as center:
        fast = start(center, "drop_stale", 0.005)
        slow = start(center, "drop_stale", 0.5)
        until(lambda: slow.count("dropped") >= 2 and fast.count("applied") >= 10, [fast, slow])
        fast.process.kill()
        slow.process.kill()
        for worker in (fast, slow):
            worker.process.wait(seconds())
        told = [w.count(word) for w in (fast, slow) for word in ("applied", "dropped")]
        # Each may have been killed before it said what came of its last gradient.
        assert told[0] + told[2] <= center.global_step <= told[0] + told[2] + 2
        assert told[1] + told[3] <= center.stale_counter <= told[1] + told[3] + 2


def test_a_worker_whose_center_is_gone_ends_with_an_error(start):
    patience = limit(0.5, 2)  # long enough to join
    with host.CenterServer(PARAMS, host.elastic(0.1), secret=SECRET) as center:
        worker = start(center, timeout=patience)
        until(lambda: worker.count("exchanged"), [worker])
        address = center.address
    assert worker.process.wait(seconds()) == 3
    assert f"no answer from the center at {address} within {patience:g} s" in worker.errors()
