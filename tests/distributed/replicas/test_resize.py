"""Going on with another number of replicas: what becomes of every array, and never by itself."""

import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed import resize_replicas
from gradxform.types import Everywhere
from tests.environment import environment, limit

# Orbax and what it imports warn of their own deprecations.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore"),
]


class State(NamedTuple):
    step: Everywhere
    count: Any
    m: Any
    center: Any


def tree(n=4):
    rows = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    state = State(np.int32(7), np.full(n, 5, np.int32), {"w": rows + 100}, {"w": rows + 200})
    return {"params": {"w": rows}, "state": (state,)}


@pytest.mark.parametrize("n", [1, 2, 6])
def test_by_default_parameters_are_averaged_and_slots_are_cycled(n):
    old = tree()
    new = resize_replicas(old, n)
    assert jax.tree.structure(new) == jax.tree.structure(old)
    state = new["state"][0]
    mean = old["params"]["w"].mean(0)
    np.testing.assert_array_equal(new["params"]["w"], np.stack([mean] * n))
    cycle = [i % 4 for i in range(n)]
    np.testing.assert_array_equal(state.m["w"], old["state"][0].m["w"][cycle])
    np.testing.assert_array_equal(state.center["w"], old["state"][0].center["w"][cycle])
    np.testing.assert_array_equal(state.count, np.full(n, 5))
    assert state.count.dtype == np.int32 and state.step == 7


def test_the_same_number_changes_nothing():
    old = tree()
    assert resize_replicas(old, 4) is old
    assert resize_replicas({"none": None, "state": State(np.int32(1), (), (), ())}, 3)


def test_ways_are_chosen_by_kind_and_by_name():
    old = tree()
    new = resize_replicas(old, 2, {"params": "cycle", "slots": "mean"})
    np.testing.assert_array_equal(new["params"]["w"], old["params"]["w"][:2])
    np.testing.assert_array_equal(new["state"][0].m["w"][1], old["state"][0].m["w"].mean(0))
    # The innermost name wins; centers are not slots.
    np.testing.assert_array_equal(new["state"][0].center["w"], old["state"][0].center["w"][:2])
    new = resize_replicas(old, 2, {"state": "mean", "m": "cycle", "center": "mean"})
    np.testing.assert_array_equal(new["state"][0].m["w"], old["state"][0].m["w"][:2])
    np.testing.assert_array_equal(
        new["state"][0].center["w"][0], old["state"][0].center["w"].mean(0)
    )
    np.testing.assert_array_equal(new["state"][0].count, [5, 5])  # no mean of integers


@pytest.mark.parametrize("way", ["mean", "cycle"])
def test_copies_of_parameters_are_resized_like_the_parameters(way):
    params = {"slow": jnp.ones((4, 3))}
    tx = gx.chain(
        gx.trace(0.9), gx.lookahead(gx.scale_by_madgrad(0.1), 2, 0.5), gx.scale_by_cocob()
    )
    state = jax.vmap(tx.init)(params)
    rows = np.arange(4)
    state = jax.tree.map(lambda x: np.asarray(x) + rows.reshape(-1, *[1] * (x.ndim - 1)), state)
    counts = {"params": way, "counts": "cycle"}
    slots, (fast, _, slow), cocob = resize_replicas({"s": state}, 2, counts)["s"]
    rows = rows[:, None] if way == "cycle" else np.full((4, 1), 1.5)
    for copy in (slow, fast.x0, cocob.init_particles):
        np.testing.assert_array_equal(copy["slow"], np.broadcast_to(1 + rows[:2], (2, 3)))
    for slot in (slots.trace, fast.s):  # whatever the parameters are called
        np.testing.assert_array_equal(slot["slow"], [[0.0] * 3, [1.0] * 3])
    reset = {"slots": "reset", "params": way, "counts": "cycle"}
    fresh = {"s": jax.tree.map(lambda x: np.zeros_like(x[0]), state)}
    (_, (fast, _, slow), _) = resize_replicas({"s": state}, 2, reset, fresh=fresh)["s"]
    assert not slow["slow"].any() and not fast.x0["slow"].any()


@pytest.mark.parametrize("of", [gx.moving_average, gx.power_moving_average])
def test_averages_are_resized_like_the_parameters(of):
    params = {"w": jnp.arange(12.0).reshape(4, 3)}
    state = jax.vmap(of(gx.sgd(0.1, 0.9)).init)(params)
    new = resize_replicas({"p": params, "s": state}, 2)
    for average in jax.tree.leaves([getattr(new["s"], k, ()) for k in ("average", "averages")]):
        np.testing.assert_array_equal(average, new["p"]["w"])


def test_reset_takes_slots_from_a_fresh_state():
    old, fresh = tree(), tree(1)
    fresh = jax.tree.map(lambda x: x[0] if np.ndim(x) else x, fresh)
    new = resize_replicas(old, 3, {"slots": "reset"}, fresh=fresh)
    np.testing.assert_array_equal(new["state"][0].m["w"], np.stack([np.arange(3) + 100] * 3))
    np.testing.assert_array_equal(new["state"][0].center["w"][1], [203, 204, 205])
    changed = {"params": fresh["params"], "state": (fresh["state"][0]._replace(count=np.int32(0)),)}
    new = resize_replicas(old, 3, {"slots": "reset"}, fresh=changed)
    np.testing.assert_array_equal(new["state"][0].count, [0, 0, 0])  # counts go with slots
    kept = resize_replicas(old, 3, {"slots": "reset", "counts": "equal"}, fresh=changed)
    np.testing.assert_array_equal(kept["state"][0].count, [5, 5, 5])
    whole = resize_replicas(old, 3, {"slots": "reset"}, fresh=tree(3))
    np.testing.assert_array_equal(whole["state"][0].m["w"], tree(3)["state"][0].m["w"])


def test_counts_that_differ_are_cycled_only_on_request():
    old = {"state": State(np.int32(0), np.arange(4, dtype=np.int32), (), ())}
    bad(lambda: resize_replicas(old, 2), ".count differs between the 4 replicas", '"cycle"')
    new = resize_replicas(old, 6, {"counts": "cycle"})
    np.testing.assert_array_equal(new["state"].count, [0, 1, 2, 3, 0, 1])
    new = resize_replicas(old, 2, {"count": "cycle"})
    np.testing.assert_array_equal(new["state"].count, [0, 1])


def test_resizing_keeps_dtypes_and_averages_in_float32():
    big = np.asarray([[60000.0], [60000.0], [1.0], [1.0]], np.float16)
    half = {"a": big, "b": jnp.ones((4, 2), jnp.bfloat16)}
    new = resize_replicas(half, 2)  # formed in float32
    np.testing.assert_array_equal(new["a"], np.full((2, 1), 30000.5, np.float16))
    assert new["b"].dtype == jnp.bfloat16 and new["b"].shape == (2, 2)
    flags = {"state": State(np.int32(0), np.ones(4, bool), (), ())}
    assert resize_replicas(flags, 2)["state"].count.dtype == bool
    keys = jax.random.split(jax.random.key(0), 4)
    new = resize_replicas({"key": keys}, 6, {"counts": "cycle"})
    assert jnp.all(new["key"][4] == keys[0]) and new["key"].dtype == keys.dtype
    nan = {"state": State(np.int32(0), (), (), np.full((4, 1), np.nan, np.float32))}
    assert np.all(np.isnan(resize_replicas(nan, 2, {"center": "equal"})["state"].center))


def bad(function, *words, kind=ValueError):
    with pytest.raises(kind) as error:
        function()
    assert all(word in str(error.value) for word in ("resize_replicas: ", *words)), error.value


def test_wrong_arguments_of_resize_replicas_are_refused():
    old = tree()
    bad(lambda: resize_replicas(old, 0), "new_n must be an int of at least 1, got 0")
    bad(lambda: resize_replicas(old, 2.0), "new_n must be an int of at least 1, got 2.0")
    bad(lambda: resize_replicas(old, 2, {"slots": "mena"}), "'slots' must be", "'mean'?")
    bad(lambda: resize_replicas(old, 2, {"slot": "mean"}), "nothing in the tree", "'slots'?")
    bad(lambda: resize_replicas(old, 2, {"slots": "reset"}), "resets ['state'][0].count", "fresh=")
    bad(lambda: resize_replicas(old, 2, {"slots": "reset"}, fresh={}), "the structure of the tree")
    bad(
        lambda: resize_replicas(old, 2, {"slots": "reset"}, fresh=tree(3)),
        "['state'][0].count of fresh must",
        "(3,)",
        "() or (2,)",
    )
    bad(lambda: resize_replicas({"a": np.ones((4, 1)), "b": np.ones(3)}, 2), "['b']", "['a'] has 4")
    bad(lambda: resize_replicas({"a": np.float32(1)}, 2), "['a'] is a scalar")


# ------------------------------------------------------------------------------------- a real run

TX = gd.model_average(gx.adam(0.1), "replica", period=2)


def replicas(n):
    return gd.Replicas("replica", n=n, mode="vmap")


def start(n):
    r = replicas(n)
    params = r.replicate({"w": jnp.ones(3), "b": jnp.zeros((2, 2))})
    return params, r.wrap(TX.init)(params)


def train(n, params, state, first, last):
    step = replicas(n).wrap(lambda g, s, p: TX.step(g, s, p))
    for t in range(first, last):
        rng = np.random.default_rng(t)
        grads = {
            "w": rng.normal(size=(n, 3)).astype(np.float32),
            "b": rng.normal(size=(n, 2, 2)).astype(np.float32),
        }
        params, state = step(grads, state, params)
    return params, state


def wanted(n):
    return jax.eval_shape(lambda: dict(zip(("params", "state"), start(n), strict=True)))


REFUSED = """
import sys
import orbax.checkpoint as ocp
from tests.distributed.replicas.test_resize import wanted
with ocp.StandardCheckpointer() as checkpointer:
    for n in (2, 6):
        try:
            checkpointer.restore(sys.argv[1], wanted(n))
        except ValueError as error:
            print("refused" if "shape" in str(error) else error)
"""


def test_orbax_neither_pads_nor_cuts_off(tmp_path):
    """In a process of its own: the reads that Orbax abandons are warned of at any later time."""
    ocp = pytest.importorskip("orbax.checkpoint")
    params, state = train(4, *start(4), 0, 1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "at1", {"params": params, "state": state})
    argv = [sys.executable, "-c", REFUSED, str(tmp_path / "at1")]
    longest = limit(40, 120)
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=longest)
    assert done.stdout.split() == ["refused", "refused"], done.stderr


@pytest.mark.parametrize("n", [2, 6])
def test_saved_with_four_and_resumed_with_another_number(tmp_path, n):
    ocp = pytest.importorskip("orbax.checkpoint")
    params, state = train(4, *start(4), 0, 3)
    saved = {"params": params, "state": state}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "at3", saved)
        checkpointer.wait_until_finished()
        target = jax.eval_shape(lambda: saved)
        found = resize_replicas(checkpointer.restore(tmp_path / "at3", target), n)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted(n)), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert int(found["state"].schedule_step) == 3
    with pytest.raises(ValueError, match=f"no leading axis of {n} replicas"):
        train(n, params, state, 3, 4)
    more, after = train(n, found["params"], found["state"], 3, 6)
    assert int(after.schedule_step) == 6 and int(after.global_step) == 3
    # At step 6 replicas meet; they began at the mean of the four.
    np.testing.assert_array_equal(more["w"], np.broadcast_to(more["w"][:1], (n, 3)))
    np.testing.assert_allclose(found["params"]["w"][0], np.mean(params["w"], 0), rtol=1e-6)
