"""ZeRO inside of DiLoCo, guarded and in 8 bits, beside the same training in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import gradxform as gx
import gradxform.distributed as gd
from tests.references import compression as ref

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SLICES, DEVICES, PERIOD, STEPS, BLOCK = 2, 4, 3, 9, 16
RATE, DECAY, B1, B2, EPS = 0.02, 0.1, 0.9, 0.999, 1e-8
SHAPES = {"w": (16, 8), "b": (64,)}


def drawn(*lead):
    rng = np.random.default_rng(len(lead))
    draw = {k: rng.normal(size=(*lead, *shape)) for k, shape in SHAPES.items()}
    return {k: x.astype(np.float32) for k, x in draw.items()}


def rounded(x, dtype):
    """Numbers as parameters of that dtype have them; float32 is as good as float64 here."""
    return x.astype(np.float32).astype(dtype).astype(np.float64) if dtype != "float32" else x


def in_numpy(start, grads, code, dtype):
    """Yield the anchor after every exchange, in float64, for one parameter.

    Adam moves the masters v, of which the parameters are roundings. These are compared with the
    anchor; an exchange moves a master by as much as its parameter.
    """
    x, outer = rounded(start.astype(np.float64), dtype), 0.0
    v = np.stack([x] * SLICES)
    m, n, count = np.zeros_like(v), np.zeros_like(v), np.zeros(SLICES, np.int64)
    own, owed = np.zeros((SLICES, start.size)), None
    for t, each in enumerate(grads.astype(np.float64), 1):
        for s, g in enumerate(each.mean(axis=1)):
            if not np.isfinite(g).all():
                continue  # the whole slice leaves the step out
            count[s] += 1
            m[s], n[s] = B1 * m[s] + (1 - B1) * g, B2 * n[s] + (1 - B2) * g**2
            mu, nu = m[s] / (1 - B1 ** count[s]), n[s] / (1 - B2 ** count[s])
            v[s] = v[s] - RATE * (mu / (np.sqrt(nu) + EPS) + DECAY * v[s])
        if t % PERIOD:
            continue
        p = rounded(v, dtype)
        moved = p - x
        if code is None:  # differences travel in the dtype of the parameters, as their mean does
            mean = rounded(rounded(moved, dtype).mean(axis=0), dtype)
        else:
            mean, own, owed = two_exchanges(moved.reshape(SLICES, -1), own, owed, code)
            mean = mean.reshape(start.shape)
        outer = 0.9 * outer - mean
        x = x - 0.7 * (0.9 * outer - mean)
        v = v + (x - p)
        yield x


def two_exchanges(moved, own, owed, code):
    """One round of `ref.in_two_exchanges`, with what is remembered of those before."""
    n, size = moved.shape
    length = -(-size // (n * BLOCK)) * BLOCK
    coded = ref.by_blocks(code, BLOCK)
    owed = np.zeros((n, length)) if owed is None else owed
    wanted = np.pad(moved + own, ((0, 0), (0, n * length - size)))
    messages = np.stack([coded(x) for x in wanted])
    totals = messages.mean(axis=0).reshape(n, length) + owed
    totals.reshape(-1)[size:] = 0
    answers = np.stack([coded(x) for x in totals])
    return answers.reshape(-1)[:size], (wanted - messages)[:, :size], totals - answers


def trained(grads, compress, dtype, check_vma):
    """Yield the anchor and the metrics after every exchange."""
    mesh = jax.make_mesh((SLICES, DEVICES), ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    r = gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True, check_vma=check_vma)
    adamw = gx.adamw(RATE, B1, B2, EPS, weight_decay=DECAY)
    inner = gx.apply_if_finite(gd.zero1(adamw, "ici"), 5)
    tx = gd.diloco(inner, "dcn", period=PERIOD, compress=compress)

    def train_step(params, state, g):  # each device has its own gradient
        g = jax.tree.map(lambda x: x[0], g)
        params, state = tx.step(g, state, params)
        return (params, state), {"norm": jnp.nan_to_num(gx.global_norm(g))}

    def make():
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), drawn())

    params, state = r.init(make, tx=tx)
    step = r.wrap(train_step, donate_argnums=(0, 1), has_aux=True)
    for t in range(STEPS):
        flat = {k: x[t].reshape(SLICES * DEVICES, *x.shape[3:]) for k, x in grads.items()}
        (params, state), metrics = step(params, state, r.split(flat))
        norms = [
            np.sqrt(sum(np.sum(x[t, s, d].astype(np.float64) ** 2) for x in grads.values()))
            for s in range(SLICES)
            for d in range(DEVICES)
        ]
        np.testing.assert_allclose(metrics["norm"], np.mean(np.nan_to_num(norms)), rtol=1e-5)
        if (t + 1) % PERIOD == 0:
            one, other = r.unreplicate(params, 0), r.unreplicate(params, 1)
            jax.tree.map(np.testing.assert_array_equal, one, other)
            yield r.unreplicate(state).anchor, state


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compressed", [False, True])
def test_slices_with_divided_states_follow_numpy(compressed, dtype, check_vma):
    grads = drawn(STEPS, SLICES, DEVICES)
    grads["b"][4, 1, 2] = np.nan  # one device of one slice, in one step
    grads["w"][4, 1, 2] = np.nan
    compress = gd.int8(BLOCK) if compressed else None
    codes = {"w": ref.int8, "b": ref.bfloat16} if compressed else {}  # b is too small for blocks
    enough = 0.999
    if compressed:  # numbers of 16 bits lie on a grid, and so between two codes more often
        enough = 0.97 if dtype == "float32" else 0.9
    wanted = {k: list(in_numpy(x, grads[k], codes.get(k), dtype)) for k, x in drawn().items()}
    for i, (anchor, state) in enumerate(trained(grads, compress, dtype, check_vma)):
        for name, want in wanted.items():
            # Where a sum lies between two codes, float32 may choose the other one.
            close = np.isclose(anchor[name], want[i], rtol=1e-5, atol=2e-6)
            assert np.mean(close) > enough, name
            assert np.max(np.abs(anchor[name] - want[i])) < 0.005, name
        mu = state.inner.inner_state.inner[0].mu["w"]
        assert mu.addressable_shards[0].data.size == np.prod(SHAPES["w"]) // DEVICES
        skipped = [0, 0] if i == 0 else [0, 1]
        assert np.asarray(state.inner.total_notfinite).tolist() == skipped
