"""Rules for matrices that see more than gradients, or change spectra: as on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SHAPES = {"stack": (8, 4, 16), "up": (8, 16), "down": (16, 8), "whole": (4, 6)}
SHAPES["long"] = (4, 128)  # whose columns stay where they are, if a rule allows it
PLACES = {"stack": P("x"), "up": P("x"), "down": P(None, "x"), "whole": P()}
PLACES["long"] = P(None, "x")


def numbers(params):
    kinds = {2: gx.MuonDimensionNumbers(), 3: gx.MuonDimensionNumbers(1, 2)}
    return jax.tree.map(lambda x: kinds[x.ndim], params)


def spectrum(*args, **fields):
    rule = gx.scale_by_spectrum(*args, weight_dimension_numbers=numbers, **fields)
    return gx.chain(rule, gx.scale(-0.1))


RULES = {
    "spectrum": spectrum(gx.contra_spectrum(0.2), to=gx.soft_spectrum(), share=0.5),
    "kept": spectrum(gx.contra_spectrum(0.2), keep_norm="schatten", preconditioning="schatten"),
    "equal": spectrum(equilibrate="both", adaptive=True),
    "root": spectrum(gx.power_spectrum(0.25)),
    "clip": spectrum(gx.clip_spectrum(0.3)),
    "aurora": gx.chain(gx.scale_by_aurora(weight_dimension_numbers=numbers), gx.scale(-0.1)),
    "neurons": gx.chain(gx.scale_by_neuron_rms(weight_dimension_numbers=numbers), gx.scale(-0.1)),
    "floor": gx.chain(gx.floor_update_norm(2.0, numbers), gx.scale(-0.1)),
    "muown": gx.step_by_muown(0.1, weight_decay=0.1, weight_dimension_numbers=numbers),
    "tangent": gx.chain(gx.project_to_tangent(numbers), gx.scale(-0.01)),
    "orthogonal": gx.chain(gx.scale(-0.1), gx.keep_orthogonal(weight_dimension_numbers=numbers)),
    "inputs": gx.chain(
        gx.precondition_by_inputs(update_interval=2, weight_dimension_numbers=numbers),
        gx.scale(-0.1),
    ),
}


def arrays(seed):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in SHAPES.items()}


def moments():
    """Moments of all but one of the parameters."""
    rng = np.random.default_rng(2)
    x = {"stack": (8, 20, 4), "up": (20, 8), "down": (20, 16)}
    x = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in x.items()}
    return {"stack": jax.vmap(gx.input_moment)(x.pop("stack"))} | {
        k: gx.input_moment(v) for k, v in x.items()
    }


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [2, 8])
def test_the_numbers_are_those_of_one_device(name, n):
    kinds = (AxisType.Auto,)
    mesh = jax.make_mesh((n,), ("x",), axis_types=kinds, devices=jax.devices()[:n])
    extra = {"input_moments": moments()} if name == "inputs" else {}

    def steps(tx):
        params, out = arrays(0), []
        state, step = jax.jit(tx.init)(params), jax.jit(tx.update)
        for k in range(5):
            g = jax.tree.map(lambda x, k=k: jnp.sin(x * (k + 1)), arrays(1))
            updates, state = step(g, state, params, **extra)
            params = gx.apply_updates(params, updates)
            out.append(params)
        return out

    expected = steps(RULES[name])
    got = steps(gd.shard_matrices(RULES[name], "x", PLACES, mesh))
    for ours, theirs in zip(got, expected, strict=True):
        for k in SHAPES:
            np.testing.assert_allclose(ours[k], theirs[k], rtol=0, atol=3e-4)
