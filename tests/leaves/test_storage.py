"""State in fewer bits: what a rule remembers, in blocks or in another dtype."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.engine import one_leaf, tiles
from gradxform.leaves.states import non_negative_fields, slot_fields
from gradxform.leaves.storage import (
    CODES,
    Blocks,
    LinearCode,
    Rounded,
    code_named,
    fetched,
    is_stored,
)
from gradxform.leaves.storage.codes import Float8Code
from gradxform.leaves.storage.rounded import rounded_by_chance
from tests.catalogue import TRANSFORMS
from tests.public import names_of

pytestmark = pytest.mark.numeric

EVERY_CODE = [
    code_named(name, bits, signed)
    for bits in CODES
    for name in CODES[bits]
    for signed in (True, False)
]
CODE_IDS = [f"{code.bits}-{i}" for i, code in enumerate(EVERY_CODE)]


def normal(shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def tree_like(params, seed):
    leaves, treedef = jax.tree.flatten(params)
    return jax.tree.unflatten(treedef, [normal(p.shape, seed + i) for i, p in enumerate(leaves)])


def loaded(state):
    """A state with arrays in the place of what is stored."""
    return jax.tree.map(
        lambda x: fetched(x).load() if is_stored(x) else x, state, is_leaf=is_stored
    )


# ------------------------------------------------------------------------------------- the codes


@pytest.mark.parametrize("code", EVERY_CODE, ids=CODE_IDS)
def test_a_code_has_the_error_that_it_says(code):
    x = np.concatenate([10.0 ** np.linspace(-12, 0, 4001), [0.0]]).astype(np.float32)
    y = np.asarray(code.decode(code.encode(jnp.asarray(x))))
    within = x >= np.float32(code.least)
    assert np.all(np.abs(y - x)[within] <= code.error * x[within] * 1.0001)
    assert np.all(np.abs(y - x)[~within] <= code.least * 1.0001)
    assert y[-1] == (code.least if isinstance(code, LinearCode) else 0) and y[-2] == 1
    if not code.signed:
        assert np.all(y[:-1] > 0)  # only 0 becomes 0
    elif not isinstance(code, Float8Code):  # which has numbers below its least
        assert not np.any(y[x < 0.49 * code.least]) and np.all(y[x > 0.51 * code.least] > 0)
    assert np.all(np.diff(y[:-1]) >= 0)


@pytest.mark.parametrize("code", EVERY_CODE, ids=CODE_IDS)
def test_what_a_code_can_write_stays(code):
    codes = jnp.arange(2**code.bits, dtype=jnp.uint8)
    if code.dtype != jnp.uint8:
        codes = jax.lax.bitcast_convert_type(codes, code.dtype)
    encode, decode = jax.jit(code.encode), jax.jit(code.decode)
    x = np.asarray(decode(codes))
    # Arrays of one size, so that one and the same program makes the numbers that are compared.
    x = np.where(np.isfinite(x) & ((x >= 0) | code.signed), x, np.float32(1))
    assert len(np.unique(x)) > 2 ** (code.bits - 1) - 8
    np.testing.assert_array_equal(decode(encode(x)), x)
    if code.signed:
        ours, others = (np.asarray(encode(y))[x > 0] for y in (x, -x))
        assert np.all(ours != others)
        np.testing.assert_array_equal(decode(encode(-x)), -x)


@pytest.mark.parametrize("bits", CODES)
@pytest.mark.parametrize("shape", [(7,), (256,), (300,), (3, 5), (2, 256), (4, 700), (2, 3, 130)])
def test_blocks_keep_an_array_to_the_error_of_the_code(shape, bits):
    x = normal(shape)
    code = code_named("float", bits, True)
    kept = jax.jit(lambda x: Blocks.of(x, code, 128))(x)
    assert (kept.shape, kept.dtype, kept.ndim) == (x.shape, x.dtype, x.ndim)
    y, again = jax.jit(lambda kept: (kept.load(), kept.store(kept.load()).load()))(kept)
    x, y = np.asarray(x), np.asarray(y)
    top = np.max(np.abs(x), axis=-1, keepdims=True)
    assert np.all(np.abs(y - x) <= np.maximum(code.error * np.abs(x), code.least * top))
    # Once more is the same, and so is another block's content.
    np.testing.assert_allclose(again, y, rtol=1e-6)
    assert sum(a.nbytes for a in jax.tree.leaves(kept)) < x.size * bits / 8 + x.size // 2 + 200


def test_a_block_with_an_infinity_keeps_its_other_entries_finite_and_one_with_a_nan_shows_it():
    x = jnp.ones((2, 8)).at[0, 3].set(jnp.inf)
    y = Blocks.of(x, code_named("float", 8, False), 8).load()
    assert np.all(np.isfinite(y)) and np.all(y[1] == 1)
    assert np.all(
        np.isnan(Blocks.of(x.at[0, 3].set(jnp.nan), code_named("float", 8, True), 8).load()[0])
    )


def test_rounding_by_chance_has_the_right_mean_and_keeps_what_is_exact():
    x = jnp.full((200, 100), 1 + 1 / 512)  # a quarter of the way to the next bfloat16
    y = np.asarray(rounded_by_chance(x, jnp.asarray([5, 0], jnp.uint32)), np.float32)
    assert set(np.unique(y)) == {1.0, 1 + 1 / 128}
    assert abs(np.mean(y) - float(x[0, 0])) < 1e-4
    other = np.asarray(rounded_by_chance(x, jnp.asarray([5, 1], jnp.uint32)), np.float32)
    assert 0.3 < np.mean(y != other) < 0.45  # 2 * 1/4 * 3/4: nothing in common
    rows = np.mean(y, axis=0)
    assert np.std(rows) < 1.3 * np.sqrt(0.25 * 0.75 / 200) / 128  # columns do not repeat
    exact = jnp.asarray([0.0, 1.5, -2.0, jnp.inf, -jnp.inf, jnp.nan])
    kept = rounded_by_chance(exact, jnp.asarray([1, 1], jnp.uint32)).astype(jnp.float32)
    np.testing.assert_array_equal(kept, exact)


def test_small_changes_count_on_average_when_rounded_by_chance():
    x = Rounded.of(jnp.ones(4000), jax.random.key(0))
    for _ in range(100):
        x = x.store(x.load() - 1e-4)
    assert abs(float(jnp.mean(x.load())) - 0.99) < 1e-3
    # Each step moves an entry with a chance of 1/39, whatever the others have done.
    assert float(jnp.mean(x.load() == 1)) < 0.12


def test_slots_that_are_alike_are_rounded_apart():
    tx = gx.state_dtype(gx.trace(0.9), stochastic=True, key=0)
    params = {k: jnp.zeros(4000) for k in "ab"}
    _, state = tx.update(jax.tree.map(lambda p: p + 1 + 1 / 512, params), tx.init(params), params)
    a, b = (np.asarray(state.trace[k].load()) for k in "ab")
    assert 0.3 < np.mean(a != b) < 0.45


# --------------------------------------------------------------------------- the rules and tiles


def rows_of(part, rows):
    """Return the rows of a part, one for each form of its state: the others store the same."""
    forms = {}
    for name, case in rows.items():
        if name.split("/")[0] == part:
            forms.setdefault(str(jax.eval_shape(case.bound.init, case.params())), case)
    return list(forms.values())


RULES = {
    name: case for name, case in TRANSFORMS.items() if case.examples is None and not case.extra
}


@pytest.mark.parametrize("part", dict.fromkeys(name.split("/")[0] for name in RULES))
def test_every_rule_of_entries_or_rows_is_stored_to_the_error_of_the_code_and_others_refuse(part):
    for case in rows_of(part, RULES):
        check_stored(case)


def check_stored(case):
    params = case.params()
    try:
        tx = gx.quantize_state(case.tx, min_size=0, block=4)
        state = jax.jit(tx.init)(params)
    except TypeError as error:
        words = "looks at (whole|the whole)|computes with the slot|which keeps its state itself"
        assert re.search(words, str(error)), error
        return
    if not any(map(is_stored, jax.tree.leaves(state, is_leaf=is_stored))):
        return  # it remembers nothing that qualifies
    (g,) = case.gradients(params, 1)
    start = jax.jit(loaded)(state)  # what the rule sees: the first state may be rounded too
    _, want = case.compiled(g, start, params)
    _, state = jax.jit(tx.update)(g, state, params)
    kept = jax.tree.leaves(state, is_leaf=is_stored)
    for x, y in zip(kept, jax.tree.leaves(want), strict=True):
        if not is_stored(x):
            continue
        assert isinstance(x, Blocks)
        y, code = np.asarray(y), x.form.code
        assert code.signed or np.all(y >= 0)
        size = y.shape[-1]
        top = np.concatenate(
            [
                np.broadcast_to(np.max(np.abs(part), axis=-1, keepdims=True, initial=0), part.shape)
                for part in np.split(y, range(4, size, 4), axis=-1)
            ],
            axis=-1,
        )
        bound = np.maximum(code.error * np.abs(y), code.least * top) * 1.01 + 1e-7 * top
        assert np.all(np.abs(np.asarray(x.load()) - y) <= bound)
    plain = jax.eval_shape(case.tx.init, params)
    assert jax.tree.structure(plain) == jax.tree.structure(start)


@pytest.mark.parametrize("part", dict.fromkeys(name.split("/")[0] for name in TRANSFORMS))
def test_slots_that_say_so_are_never_negative(part):
    for case in rows_of(part, TRANSFORMS):
        params = case.params()
        state = case.bound.init(params)
        if not list(non_negative(state)):
            continue
        for g in case.gradients(params, 3):
            _, state = case.compiled(g, state, params)
        for field, x in non_negative(state):
            assert np.all(np.asarray(x) >= 0), field


def non_negative(state):
    """Yield the arrays of which a state says so, with the names of their fields."""
    nodes = [state]
    while nodes:
        node = nodes.pop()
        if hasattr(node, "_fields"):
            for field in non_negative_fields(type(node)):
                for x in jax.tree.leaves(getattr(node, field)):
                    yield field, x
        if isinstance(node, tuple | list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()


# Shapes, and the codes that each is tried with. What matters to tiles is the kind of array (vector,
# matrix, more axes, one row), whether tiles divide it, and whether blocks do; to the code it is two
# entries in a byte, and scales of two axes. Every code meets every one of these, and every shape
# meets a code; each of the 27 pairs would be two programs more that cut in the same places.
SHAPES = {
    (64, 300): ("4-float", "4-rank1"),
    (70, 64): ("8-float",),
    (20000,): ("8-float",),
    (20001,): ("4-float",),
    (5000,): ("4-float", "4-rank1"),
    (4104,): ("4-rank1",),
    (3, 5, 64, 32): ("8-float", "4-float", "4-rank1"),
    (1, 9000): ("8-float", "4-rank1"),
    (67, 129): ("8-float", "4-float", "4-rank1"),
}
TILED = [(shape, code) for shape, codes in SHAPES.items() for code in codes]


def check_tiles(tx, shape, monkeypatch):
    """Require that tiles give the numbers of whole leaves; return whether there were tiles."""
    params, results, folded = {"w": normal(shape)}, [], one_leaf.apply_folded
    for entries, first in ((1 << 10, no_folds), (1 << 40, no_folds), (1 << 40, folded)):
        monkeypatch.setattr(one_leaf, "apply_folded", first)
        monkeypatch.setattr(tiles, "ON_CPU", entries)
        monkeypatch.setattr(tiles, "SMALL", 1 if entries < 1 << 20 else 1 << 41)
        jax.clear_caches()
        state = tx.init(params)
        for i in range(3):
            updates, state = jax.jit(tx.update)({"w": normal(shape, i)}, state, params)
        text = str(jax.make_jaxpr(tx.update)(params, state, params))
        results.append((updates, state, "while" in text or "scan" in text))
    (u, s, looped), *others = results
    for v, t, is_loop in others:
        assert not is_loop
        np.testing.assert_allclose(u["w"], v["w"], rtol=1e-5, atol=1e-7)
        for a, b in zip(jax.tree.leaves(loaded(s)), jax.tree.leaves(loaded(t)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    return looped


def no_folds(*arguments):
    """Return None, so that leaves go through tiles."""


@pytest.mark.parametrize("shape, how", TILED, ids=str)
def test_tiles_change_nothing(shape, how, monkeypatch):
    bits, code = how.split("-")
    tx = gx.quantize_state(gx.adamw(0.1, weight_decay=0.1), int(bits), 64, code)
    least = 128 if code == "rank1" and len(shape) == 2 else 2  # rows of two squares
    assert check_tiles(tx, shape, monkeypatch) == (shape[0] >= least)


def check_temporaries(tx, held):
    """Require a state of at most so many copies of the parameters, and few temporary arrays."""
    params = {f"w{i}": jnp.ones((256, 1024)) for i in range(8)}
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    state = tx.init(params)
    held_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    assert held_bytes < held * size

    def step(params, state):
        x = jnp.ones((2, 256))
        grads = jax.tree.map(lambda p: x.T @ (x @ p), params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    step = jax.jit(step, donate_argnums=(0, 1))
    temp = step.lower(params, state).compile().memory_analysis().temp_size_in_bytes
    # The gradients, one copy of what the state holds, and tiles of an array; float32 moments of all
    # leaves would be 2.
    assert temp < size + held_bytes + 2 * 4 * tiles.ON_CPU


def test_a_step_holds_no_float32_copy_of_the_state():
    check_temporaries(gx.quantize_state(gx.adamw(1e-3)), 0.52)


# ------------------------------------------------------------------------------- the two wrappers

PARAMS = {"w": normal((64, 128)), "b": normal((128,)), "n": normal(())}


@pytest.mark.parametrize("bits", CODES)
def test_a_state_resumes_bitwise_and_is_a_carry(bits):
    tx = gx.quantize_state(gx.adam(1e-2), bits, min_size=64)
    grads = [tree_like(PARAMS, i) for i in range(6)]

    @jax.jit
    def step(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        return (gx.apply_updates(params, updates), state), None

    straight = PARAMS, tx.init(PARAMS)
    for g in grads:
        straight, _ = step(straight, g)
    halfway = PARAMS, tx.init(PARAMS)
    for g in grads[:3]:
        halfway, _ = step(halfway, g)
    leaves, treedef = jax.tree.flatten(halfway)
    halfway = jax.tree.unflatten(treedef, [jnp.asarray(np.asarray(x)) for x in leaves])
    for g in grads[3:]:
        halfway, _ = step(halfway, g)
    for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(halfway), strict=True):
        np.testing.assert_array_equal(a, b)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    scanned, _ = jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), stacked)
    for a, b in zip(
        jax.tree.leaves(loaded(straight)), jax.tree.leaves(loaded(scanned)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_does_not_qualify_keeps_its_form():
    tree = {
        "w": jnp.ones((64, 64)),
        "small": jnp.ones(63),
        "scalar": jnp.ones(()),
        "none": jnp.ones((0, 3)),
    }
    state = gx.quantize_state(gx.adam(1.0), min_size=64).init(tree)[0]
    assert isinstance(state.mu["w"], Blocks) and state.count.dtype == jnp.int32
    assert all(isinstance(state.mu[k], jax.Array) for k in ("small", "scalar", "none"))


def test_which_selects_slots_and_parameters():
    tree = {"a": {"w": jnp.ones((64, 64))}, "b": {"w": jnp.ones((64, 64))}}

    def stored(which):
        (state, *_) = gx.quantize_state(gx.adam(1.0), min_size=0, which=which).init(tree)
        return {
            f"{slot}/{k}" for slot, k in itertools.product(("mu", "nu"), tree)
            if is_stored(getattr(state, slot)[k]["w"])
        }  # fmt: skip

    assert stored("nu") == {"nu/a", "nu/b"}
    assert stored(("mu", "nu")) == {"mu/a", "mu/b", "nu/a", "nu/b"}
    assert stored(gx.path_matches("a")) == {"mu/a", "nu/a"}
    assert stored({"a": False, "b": True}) == {"mu/b", "nu/b"}


def test_a_slot_that_is_left_out_lets_what_computes_with_it_be():
    tree = {"w": jnp.ones((256, 256))}
    whole = gx.MultiSteps(gx.trace(0.9), 3)
    with pytest.raises(TypeError, match="MultiSteps computes with the slot acc_grads"):
        gx.quantize_state(whole).init(tree)
    state = gx.quantize_state(whole, which="trace").init(tree)
    assert is_stored(state.inner_opt_state.trace["w"]) and not is_stored(state.acc_grads["w"])


def test_second_moments_spend_no_bit_on_a_sign():
    (state, *_) = gx.quantize_state(gx.amsgrad(1.0), min_size=0).init(PARAMS)
    assert state.mu["w"].form.code.signed
    assert not state.nu["w"].form.code.signed and not state.nu_max["w"].form.code.signed


def test_storages_can_be_nested():
    tx = gx.state_dtype(gx.quantize_state(gx.adam(1e-2), which="nu"), which="mu")
    state = tx.init({"w": jnp.ones((64, 128))})
    updates, later = jax.jit(tx.update)({"w": jnp.ones((64, 128))}, state)
    assert later[0].mu["w"].dtype == jnp.bfloat16 and is_stored(later[0].nu["w"])
    np.testing.assert_allclose(updates["w"], -1e-2, rtol=1e-2)


STORED = {
    "blocks": gx.quantize_state(gx.adam(0.1), min_size=0),
    "chance": gx.state_dtype(gx.adam(0.1), stochastic=True, key=1),
}


@pytest.mark.parametrize("tx", STORED.values(), ids=STORED)
def test_row_sparse_gradients_touch_only_their_rows(tx):
    params = {"table": normal((50, 16))}
    state = tx.init(params)
    _, state = tx.update({"table": normal((50, 16), 1)}, state, params)
    rows = gx.sparse.RowSparse(jnp.asarray([3, 7]), normal((2, 16), 2), 50)
    updates, later = jax.jit(tx.update)({"table": rows}, state, params)
    before, after = loaded(state)[0], loaded(later)[0]
    others = np.setdiff1d(np.arange(50), [3, 7])
    for slot in ("mu", "nu"):
        a, b = getattr(before, slot)["table"], getattr(after, slot)["table"]
        np.testing.assert_array_equal(a[others], b[others])
        assert np.all(np.any(np.asarray(a != b)[[3, 7]], axis=1))
    dense = jax.jit(tx.update)({"table": rows.to_dense()}, state, params)
    np.testing.assert_allclose(
        updates["table"].to_dense()[jnp.asarray([3, 7])],
        dense[0]["table"][jnp.asarray([3, 7])],
        rtol=1e-5,
    )


def test_rows_of_a_vector_in_blocks_are_refused_by_name():
    tx = gx.quantize_state(gx.adam(0.1), min_size=0)
    state = tx.init({"b": jnp.ones(64)})
    rows = gx.sparse.RowSparse(jnp.asarray([3]), jnp.ones(1), 64)
    with pytest.raises(TypeError, match=r"scale_by_adam: its slot for \['b'\] is stored in blocks"):
        tx.update({"b": rows}, state, {"b": jnp.ones(64)})


def test_it_prints_compares_and_goes_to_a_config():
    tx = gx.quantize_state(gx.adamw(1e-3), 4, 128, which=("mu", "nu"))
    assert gx.from_config(gx.to_config(tx)) == tx
    assert eval(repr(tx), names_of(gx)) == tx


def test_describe_shows_bytes_as_stored():
    text = str(gx.describe(gx.quantize_state(gx.adam(1e-3)), {"w": jnp.ones((512, 1024))}))
    assert "uint8, float32" in text and "= 0.51" in text


# -------------------------------------------------------------------------------------- on a mesh


def on_eight():
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize("bits", CODES)
@pytest.mark.parametrize("spec", [("data",), (None, "data"), ()], ids=str)
def test_a_sharded_state_is_quantized_without_communication(spec, bits):
    mesh = on_eight()
    params = {"w": normal((512, 2048))}
    grads = {"w": normal((512, 2048), 1)}
    tx = gx.quantize_state(gx.adam(0.1), bits, 128)
    want = jax.jit(tx.update)(grads, tx.init(params), params)
    place = jax.sharding.NamedSharding(mesh, jax.P(*spec))
    params, grads = jax.device_put((params, grads), place)
    state = jax.jit(tx.init)(params)
    step = jax.jit(tx.update).lower(grads, state, params).compile()
    assert not gd.hlo.collectives(step)
    got = step(grads, state, params)
    for a, b in zip(jax.tree.leaves(loaded(got)), jax.tree.leaves(loaded(want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_zero1_stores_its_pieces():
    mesh = on_eight()
    params = {"w": normal((64, 256)), "b": normal((256,))}
    tx = gd.zero1(gx.quantize_state(gx.adam(0.1), min_size=64), "data")
    plain = gd.zero1(gx.adam(0.1), "data")

    def two(tx):
        def run(params):
            state = tx.init(params)
            grads = gd.local_view(params, "data")
            _, state = tx.update(grads, state, params)
            return tx.update(grads, state, params)[0]

        specs = jax.P()
        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=specs))(params)

    for a, b in zip(jax.tree.leaves(two(tx)), jax.tree.leaves(two(plain)), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)


@pytest.mark.parametrize("bits", CODES)
def test_zero1_says_how_what_it_stores_lies(bits):
    mesh = on_eight()
    params = {"w": normal((64, 256)), "b": normal((2048,)), "k": normal((7, 5, 64))}
    tx = gd.zero1(gx.quantize_state(gx.adam(0.1), bits, 64, min_size=64), "data")
    specs = tx.state_specs(params, mesh)
    init = jax.shard_map(tx.init, mesh=mesh, in_specs=jax.P(), out_specs=specs)
    state = jax.jit(init)(params)

    def step(params, state):
        return tx.step(gd.local_view(params, "data"), state, params)

    places = jax.P(), specs
    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=places, out_specs=places))
    params, state = step(params, state)
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.all(jnp.isfinite(x))), params))
    nu = state.inner[0].nu["w"]
    assert nu.shape == (64, 256) and nu.codes.sharding.spec[0] == "data"
    assert nu.scales.sharding.spec[0] == "data"


def test_state_sharding_lays_codes_and_scales_like_their_parameter():
    mesh = on_eight()
    place = jax.sharding.NamedSharding(mesh, jax.P(None, "data"))
    params = jax.device_put({"w": jnp.ones((64, 4096)), "v": jnp.ones((64, 1024))}, place)
    tx = gx.chain(
        gx.quantize_state(gx.adam(0.1), 4), gx.state_dtype(gx.trace(0.9), stochastic=True, key=0)
    )
    places = gd.state_sharding(tx, params)
    state = jax.jit(tx.init, out_shardings=places)(params)
    mu = state[0][0].mu
    assert mu["w"].codes.sharding.spec == mu["w"].scales.sharding.spec == jax.P(None, "data")
    assert mu["v"].scales.sharding.spec == jax.P()  # four blocks on eight devices
    assert state[1].trace["w"].array.sharding.spec == jax.P(None, "data")


def test_slots_of_a_state_are_known_by_both_kinds():
    assert slot_fields(gx.ScaleByAdamState) == ("mu", "nu")
    assert non_negative_fields(gx.ScaleByAdamState) == ("nu",)
