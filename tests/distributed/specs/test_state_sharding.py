"""Where the leaves of states lie, from where the parameters lie; and how one array is divided."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

import gradxform as gx
from gradxform import tree
from gradxform.distributed import state_sharding
from gradxform.distributed.shares.division import division_of_shape

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SHAPES = {"emb": (512, 256), "square": (256, 256), "b": (256,), "s": (), "c": {"k": (3, 3, 8, 256)}}
SPECS = {
    "emb": P("x", "y"),
    "square": P("x", "y"),
    "b": P("y"),
    "s": P(),
    "c": {"k": P(None, None, "x", "y")},
}
PARAMS = jax.tree.map(
    lambda s: jax.ShapeDtypeStruct(s, jnp.float32), SHAPES, is_leaf=lambda s: type(s) is tuple
)
MATRICES = gx.ndim_at_least(2)


def is_spec(x):
    return isinstance(x, P)


def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def loose(function, *args):
    """Optax is not made for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return function(*args)


CHAINS = {
    "adamw": gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(0.1)),
    "masked": gx.masked(gx.adam(0.1), MATRICES),
    "partition": gx.partition(
        {"m": gx.adam(0.1), "rest": gx.sgd(0.1, 0.9)}, gx.label_by(("m", MATRICES), ("rest", True))
    ),
    "accumulating": gx.MultiSteps(gx.lookahead(gx.sgd(0.1, 0.9), 2, 0.5), 2),
    "injected": gx.named_chain(("adam", gx.inject_hyperparams(gx.adam)(0.1))),
    "novograd": gx.novograd(0.1),
    "optax.adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "optax.multi_transform": optax.multi_transform(
        {"a": optax.adam(0.1), "b": optax.sgd(0.1, momentum=0.9)},
        {"emb": "a", "square": "b", "b": "b", "s": "b", "c": "a"},
    ),
    "optax in ours": gx.chain(gx.clip(1.0), optax.inject_hyperparams(optax.adam)(0.1)),
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_slots_like_the_parameters_are_sharded_like_them(name):
    tx = CHAINS[name]
    places = loose(state_sharding, tx, PARAMS, SPECS)
    state = loose(jax.eval_shape, tx.init, PARAMS)
    assert jax.tree.structure(places, is_leaf=is_spec) == jax.tree.structure(state)
    flat = jax.tree_util.tree_flatten_with_path(state)[0]
    seen = 0
    for (path, leaf), place in zip(flat, jax.tree.leaves(places, is_leaf=is_spec), strict=True):
        if not leaf.shape:
            assert place == P()
            continue
        words = [str(getattr(k, "key", getattr(k, "name", ""))) for k in path]
        wanted = (
            SPECS["c"]["k"]
            if "k" in words
            else next(SPECS[w] for w in reversed(words) if w in SPECS)
        )
        assert place == wanted, path
        seen += 1
    assert seen >= 3


def only(tx, field, params=None):
    """The places of the one field of that name."""
    return tree.get(loose(state_sharding, tx, params or PARAMS, SPECS), field)


def test_the_rows_and_columns_of_adafactor_are_sharded_like_their_axes():
    for lib in gx, optax:
        tx = lib.adafactor(1e-3)
        # Means over the longest axis, and over the second longest: of the shorter and the longer.
        rows, columns = only(tx, "v_row"), only(tx, "v_col")
        assert (rows["emb"], columns["emb"]) == (P("y"), P("x"))
        assert (rows["square"], columns["square"]) == (P("x"), P("y"))
        assert rows["b"] == columns["c"]["k"] == P()  # placeholders
        assert only(tx, "v")["c"]["k"] == SPECS["c"]["k"]


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 4, 8), (8, 8, 4), (16, 8, 8, 8)])
def test_means_over_one_of_several_axes_of_one_length_lack_that_one(shape):
    """Whether a mean changes with the gradient's entries along an axis shows which axes it has."""
    names = "abcd"[: len(shape)]
    params = {"w": jnp.zeros(shape)}
    for lib in gx, optax:
        tx = lib.scale_by_factored_rms(min_dim_size_to_factor=2)
        places, state = state_sharding(tx, params, P(*names)), tx.init(params)
        for field in "v_row", "v_col":
            kept = {}
            for d, name in enumerate(names):
                line = 1.0 + np.arange(shape[d])
                g = np.broadcast_to(
                    np.expand_dims(line, [i for i in range(len(shape)) if i != d]), shape
                )
                _, new = loose(tx.update, {"w": jnp.asarray(g, jnp.float32)}, state, params)
                mean = np.asarray(getattr(new, field)["w"])
                for i in range(mean.ndim):
                    if np.ptp(mean, axis=i).max() > 1e-3:
                        kept[i] = name
            assert getattr(places, field)["w"] == P(*(kept[i] for i in range(len(shape) - 1)))


def test_the_matrices_of_shampoo_are_sharded():
    places = only(gx.step_by_shampoo(0.1), "statistics")
    assert places["emb"] == (P("x"), P("y"))
    assert places["c"]["k"] == (P(), P(), P("x"), P("y"))
    assert only(gx.step_by_shampoo(0.1), "gbar")["emb"] == P("x", "y")


def test_slots_of_other_shapes_are_sharded_by_what_they_share():
    assert only(gx.scale_by_rowwise_rss(), "sum_of_squares") == {
        "emb": P("x"),
        "square": P("x"),
        "b": P("y"),
        "s": P(),
        "c": {"k": P()},
    }
    blocks = only(gx.scale_by_adam_mini(), "nu")  # sums keep the axes that they are over
    assert (blocks["square"], blocks["b"]) == (P(None, "y"), P())
    galore = gx.scale_by_galore(rank=8)
    assert only(galore, "projector")["emb"] == P("x")
    assert only(galore, "mu")["emb"] == P(None, "y")
    stacks = gx.scale_by_galore(8, weight_dimension_numbers=gx.GaLoreDimensionNumbers(-2, -1))
    assert only(stacks, "projector")["c"]["k"] == P(None, None, "y")  # (3, 3, longer side, rank)
    assert only(stacks, "mu")["c"]["k"] == P(None, None, "x")
    assert only(gx.scale_by_sm3(), "mu")["emb"] == P()  # rows and columns in one vector
    assert only(gx.scale_by_sm3(), "nu")["emb"] == P("x", "y")
    assert only(optax.sm3(0.1), "mu")["emb"] == [P("x"), P("y")]
    assert only(gx.scale_by_ggt(), "buffer")["emb"] == P(None, "x", "y")
    memory = only(optax.scale_by_lbfgs(3), "diff_params_memory")
    assert memory["emb"] == P(None, "x", "y") and memory["s"] == P()


def test_one_vector_for_all_parameters_is_replicated():
    for tx in (gx.flatten(gx.adam(0.1)), gx.masked(gx.flatten(gx.adam(0.1)), MATRICES)):
        places = state_sharding(tx, PARAMS, SPECS)
        assert all(place == P() for place in jax.tree.leaves(places, is_leaf=is_spec))


def test_an_init_that_reads_its_parameters_is_accepted():
    tx = gx.GradientTransformation(
        lambda params: {"m": {k: jnp.zeros_like(params[k]) for k in ("emb", "b")}},
        lambda u, s, p=None: (u, s),
    )
    assert state_sharding(tx, PARAMS, SPECS) == {"m": {"emb": P("x", "y"), "b": P("y")}}


def test_named_shardings_are_those_of_the_state_from_start_to_end():
    m = mesh()
    shapes = {"w": (16, 8), "b": (8,)}
    specs = {"w": P("x", "y"), "b": P("y")}
    places = {k: NamedSharding(m, specs[k]) for k in specs}
    params = {k: jax.device_put(jnp.ones(s), places[k]) for k, s in shapes.items()}
    tx = gx.chain(gx.scale_by_factored_rms(min_dim_size_to_factor=4), gx.adam(0.1))
    wanted = state_sharding(tx, params)  # from the parameters themselves
    assert jax.tree.leaves(wanted) == jax.tree.leaves(state_sharding(tx, params, places))
    state = jax.jit(tx.init, out_shardings=wanted)(params)
    updates, state = jax.jit(tx.update, out_shardings=(places, wanted))(params, state, params)
    for x, place in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
        assert x.sharding.is_equivalent_to(place, x.ndim)
    # 16 rows over "x", 8 columns over "y".
    assert state[0].v_row["w"].sharding.spec == P("y")
    assert state[0].v_col["w"].sharding.spec == P("x")
    alone = jax.tree.map(np.asarray, params)
    theirs, _ = tx.update(alone, tx.init(alone), alone)
    np.testing.assert_allclose(updates["w"], theirs["w"], rtol=1e-6)


def test_memory_and_single_devices_are_kept():
    device = SingleDeviceSharding(jax.devices()[1])
    assert set(jax.tree.leaves(state_sharding(gx.adam(0.1), PARAMS, device))) == {device}
    kinds = [kind.kind for kind in jax.devices()[0].addressable_memories()]
    place = NamedSharding(mesh(), P(), memory_kind=kinds[-1])
    for found in jax.tree.leaves(state_sharding(gx.adam(0.1), PARAMS, place)):
        assert found.memory_kind == kinds[-1]


def test_shardings_may_come_in_other_containers():
    params = {"layers": [PARAMS["emb"], PARAMS["b"]]}
    specs = {"layers": (P("x", "y"), P("y"))}
    assert state_sharding(gx.trace(0.9), params, specs).trace == {"layers": [P("x", "y"), P("y")]}


@pytest.mark.parametrize(
    "params, given, kind, words",
    [
        (PARAMS, {"emb": P()}, ValueError, "['b'] lacks a sharding"),
        ({"b": PARAMS["b"]}, {"b": P(), "a": P()}, ValueError, "for ['a'], which is not a"),
        ({"b": PARAMS["b"]}, {"b": P(None, "x")}, ValueError, "['b'] of shape (256,)"),
        ({"b": PARAMS["b"]}, {"b": "x"}, TypeError, "must be a NamedSharding or a PartitionSpec"),
        ({"b": PARAMS["b"]}, None, TypeError, "the sharding of ['b'] must be"),
    ],
)
def test_wrong_shardings_are_refused(params, given, kind, words):
    with pytest.raises(kind) as error:
        state_sharding(gx.adam(0.1), params, given)
    assert words in str(error.value) and str(error.value).startswith("state_sharding: ")


def test_only_a_transform_has_a_state_sharding():
    with pytest.raises(TypeError, match="state_sharding: tx is the class"):
        state_sharding(gx.scale_by_adam, PARAMS, P())


# ------------------------------------------------------------------------ dividing over mesh axes

DIVISIONS = [
    ((1024, 4096), {"x": 4, "y": 4}, False, ((("x", 0), ("y", 0)), ())),
    # Pieces of 4 rows would leave half of every tile of 8 empty; 64 columns of 128.
    ((64, 4096), {"x": 16}, False, ((("x", 1),), ())),
    ((16, 1024), {"x": 16}, False, ((("x", 1),), ())),
    ((50257, 768), {"x": 8}, False, ((("x", 1),), ())),
    ((3, 3, 64, 64), {"x": 16, "y": 16}, False, ((("x", 2), ("y", 3)), ())),
    ((12, 7, 5), {"x": 4}, False, ((("x", 0),), ())),
    ((7, 5), {"x": 4}, False, ((), ("x",))),
    ((6, 5), {"x": 4, "y": 3}, False, ((("y", 0),), ("x",))),
    ((4, 4096), {"x": 8}, True, ((), ("x",))),
    ((16, 4096), {"x": 8}, True, ((("x", 0),), ())),
    ((), {"x": 8}, False, ((), ("x",))),
    ((8, 0), {"x": 8}, False, ((), ("x",))),
    ((8, 3), {"x": 1}, False, ((), ("x",))),
]


@pytest.mark.parametrize("shape, sizes, rows, wanted", DIVISIONS)
def test_an_axis_cuts_the_dimension_that_it_divides(shape, sizes, rows, wanted):
    assert tuple(division_of_shape(shape, sizes, rows)) == wanted


def test_a_division_gives_its_partition_spec():
    division = division_of_shape((4, 16, 9), {"x": 2, "y": 4, "z": 3})
    assert division.cuts == (("x", 0), ("y", 1), ("z", 2)) and not division.whole
    assert division.spec() == P("x", "y", "z")
    assert division_of_shape((16, 9), {"x": 2, "y": 4}).spec() == P(("x", "y"))
    assert division_of_shape((7, 9), {"x": 3}).spec() == P(None, "x")
    assert division_of_shape((7, 9), {"x": 8}).spec() == P()


@pytest.mark.parametrize("shape", [(8, 6), (3, 8), (3, 8, 5), (5, 3, 8), (8,), (2048,), (6, 5)])
def test_shards_and_sums_are_undone_by_gathering(shape):
    """Every way of a reduce-scatter, beside NumPy."""
    m = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    division = division_of_shape(shape, {"x": 2, "y": 2})
    values = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)

    def run(values):
        whole = division.gather(division.cut(values[0]), False)
        return whole[None], division.gather(division.reduce(values[0]), False)[None]

    f = jax.shard_map(run, mesh=m, in_specs=P(("x", "y")), out_specs=P(("x", "y")), check_vma=False)
    cut, total = jax.jit(f)(values)
    assert cut.shape == values.shape
    same = jax.jit(f)(np.broadcast_to(values[:1], values.shape))[0]
    np.testing.assert_array_equal(same, np.broadcast_to(values[:1], values.shape))
    np.testing.assert_allclose(total, np.broadcast_to(values.sum(0), values.shape), atol=1e-6)
