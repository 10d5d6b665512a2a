"""The distributed doors follow TensorFlow's workers, in every mode and both forms of a step."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradxform import compat
from tests.distributed.modes import MODES, replicas, step_of

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "replicas"
ROWS = {row["id"]: row for row in json.loads((GOLDEN / "cases.json").read_text())["rows"]}


def door_of(row):
    name, args = row["id"].split(".")[1], dict(row["args"])
    args["opt"] = getattr(compat.tf1, args["opt"]["class"])(**args["opt"]["args"])
    door = compat.tf1.SyncReplicas if name == "SyncReplicas" else getattr(compat.tf_contrib, name)
    return door(**args)


def rounds_of(data, workers):
    """For every round the gradients of all workers, and what else an update is told."""
    names = [k[5:] for k in data if k.startswith("init/")]
    if "event_worker" in data:
        rounds = len(data["event_worker"]) // workers
        assert list(data["event_worker"]) == list(range(workers)) * rounds
        shaped = {n: data[f"event_grad/{n}"] for n in names}
        grads = {n: g.reshape(rounds, workers, *g.shape[1:]) for n, g in shaped.items()}
    elif any(k.startswith("tower_grad/") for k in data):
        grads = {n: data[f"tower_grad/{n}"] for n in names}
    elif "stale_counter" in data:
        grads = {n: data[f"grad/{n}"][:, None] for n in names}
    else:
        grads = {n: data[f"grad/{n}"] for n in names}
    told = {}
    if "accepted" in data:
        told = {"contribute": data["accepted"].astype(bool), "grad_step": data["local_step"]}
    elif "stale_counter" in data:
        told = {"grad_step": data["local_step"][:, None].astype(np.int32)}
    for t in range(len(next(iter(grads.values())))):
        yield {n: g[t] for n, g in grads.items()}, {k: v[t] for k, v in told.items()}


def expected(data, name, t, workers):
    """The parameters of every worker after round t, and the center if there is one."""
    if "event_worker" in data:
        local = [data[f"local/{name}"][workers * t + w][w] for w in range(workers)]
        return np.stack(local), data[f"global/{name}"][workers * (t + 1) - 1]
    if f"local/{name}" in data:
        return data[f"local/{name}"][t], None
    after = data[f"params/{name}"]
    return np.broadcast_to(after[t], (workers, *after.shape[1:])), None


@pytest.mark.parametrize("form", ["update", "step"])
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("name", list(ROWS))
def test_every_distributed_door_follows_the_recorded_workers(name, mode, form):
    row = ROWS[name]
    tx, workers = door_of(row), row["workers"]
    with np.load(GOLDEN / row["npz"]) as data:
        data = dict(data)
    r = replicas(mode, workers)
    params = r.replicate({k[5:]: jnp.asarray(v) for k, v in data.items() if k.startswith("init/")})
    state = r.wrap(tx.init)(params)

    step = r.wrap(step_of(tx, form))
    atol = max(row["atol"], 1e-5 * row["movement"])
    for t, (grads, told) in enumerate(rounds_of(data, workers)):
        params, state = step(params, state, r.place(grads), r.place(told))
        for k, leaf in params.items():
            local, center = expected(data, k, t, workers)
            np.testing.assert_allclose(leaf, local, rtol=0, atol=atol)
            if center is not None:
                for mine in np.asarray(state.center[k]):
                    np.testing.assert_allclose(mine, center, rtol=0, atol=atol)
    if "global_step" in data:
        last = jax.tree.leaves(state.global_step)[0]
        assert np.all(np.asarray(last) == data["global_step"][-1])
    if "stale_counter" in data:
        assert np.all(np.asarray(state.stale_counter) == data["stale_counter"][-1])
