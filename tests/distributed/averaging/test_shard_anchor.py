"""Anchors and outer states in parts, one for each device of a replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

INNER = ("x", "y")
# Divided by both axes, by one, and by none.
SHAPES = {"deep": (6, 4, 4), "matrix": (16, 8), "odd": (3, 5), "part": (2, 7), "vector": (64,)}
STEPS = 12


def pod(shape=(2, 2, 2), **more):
    mesh = jax.make_mesh(shape, ("dcn", *INNER), axis_types=(AxisType.Auto,) * 3)
    return gd.Replicas(("dcn",), inner_axes=INNER, mesh=mesh, manual=True, **more)


def make(dtype):
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    return lambda: jax.tree.map(lambda x: jnp.asarray(x, dtype), drawn)


def method(*, guard=False, **how):
    inner = gd.zero1(gx.adamw(0.02), INNER)
    inner = gx.apply_if_finite(inner, 5) if guard else inner
    return gd.diloco(inner, "dcn", inner_axes=INNER, **({"period": 3} | how))


def train(replicas, tx, dtype="float32", static=False):
    """Return all parameters after every step, and the state."""

    def train_step(params, state, grads, sync):  # each device has a gradient of its own
        return tx.step(jax.tree.map(lambda g: g[0], grads), state, params, sync=sync)

    step = replicas.wrap(train_step, static=("sync",))
    params, state = replicas.init(make(dtype), tx=tx)
    rng, seen = np.random.default_rng(1), []
    for t in range(1, STEPS + 1):
        grads = {name: rng.normal(size=(8, *shape)) for name, shape in SHAPES.items()}
        grads = replicas.split(jax.tree.map(lambda g: g.astype(dtype), grads))
        params, state = step(params, state, grads, sync=t % tx.period == 0 if static else None)
        seen.append(replicas.gather(params))
    return seen, state


CASES = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "fragments": {"fragments": 3},
    "a delay": {"delay": 2, "blend": 0.5},
    "fragments and a delay": {"period": 4, "fragments": 2, "delay": 1, "blend": 0.5},
    "8 bits": {"dtype": "bfloat16", "compress": gd.int8(16)},
    "8 bits of fragments": {"fragments": 3, "compress": gd.int8(16)},
    "signs": {"compress": gd.sign()},
    "the largest": {"compress": gd.top_k(0.25)},
    "wire_dtype": {"wire_dtype": "bfloat16"},
}


@pytest.mark.parametrize(
    "name, check_vma",
    [(name, False) for name in CASES]
    + [(name, True) for name in ("float32", "8 bits of fragments")],
)
def test_parts_of_an_anchor_give_the_numbers_of_a_whole_one(name, check_vma):
    how = dict(CASES[name])
    dtype = how.pop("dtype", "float32")
    replicas = pod(check_vma=check_vma)
    (whole, its_state), (parts, state) = (
        train(replicas, method(guard=not check_vma, shard_anchor=shard, **how), dtype)
        for shard in (False, True)
    )
    assert not np.array_equal(whole[0]["matrix"], whole[-1]["matrix"])
    for a, b in zip(whole, parts, strict=True):
        jax.tree.map(np.testing.assert_array_equal, b, a)
    # Together, the parts are the whole anchor.
    jax.tree.map(np.testing.assert_array_equal, state.anchor, its_state.anchor)


@pytest.mark.parametrize("fragments", [1, 3])
def test_each_device_keeps_its_part(fragments):
    how = {"fragments": fragments, "compress": gd.int8(16)}
    tx = method(shard_anchor=True, period=6, delay=1, blend=0.5, **how)
    _, state = pod().init(make("float32"), tx=tx)
    held = {name: x.addressable_shards[0].data.size for name, x in state.anchor.items()}
    sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
    # Rows that belong to different fragments are not divided over devices as well.
    parts = {"deep": 4, "matrix": 4, "odd": 1, "part": 2 if fragments == 1 else 1, "vector": 4}
    assert held == {name: sizes[name] // parts[name] for name in SHAPES}
    assert [x.addressable_shards[0].data.size for x in jax.tree.leaves(state.outer)] == [
        x.addressable_shards[0].data.size for x in jax.tree.leaves(state.pending)
    ]
    for slots in state.pending, state.feedback.own:
        kept, all_of_them = (
            sum(size(x) for x in jax.tree.leaves(slots))
            for size in (lambda x: x.addressable_shards[0].data.size, lambda x: x.size // 2)
        )
        assert kept <= 0.35 * all_of_them


def test_a_state_continues_with_devices_of_other_numbers():
    """The arrays of all devices together do not depend on how many divide them."""
    tx = method(shard_anchor=True)
    wide, narrow = pod(), pod((2, 4, 1))
    _, state = train(wide, tx)
    _, like = narrow.init(make("float32"), tx=tx)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, like)


def test_bytes_between_replicas_and_inside_of_them():
    """Each device sends its part between replicas, and gathers the rest inside."""
    params = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    copy = gd.hlo.copy_bytes(params)
    replicas = pod()
    sent = {}
    for shard_anchor in False, True:
        tx = gd.diloco(gx.sgd(0.1), "dcn", period=2, inner_axes=INNER, shard_anchor=shard_anchor)
        step = replicas.wrap(lambda p, s, tx=tx: tx.step(p, s, p, sync=True))
        args = replicas.init(lambda: params, tx=tx)
        between = inside = 0.0
        for one in gd.hlo.collectives(step.lower(*args).compile()):
            crosses = any(len({d // 4 for d in group}) > 1 for group in one.groups)
            between += one.sent if crosses else 0
            inside += 0 if crosses else one.sent
        sent[shard_anchor] = between / copy, inside / copy
    assert sent[True][0] == sent[False][0] == 0.25
    assert sent[True][1] <= sent[False][1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_with_an_exchange_gathers_once(dtype):
    """What an exchange moves are shards that the step before it has not gathered yet."""
    tx, replicas = method(shard_anchor=True, compress=gd.int8(16)), pod(check_vma=False)
    args = replicas.init(make(dtype), tx=tx)
    inside = {}
    for sync in False, True:
        step = replicas.wrap(lambda p, s, sync=sync: tx.step(p, s, p, sync=sync))
        found = gd.hlo.collectives(step.lower(*args).compile())
        local = [one for one in found if all(len({d // 4 for d in g}) == 1 for g in one.groups)]
        inside[sync] = sum(one.sent for one in local if one.kind == "all-gather")
    # Arrays that are not divided by both axes travel in slices between replicas.
    # These slices are float32, so that they weigh twice as much beside parameters of 16 bits.
    assert inside[True] <= {"float32": 1.1, "bfloat16": 1.2}[dtype] * inside[False]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_programs_without_a_condition_do_what_one_with_it_does(dtype):
    tx, replicas = method(shard_anchor=True, compress=gd.int8(16)), pod(check_vma=False)
    seen, _ = train(replicas, tx, dtype)
    other, _ = train(replicas, tx, dtype, static=True)
    jax.tree.map(np.testing.assert_array_equal, other, seen)


def test_a_state_with_another_anchor_is_refused():
    replicas = pod(check_vma=False)
    _, state = replicas.init(make("float32"), tx=method())
    tx = method(shard_anchor=True)
    params = replicas.init(make("float32"))
    step = replicas.wrap(lambda params, state: tx.step(params, state, params, sync=True))
    with pytest.raises(ValueError, match=r"outer: the state's anchor of \['deep'\] has shape"):
        step(params, state)
