"""The recorded traces of TensorFlow's asynchronous optimizers, and centers that follow them.

Each function takes `serve(params, method)`, a context that gives a center and a function which
makes a worker of it.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.distributed.center import agn, drop_stale, elastic, elastic_gradient

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "replicas"
ROWS = {row["id"]: row for row in json.loads((GOLDEN / "cases.json").read_text())["rows"]}


class Trace:
    """A trace of the original, and how far we are from it."""

    def __init__(self, name):
        self.row = ROWS[name]
        with np.load(GOLDEN / self.row["npz"]) as data:
            self.data = dict(data)
        self.params = {k[5:]: jnp.asarray(v) for k, v in self.data.items() if k.startswith("init/")}
        self.atol = max(self.row["atol"], 1e-5 * self.row["movement"])

    def at(self, kind, event, worker=None):
        found = {k: self.data[f"{kind}/{k}"][event] for k in self.params}
        return {k: jnp.asarray(v if worker is None else v[worker]) for k, v in found.items()}

    def check(self, tree, kind, event, worker=None):
        for k, wanted in self.at(kind, event, worker).items():
            np.testing.assert_allclose(
                tree[k], wanted, rtol=0, atol=self.atol, err_msg=f"{kind} {event}"
            )


def elastic_average(serve):
    """Follow the recorded elastic averaging of several workers."""
    trace = Trace("cluster.ElasticAverage.period3.s11")
    args, n = trace.row["args"], trace.row["workers"]
    period, learning_rate = args["communication_period"], args["opt"]["args"]["learning_rate"]
    moving_rate = 0.9 / period / n
    tx = gx.sgd(**args["opt"]["args"])
    with serve(trace.params, elastic(moving_rate)) as (center, join):
        workers = [join() for _ in range(n)]
        v = [worker.join().params for worker in workers]
        state, steps = [tx.init(p) for p in v], [0] * n
        for e, i in enumerate(trace.data["event_worker"]):
            grads = elastic_gradient(
                trace.at("event_grad", e),
                v[i],
                workers[i].local_center,
                moving_rate / learning_rate,
            )
            updates, state[i] = tx.update(grads, state[i], v[i])
            v[i] = gx.apply_updates(v[i], updates)
            steps[i] += 1
            if steps[i] % period == 0:
                v[i], global_step = workers[i].exchange(v[i])
                assert global_step == center.global_step
            trace.check(center.params, "global", e)
            for j in range(n):
                trace.check(v[j], "local", e, j)
                trace.check(workers[j].local_center, "local_center", e, j)
            assert center.global_step == trace.data["global_step"][e]


def accumulated_gradients(serve):
    """Follow the recorded accumulated gradient normalization of several workers."""
    trace = Trace("cluster.AGN.period4.s11")
    args, n = trace.row["args"], trace.row["workers"]
    period, tx = args["communication_period"], gx.sgd(**args["opt"]["args"])
    zeros = jax.tree.map(jnp.zeros_like, trace.params)
    with serve(trace.params, agn(tx)) as (center, join):
        workers = [join() for _ in range(n)]
        v = [worker.join().params for worker in workers]
        state, steps, total = [tx.init(p) for p in v], [0] * n, [zeros] * n
        for e, i in enumerate(trace.data["event_worker"]):
            grads = trace.at("event_grad", e)
            updates, state[i] = tx.update(grads, state[i], v[i])
            v[i] = gx.apply_updates(v[i], updates)
            total[i] = jax.tree.map(jnp.add, total[i], grads)
            steps[i] += 1
            if steps[i] % period == 0:
                mean = jax.tree.map(lambda a: a / period, total[i])
                v[i], _, _ = workers[i].push(mean)
                total[i] = zeros
            trace.check(center.params, "global", e)
            for j in range(n):
                trace.check(v[j], "local", e, j)
                trace.check(total[j], "grad_accumulator", e, j)
            assert center.global_step == trace.data["global_step"][e]


def stale_gradients(serve):
    """Follow the recorded steps of a center that drops stale gradients."""
    trace = Trace("contrib.DropStaleGradient.staleness1.dense.s11")
    args = trace.row["args"]
    method = drop_stale(gx.sgd(**args["opt"]["args"]), args["staleness"])
    with serve(trace.params, method) as (center, join):
        worker = join()
        for e, local_step in enumerate(trace.data["local_step"]):
            before = center.global_step
            params, step, applied = worker.push(trace.at("grad", e), int(local_step))
            trace.check(params, "params", e)
            assert step == center.global_step == trace.data["global_step"][e]
            assert applied == (step > before)
            assert center.stale_counter == trace.data["stale_counter"][e]


TRACES = [elastic_average, accumulated_gradients, stale_gradients]
