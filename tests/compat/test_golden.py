"""The doors follow the original implementations, step by step and slot by slot."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import compat

pytestmark = pytest.mark.numeric

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
ROWS = [
    row | {"npz": GOLDEN / kind / row["npz"]}
    for kind in ("dense", "sparse")
    for row in json.loads((GOLDEN / kind / "cases.json").read_text())["rows"]
]

# What a slot of the original is called in the state, and by what it is to be multiplied: a buffer
# that holds steps holds them downhill here, uphill there.
SLOTS = {
    "contrib.AdaMax": {"m": ("mu", 1), "v": ("nu", 1)},
    "contrib.LARS": {"momentum": ("trace", -1)},
    "contrib.Shampoo": {"gbar": ("gbar", 1)},
    "keras.Adadelta": {"accum_grad": ("e_g", 1), "accum_var": ("e_x", 1)},
    "keras.Ftrl": {"accumulator": ("accumulator", 1), "linear": ("linear", 1)},
    "returnn.AMSGrad": {"m": ("mu", 1), "v": ("nu", 1), "v_hat": ("nu_max", 1)},
    "tf1.Adadelta": {"accum": ("e_g", 1), "accum_update": ("e_x", 1)},
    "tf1.AdagradDA": {
        "gradient_accumulator": ("gradient_sum", 1),
        "gradient_squared_accumulator": ("sum_of_squares", 1),
    },
    "tf1.Ftrl": {"accum": ("accumulator", 1), "linear": ("linear", 1)},
    "tf1.RMSProp": {"rms": ("nu", 1), "momentum": ("trace", -1)},
}
USUAL = {
    "m": ("mu", 1),
    "v": ("nu", 1),
    "momentum": ("trace", 1),
    "rms": ("nu", 1),
    "accumulator": ("sum_of_squares", 1),
}


def argument(x):
    """A recorded argument as its door takes it."""
    if isinstance(x, dict) and "class" in x:
        return getattr(compat.tf1, x["class"])(**x["args"])
    return None if x == {"$": "global_step"} else x


def door_of(row):
    family, name = row["id"].split(".")[:2]
    args = {k: argument(v) for k, v in row["args"].items() if v != {"$": "var_list"}}
    door = getattr(compat, {"contrib": "tf_contrib"}.get(family, family))
    return getattr(door, name)(**args)


def gradient_of(data, kind, name, i, like):
    """The recorded gradient of one parameter: an array, or rows of one, some of them repeated."""
    if f"{kind}/{name}" in data:
        return jnp.asarray(data[f"{kind}/{name}"][i])
    indices, values = data[f"{kind}_idx/{name}"][i], data[f"{kind}_val/{name}"][i]
    return gx.sparse.RowSparse(indices, values, len(like))


@pytest.mark.reference
@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_every_door_follows_the_recorded_original(row):
    tx = door_of(row)
    with np.load(row["npz"]) as data:
        data = dict(data)
    params = {k[5:]: jnp.asarray(v) for k, v in data.items() if k.startswith("init/")}
    state = tx.init(params)
    atol = max(row["atol"], 1e-5 * row["movement"])

    @jax.jit
    def update(grads, state, params, step):
        updates, state = tx.update(grads, state, params, step=step)
        return gx.apply_updates(params, updates), state

    @jax.jit
    def regularize(grads, state, params, step):
        updates, state = tx.update(grads, state, params, step=step, update_slots=False)
        return gx.apply_updates(params, updates), state

    for i in range(len(data["params/w"])):
        step = jnp.asarray(row["start"] + i, jnp.int32)
        grads = {n: gradient_of(data, "grad", n, i, params[n]) for n in params}
        params, state = update(grads, state, params, step)
        if "reg_grad/w" in data:
            for n in params:
                expected = data[f"params_after_loss/{n}"][i]
                np.testing.assert_allclose(params[n], expected, rtol=0, atol=atol)
            grads = {n: gradient_of(data, "reg_grad", n, i, params[n]) for n in params}
            params, state = regularize(grads, state, params, step)
        for n in params:
            np.testing.assert_allclose(params[n], data[f"params/{n}"][i], rtol=0, atol=atol)
        if "average/w" in data:
            averages = {n: data[f"average/{n}"][i] for n in params}
            check_averages(gx.eval_params(state, params), averages, data)
    check_slots(row, state, data)
    if "swapped_checkpoint/w" in data:
        check_swapped(*gx.swap(state, params), data, atol)


def check_averages(ours, expected, data):
    """Compare averages, which move by as little as 1e-4 of what the parameters do."""
    for n, average in expected.items():
        first = data[f"average_init/{n}"]
        # The deviation of the parameters in them, and a rounding of the averages themselves.
        atol = 2e-3 * np.abs(average - first).max() + 2 * np.spacing(np.abs(first).max())
        np.testing.assert_allclose(ours[n], average, rtol=0, atol=atol)


def check_swapped(params, state, data, atol):
    """The average stands under a variable's own name, and the variable beside it."""
    saved = {n: data[f"swapped_checkpoint/{n}"] for n in params}
    check_averages(params, saved, data)
    for slot, ours in (("ExponentialMovingAverage", "average"), ("Momentum", "trace")):
        for n, x in gx.tree.get(state, ours).items():
            expected = data[f"swapped_checkpoint/{n}/{slot}"]
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=atol)


def check_slots(row, state, data):
    known = USUAL | SLOTS.get(".".join(row["id"].split(".")[:2]), {})
    for key, expected in data.items():
        if key.startswith("slot/"):
            _, slot, name = key.split("/")
            if slot.startswith("Gbar_"):
                ours, sign = gx.tree.get(state, "statistics")[name][int(slot[5:])], 1
            else:
                field, sign = known[slot]
                ours = gx.tree.get(state, field)[name]
            size = max(np.max(np.abs(expected)), 1e-30)
            np.testing.assert_allclose(sign * ours, expected, rtol=1e-4, atol=1e-6 * size)
    if "nonslot/momentum_cache" in data:
        ours = gx.tree.get(state, "mu_product")
        np.testing.assert_allclose(ours, data["nonslot/momentum_cache"], rtol=1e-4)
    if "nonslot/moment1" in data:  # GGT's are flat, the parameters in the order of their names
        flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(gx.tree.get(state, "mu"))])
        np.testing.assert_allclose(flat, data["nonslot/moment1"], rtol=1e-4, atol=1e-6)
        window = [np.asarray(x) for x in jax.tree.leaves(gx.tree.get(state, "buffer"))]
        flat = np.concatenate([x.reshape(len(x), -1) for x in window], axis=1)
        np.testing.assert_allclose(flat, data["nonslot/grad_buffer"], rtol=1e-4, atol=1e-6)


def test_every_slot_is_compared():
    """No trace without parameters to follow, and no unknown slot."""
    assert len(ROWS) >= 80
    for row in ROWS:
        with np.load(row["npz"]) as data:
            assert np.abs(data["params/w"] - data["init/w"]).max() > 100 * row["atol"]
