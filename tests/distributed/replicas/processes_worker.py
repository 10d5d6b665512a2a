"""One process of a tiny training on several, for `test_processes.py`.

    python tests/distributed/replicas/processes_worker.py ID PROCESSES PORT DIR JOBS

JOBS is JSON, a list of arguments of `train`. A job saves all of its state in DIR/METHOD-MODE.npz,
by process 0, and goes on from there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
import gradxform.distributed as gd

HEARTBEAT = 10  # seconds
RATE, PERIOD, ROWS, START = 0.05, 3, 24, (1.0, -2.0, 0.5)
METHODS = {
    "model_average": gd.model_average(gx.sgd(RATE), "replica", period=PERIOD, warmup=1),
    "elastic_average": gd.elastic_average(
        gx.sgd(RATE), "replica", period=PERIOD, moving_rate=0.2, rho=0.5
    ),
}


def batch(t):
    """The rows of step t, of all replicas together."""
    random = np.random.default_rng(t)
    x = random.normal(size=(ROWS, len(START)))
    return x, x @ np.arange(1.0, len(START) + 1) + random.normal(size=ROWS)


def train(out, method, steps, mode="shard_map", save_every=0, pause=0.0):
    tx, r = METHODS[method], gd.Replicas(mode=mode)
    assert r.n == jax.process_count()

    @r.wrap
    def step(state, xy):
        params, opt_state = state

        def loss(p):
            return jnp.mean((xy[0] @ p["w"] - xy[1]) ** 2)

        return tx.step(jax.grad(loss)(params), opt_state, params)

    params = r.replicate({"w": np.float32(START)})
    state = (params, r.wrap(tx.init)(params))
    path = out / f"{method}-{mode}.npz"
    if path.exists():
        with np.load(path) as saved:
            leaves = [saved[str(i)] for i in range(len(saved.files))]
        state = jax.tree.unflatten(jax.tree.structure(state), leaves)
        state = r.place(gd.resize_replicas(state, r.n))
    first = int(state[1].schedule_step)
    for t in range(first + 1, steps + 1):
        state = step(state, r.split(jax.tree.map(np.float32, batch(t))))
        if t == steps or (save_every and t % save_every == 0):
            save(path, r.gather(state))
        time.sleep(pause)


def save(path, state):
    """Save all arrays; a reader finds a whole file or none."""
    if jax.process_index():
        return
    whole = path.with_suffix(".part")
    with whole.open("wb") as file:
        np.savez(file, **{str(i): x for i, x in enumerate(jax.tree.leaves(state))})
    os.replace(whole, path)


def main(index, processes, port, out, jobs):
    longest = int(os.environ["LIMIT"])  # seconds
    signal.alarm(longest)  # whatever happens to the test that started it
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(
        address,
        int(processes),
        int(index),
        cluster_detection_method="deactivate",
        coordinator_bind_address=address,
        initialization_timeout=longest,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=10,
    )
    for one in json.loads(jobs):
        train(Path(out), **one)


if __name__ == "__main__":
    main(*sys.argv[1:])
