"""Blocks of arrays that devices divide: they end where an array is cut."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradxform as gx
from gradxform.leaves.storage import CODES, Crossed, is_stored
from tests.leaves.test_storage import normal

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

FORMS = [(bits, code) for bits in CODES for code in CODES[bits]]
CUTS = {"last": (None, "x"), "both": ("y", "x"), "first": ("x",), "last by all": (None, ("x", "y"))}
ONE_SLOT = {
    "lion": gx.lion(1e-2),
    "signum": gx.signum(1e-2),
    "momentum": gx.sgd(1e-2, momentum=0.9),
    "rmsprop": gx.rmsprop(1e-2),
    "adagrad": gx.adagrad(1e-2),
}


def mesh(kind):
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)


@partial(jax.jit, static_argnums=(1, 2))
def alone(x, kind, form):
    """Return what one device would store of an array in the form of another."""
    rows = (form.rows,) if kind is Crossed else ()
    return kind.of(x, form.code, form.block, *rows).load()


CUT_FORMS = [(bits, code, "last", (8, 512)) for bits, code in FORMS]
CUT_FORMS += [(8, "float", cut, (16, 1072)) for cut in CUTS]
CUT_FORMS += [(4, code, cut, (8, 512)) for code in ("float", "rank1") for cut in CUTS]


@pytest.mark.parametrize("bits, code, cut, shape", list(dict.fromkeys(CUT_FORMS)))
def test_a_device_stores_its_piece_as_it_would_store_an_array(bits, code, cut, shape):
    place = NamedSharding(mesh(AxisType.Explicit), PartitionSpec(*CUTS[cut]))
    tx = gx.quantize_state(gx.trace(0.0), bits, 256, code, 64)
    x = jax.device_put(normal(shape), place)
    (kept,) = jax.tree.leaves(jax.jit(tx.init)({"w": x}), is_leaf=is_stored)
    assert all(not x.sharding.is_fully_replicated for x in jax.tree.leaves(kept))
    y = jax.jit(lambda kept, x: kept.store(x).load())(kept, x)
    assert y.sharding.is_equivalent_to(place, 2)
    for piece in x.addressable_shards:
        want = alone(jax.device_get(piece.data), type(kept), kept.form)
        np.testing.assert_array_equal(jax.device_get(y)[piece.index], want)


@pytest.mark.parametrize("cut", ["last", "both"])
@pytest.mark.parametrize("bits, code", [(8, "float"), (4, "float"), (4, "rank1")])
def test_a_step_where_blocks_end_at_cuts_exchanges_nothing(bits, code, cut):
    place = NamedSharding(mesh(AxisType.Explicit), PartitionSpec(*CUTS[cut]))
    tx = gx.quantize_state(gx.scale_by_adam(), bits, 256, code, 64)
    p, g = ({"w": jax.device_put(normal((8, 512), i), place)} for i in range(2))
    state = tx.init(p)
    step = jax.jit(tx.update).lower(g, state, p).compile()
    u, new = step(g, state, p)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    slots = [[*map(jax.typeof, jax.tree.leaves(s[1:]))] for s in (state, new, jax.jit(tx.init)(p))]
    assert slots[0] == slots[1] == slots[2]
    assert not re.search(r"all-\w+\(|collective|reduce-scatter\(", step.as_text())
    np.testing.assert_allclose(u["w"], np.sign(g["w"]), rtol=1e-3)


@pytest.mark.parametrize("bits, code", FORMS)
def test_a_cut_that_leaves_only_short_blocks_is_refused_by_name(bits, code):
    place = NamedSharding(mesh(AxisType.Explicit), PartitionSpec(None, "x"))
    params = {"a": {"w": jax.device_put(jnp.ones((8, 4 * 509)), place)}}
    tx = gx.quantize_state(gx.adam(1e-2), bits, 256, code)
    words = r"quantize_state: the slot mu of \['a'\]\['w'\], of shape \(8, 2036\), is cut as .*x.*"
    with pytest.raises(ValueError, match=words + "Cut another axis, or leave the slot out"):
        tx.init(params)


@pytest.mark.parametrize(
    "bits, name, cut",
    [(8, name, "last by all") for name in ONE_SLOT] + [(4, "lion", "last by all")],
)
def test_the_compiler_may_divide_what_has_one_stored_slot(bits, name, cut):
    place = NamedSharding(mesh(AxisType.Auto), PartitionSpec(*CUTS[cut]))
    tx = gx.quantize_state(ONE_SLOT[name], bits)
    params, grads = {"w": normal((512, 1024))}, {"w": normal((512, 1024), 1)}
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    params, grads = jax.device_put((params, grads), place)
    u, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    np.testing.assert_allclose(u["w"], want["w"], rtol=1e-5, atol=1e-7)
