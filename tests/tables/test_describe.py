"""`describe` lists the parts of any transform, and whose bytes its state's are."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradxform as gx
import gradxform.distributed as gd
from tests.catalogue import CASES, params
from tests.catalogue.distributed import alone

MATRICES = gx.ndim_at_least(2)
SHAPES = {
    "kernel": jax.ShapeDtypeStruct((500, 200), jnp.float32),
    "bias": jax.ShapeDtypeStruct((200,), jnp.bfloat16),
}


def listed(tx, *args):
    """Depth, label and name of every row."""
    return [(row.depth, row.label, row.name) for row in gx.describe(tx, *args).rows]


# What runs as a replica alone is wrapped for that, and without it has no axis to make a state on.
DESCRIBED = [name for name, case in CASES.items() if not isinstance(case.tx, alone)]


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_description_counts_the_bytes_of_the_state(name):
    tx, tree = CASES[name].tx, params()
    found = gx.describe(tx, tree)
    with jax.numpy_dtype_promotion("standard"):
        state = tx.init(tree)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert found.total_bytes == size == sum(row.bytes for row in found.rows)
    assert found.param_bytes == sum(x.nbytes for x in jax.tree.leaves(tree))
    for row in found.rows:
        assert row.bytes == sum(slot.bytes for slot in row.slots)
    assert [row[:6] for row in found.rows] == [row[:6] for row in gx.describe(tx).rows]
    assert str(found) and str(gx.describe(tx))


def test_a_chain_prints_as_a_table():
    rate = gx.linear_schedule(1e-3, 0.0, 100)
    tx = gx.chain(gx.clip_by_global_norm(1.0), gx.masked(gx.scale_by_lion(), MATRICES))
    tx = gx.chain(tx, gx.scale_by_learning_rate(rate, flip_sign=False))
    assert str(gx.describe(tx, SHAPES)) == textwrap.dedent("""\
        part                           hyperparameters                                  slot   dtype     bytes
        ------------------------------------------------------------------------------------------------------
        chain
          chain
            clip_by_global_norm        max_norm=1.0
            masked                     mask=ndim_at_least(n=2)
              scale_by_lion on 1 of 2  b1=0.9, b2=0.99, mode='hard', smooth_beta=1.0    count  int32       4 B
                                                                                        mu     float32  400 kB
          scale_by_learning_rate       learning_rate=linear_schedule(init_value=0.001,  count  int32       4 B
                                         end_value=0.0, transition_steps=100,
                                         transition_begin=0), flip_sign=False
        state 400 kB / parameters 400 kB in 2 leaves = 1.00""")  # noqa: E501


BEGIN_SMALL = {
    "prodigy": gx.prodigy,
    "dog": gx.dog,
    "dowg": gx.dowg,
    "mechanize": lambda: gx.mechanize(gx.adam(0.1)),
    "distance": lambda: gx.chain(gx.scale_by_distance_over_gradients(), gx.scale(-1.0)),
}
MOVING = {"adam": lambda: gx.adam(0.1), "dadapt_adamw": gx.dadapt_adamw, "cocob": gx.cocob}


@pytest.mark.parametrize("name", BEGIN_SMALL | MOVING)
def test_it_is_said_who_does_not_move_narrow_parameters(name):
    tx = (BEGIN_SMALL | MOVING)[name]()
    params = {"w": jnp.linspace(0.5, 2.0, 16).astype(jnp.bfloat16)}
    says = "master_weights(...)" in str(gx.describe(tx, params))
    for wide, form in (({"w": jnp.ones(3)}, tx), (params, gx.master_weights(tx))):
        assert not gx.describe(form, wide).notes
    p, state, step = params, tx.init(params), jax.jit(tx.update)
    for _ in range(100):
        updates, state = step(jax.tree.map(lambda x: 2 * x, p), state, p)
        p = gx.apply_updates(p, updates)
    moves = bool(jnp.any(p["w"] != params["w"]))
    assert says == (name in BEGIN_SMALL) == (not moves)


def test_without_parameters_there_are_no_sizes():
    found = gx.describe(gx.adamw(1e-3))
    assert "bytes" not in str(found) and found.total_bytes is None
    assert all(row.bytes is None and row.slots == () for row in found.rows)


def test_the_rows_of_a_description_are_data():
    _, adam, rate = gx.describe(gx.adam(0.25, b2=0.95), SHAPES).rows
    assert adam.name == "scale_by_adam" and adam.package == "gradxform" and not adam.foreign
    assert adam.hyperparameters["b2"] == 0.95 and "b2" not in adam.defaults
    assert "b1" in adam.defaults
    assert [slot.name for slot in adam.slots] == ["count", "mu", "nu"]
    assert adam.slots[1] == ("mu", ("float32",), 2, 4 * (500 * 200 + 200), None)
    assert rate.hyperparameters["learning_rate"] == 0.25


def test_wrappers_have_their_parts_inside():
    tx = gx.MultiSteps(gx.named_chain(("m", gx.trace(0.9)), ("lr", gx.scale(-0.1))), 4)
    assert listed(tx) == [
        (0, "", "MultiSteps"),
        (1, "", "named_chain"),
        (2, "m", "trace"),
        (2, "lr", "scale"),
    ]
    outer, *_ = gx.describe(tx, SHAPES).rows
    assert "acc_grads" in [slot.name for slot in outer.slots]
    assert set(outer.hyperparameters) >= {"every_k_schedule", "use_grad_mean"}
    assert "opt" not in outer.hyperparameters


def test_the_groups_of_a_partition_see_their_own_parameters():
    parts = {"big": optax.sgd(0.1, 0.9), "small": gx.adam(0.1)}
    tx = gx.partition(parts, gx.label_by(("big", MATRICES), ("small", True)))
    found = gx.describe(tx, SHAPES)
    assert [(row.label, row.name, row.leaves) for row in found.rows] == [
        ("", "partition", 2),
        ("big", "chain", 1),
        ("small", "chain", 1),
        ("", "scale_by_adam", 1),
        ("", "scale_by_learning_rate", 1),
    ]
    assert found.rows[1].foreign and found.rows[1].bytes == 4 * 500 * 200
    assert "big: chain (optax) on 1 of 2  not known" in str(found)


def test_injected_hyperparameters_are_shown_at_the_wrapper_and_at_the_parts():
    tx = gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(1e-3, 0.0, 10), b2=0.9)
    outer, chain, adam, *_ = gx.describe(tx, SHAPES).rows
    assert outer.name == "inject_hyperparams(adamw)" and chain.name == "chain"
    assert outer.hyperparameters["b2"] == 0.9 == adam.hyperparameters["b2"]
    assert [slot.name for slot in outer.slots] == ["count", "hyperparams", "hyperparams_states"]
    # A schedule may also stand where the factory itself takes none.
    tx = gx.inject_hyperparams(gx.scale_by_adam)(b1=gx.linear_schedule(0.5, 0.9, 10))
    outer, adam = gx.describe(tx, SHAPES).rows
    assert adam.hyperparameters["b1"] == 0.5 and adam.bytes == 4 + 2 * 4 * (500 * 200 + 200)


def test_parts_of_optax_are_marked_as_foreign():
    tx = gx.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), gx.scale(-0.1))
    found = gx.describe(tx, SHAPES)
    _, clip, adam, scale = found.rows
    assert (clip.name, clip.package, clip.foreign) == ("clip_by_global_norm", "optax", True)
    assert [slot.name for slot in adam.slots] == ["count", "mu", "nu"] and not scale.foreign
    assert "scale_by_adam (optax)" in str(found) and "not known" in str(found)
    assert listed(optax.sgd(0.1)) == [(0, "", "chain")]
    alone = gx.describe(optax.adam(0.1), SHAPES)
    assert [slot.name for slot in alone.rows[0].slots] == ["0.count", "0.mu", "0.nu"]


def test_the_same_part_twice_is_two_rows():
    momentum = gx.trace(0.9)
    found = gx.describe(gx.chain(momentum, momentum), SHAPES)
    assert [row.bytes for row in found.rows] == [0, 400_800, 400_800]
    assert momentum.init == gx.trace(0.9).init  # left as it was


def test_a_huge_model_is_described_without_allocating_it():
    huge = {"w": jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)}
    assert "8.8e+03 GB" not in (text := str(gx.describe(gx.adam(1e-3), huge)))
    assert "8796 GB" in text


def test_only_a_transform_can_be_described():
    with pytest.raises(TypeError, match=r"describe: tx is the class scale, .* call it: scale\("):
        gx.describe(gx.scale)


def test_a_transform_without_the_decorator_can_be_described():
    class undecorated(gx.Transform):
        def init(self, params):
            return {"seen": jnp.zeros((), jnp.int32)}

        def update(self, updates, state, params=None, **extra):
            return updates, state

    found = gx.describe(gx.chain(undecorated(), gx.scale(-0.1)), SHAPES)
    assert found.rows[1].name == "undecorated" and not found.rows[1].foreign
    assert found.rows[1].slots == (("seen", ("int32",), 1, 4, None),)


def shardings(*axes):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(8), ("data",))
    return NamedSharding(mesh, PartitionSpec(*axes))


def test_bytes_per_device_are_those_of_the_arrays():
    places = {"kernel": shardings("data"), "bias": shardings()}
    shapes = {"kernel": jax.ShapeDtypeStruct((64, 1024), jnp.float32), "bias": SHAPES["bias"]}
    for tx in (
        gx.adamw(gx.cosine_decay_schedule(1e-3, 100)),
        gx.quantize_state(gx.adam(1e-3)),
        gx.state_dtype(gx.adam(1e-3), jnp.bfloat16),
        gx.adafactor(1e-3, min_dim_size_to_factor=32),
        gx.offload_state(gx.adam(1e-3)),
    ):
        given = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places
        )
        found = gx.describe(tx, shapes, places)
        assert found == gx.describe(tx, given)
        put = gd.state_sharding(tx, shapes, places)
        arrays = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        state = jax.tree.leaves(jax.device_put(jax.jit(tx.init)(arrays), put))
        held = [(x.sharding.memory_kind, x.addressable_shards[0].data.nbytes) for x in state]
        kinds = dict.fromkeys(kind for kind, _ in held)
        assert found.device_bytes == {k: sum(n for kind, n in held if kind == k) for k in kinds}
        assert found.param_device_bytes == 64 * 1024 * 4 // 8 + 400
        slots = [slot for row in found.rows for slot in row.slots]
        assert sum(slot.device_bytes for slot in slots) == sum(found.device_bytes.values())
    held = "per device: state 1.6 kB in device + 65.5 kB in pinned_host / parameters 33.2 kB"
    assert str(found).endswith(held)


def test_bytes_per_device_need_a_mesh():
    spec = PartitionSpec()
    with pytest.raises(TypeError, match=r"describe: the sharding of \['kernel'\] must be a Named"):
        gx.describe(gx.adam(0.1), SHAPES, {"kernel": spec, "bias": shardings()})
    assert gx.describe(gx.adam(0.1), SHAPES).device_bytes is None
