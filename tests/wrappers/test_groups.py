"""Groups of parameters: who gets what, beside the same written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from tests.catalogue.case import gradients
from tests.public import names_of

pytestmark = pytest.mark.numeric

STEPS = 6
SHAPES = {"embed": (6, 4), "layer_0": {"kernel": (4, 4), "bias": (4,)}, "head": (4, 3)}
RATE = gx.linear_schedule(0.1, 0.01, STEPS)
RISING = gx.linear_schedule(0.0, 1.0, STEPS)


def start(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s), dtype), SHAPES, is_leaf=is_shape)


def trained(tx, params=None, steps=STEPS, update=None):
    """The parameters and the state after some steps."""
    params = start() if params is None else params
    state = tx.init(params)
    update = update or jax.jit(tx.update)
    for g in gradients(params, steps):
        updates, state = update(g, state, params)
        params = gx.apply_updates(params, updates)
    return params, state


def assert_close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


def product(factor, schedule=RATE):
    return gx.product_schedule(schedule, factor)


# -------------------------------------------------------------------------------- who gets what


def test_rates_and_decays_are_those_of_optimizers_of_their_own():
    rules = [
        gx.param_group("bias$", weight_decay=0.0),
        gx.param_group("^embed", 0.25, 2.0),
        gx.param_group("^head", RISING),
    ]
    ours, _ = trained(gx.param_groups(gx.adam(RATE), rules, weight_decay=0.1, learning_rate=RATE))
    theirs, _ = trained(
        gx.partition(
            {
                "bias": gx.adam(RATE),
                "embed": gx.adamw(product(0.25), weight_decay=0.2),
                "head": gx.adamw(product(RISING), weight_decay=0.1),
                "rest": gx.adamw(RATE, weight_decay=0.1),
            },
            {"embed": "embed", "layer_0": {"kernel": "rest", "bias": "bias"}, "head": "head"},
        )
    )
    assert_close(ours, theirs)


def test_frozen_parameters_have_no_slots_and_do_not_move():
    tree = start()
    tx = gx.param_groups(gx.adam(0.1), [gx.param_group("^layer_0", freeze=True)])
    after, state = trained(tx)
    assert jax.tree.all(jax.tree.map(np.array_equal, after["layer_0"], tree["layer_0"]))
    assert not np.array_equal(after["head"], tree["head"])
    assert {x.shape for x in jax.tree.leaves(gx.tree.get(state, "mu"))} == {(6, 4), (4, 3)}
    bad = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), tree)
    updates, _ = tx.update(bad, tx.init(tree), tree)
    assert all(np.array_equal(u, np.zeros(u.shape)) for u in jax.tree.leaves(updates["layer_0"]))


def test_a_group_with_its_own_optimizer_keeps_its_state_by_label():
    own = gx.param_group(gx.ndim_at_least(2), inner=gx.muon(0.02), label="muon")
    bias = gx.param_group("bias$", 0.5)
    before, after = (gx.param_groups(gx.adam(0.1), rules) for rules in ([own, bias], [bias, own]))
    params, state = trained(before)
    assert list(state.group_states) == ["muon"]
    g = gradients(params, 1)[0]
    assert_close(before.update(g, state, params), after.update(g, state, params))


def test_a_rule_that_yields_leaves_parameters_to_earlier_rules():
    rules = [gx.param_group("bias$", 0.5), gx.param_group("^layer_0", freeze=True, yields=True)]
    tree, (after, _) = start(), trained(gx.param_groups(gx.sgd(0.1), rules))
    assert np.array_equal(after["layer_0"]["kernel"], tree["layer_0"]["kernel"])
    assert not np.array_equal(after["layer_0"]["bias"], tree["layer_0"]["bias"])


def test_an_optional_rule_may_select_nothing():
    for which in ("^conv", gx.path_matches("^conv", optional=True), gx.ndim_at_least(4)):
        rule = gx.param_group(which, 0.5, optional=True)
        assert_close(trained(gx.param_groups(gx.sgd(0.1), [rule]))[0], trained(gx.sgd(0.1))[0])


def test_nested_groups_multiply():
    tree = start()
    inner = gx.param_groups(
        gx.sgd(1.0), [gx.param_group("bias$", weight_decay=0.0)], weight_decay=0.1
    )
    tx = gx.param_groups(inner, gx.layerwise_decay(tree, 0.5))
    updates, _ = tx.update(tree, tx.init(tree), tree)
    factors = {"embed": 0.25 * 1.1, "layer_0": {"kernel": 0.5 * 1.1, "bias": 0.5}, "head": 1.1}
    assert_close(updates, jax.tree.map(lambda a, p: -a * p, factors, tree))


# ----------------------------------------------------------------------------------- composition


def test_groups_compose_with_masks_chains_and_guards():
    groups = gx.param_groups(
        gx.adam(0.1), [gx.param_group("bias$", 0.5, 0.0)], weight_decay=0.1, learning_rate=0.1
    )
    plain, _ = trained(groups)
    not_head = gx.path_matches("^(embed|layer_0)")
    masked, _ = trained(gx.chain(gx.masked(groups, not_head), gx.freeze(~not_head)))
    assert_close(masked["layer_0"], plain["layer_0"])
    assert np.array_equal(masked["head"], start()["head"])
    for wrapped in (gx.apply_if_finite(groups, 3), gx.chain(gx.clip_by_global_norm(1e3), groups)):
        assert_close(trained(wrapped)[0], plain)
    eager, _ = trained(groups, update=groups.update)
    assert_close(eager, plain)


def test_hyperparameters_in_a_state_reach_the_groups():
    def make(rate, factor):
        return gx.param_groups(
            gx.adam(rate),
            [gx.param_group("bias$", factor, 0.0)],
            weight_decay=0.1,
            learning_rate=rate,
        )

    injected = gx.inject_hyperparams(make)(rate=RATE, factor=0.5)
    assert_close(trained(injected)[0], trained(make(RATE, 0.5))[0])
    tree = start()

    def biases(factor):
        tx = make(0.1, factor)
        return tx.update(tree, tx.init(tree), tree)[0]["layer_0"]["bias"]

    several = jax.vmap(biases)(jnp.asarray([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(several[1] * 2, several[2], rtol=1e-6)
    assert np.array_equal(several[0], np.zeros(4))


def test_the_caller_may_count_the_steps():
    tx = gx.param_groups(gx.sgd(RATE), [gx.param_group("bias$", RISING)])
    tree, outer = start(), gx.external_step(tx)
    updates, state = outer.update(tree, outer.init(tree), tree, step=3)
    bias = tree["layer_0"]["bias"]
    np.testing.assert_allclose(updates["layer_0"]["bias"], -RATE(3) * RISING(3) * bias, rtol=1e-6)
    assert state.multipliers.count == 4


@pytest.fixture
def optax_rules():
    """Optax adds integers to floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("optax_rules")
def test_foreign_optimizers_are_groups_too():
    rules = [gx.param_group("^head", 0.5, inner=optax.sgd(0.1, 0.9))]
    ours, _ = trained(gx.param_groups(optax.adam(0.1), rules))
    theirs, _ = trained(
        gx.partition(
            {"head": optax.sgd(0.05, 0.9), "rest": optax.adam(0.1)},
            gx.label_by(("head", gx.path_matches("^head")), ("rest", True)),
        )
    )
    assert_close(ours, theirs)


def test_touched_rows_alone_move_and_decay():
    tree = start()
    tx = gx.param_groups(
        gx.adam(0.1), [gx.param_group("^embed", 0.5)], weight_decay=0.1, learning_rate=1.0
    )
    rows, values = np.asarray([4, 1, 4]), np.ones((3, 4), np.float32)
    g = jax.tree.map(jnp.ones_like, tree) | {"embed": gx.RowSparse(rows, values, 6)}
    updates, _ = jax.jit(tx.update)(g, tx.init(tree), tree)
    expected = np.zeros((6, 4))
    expected[[1, 4]] = -0.5 * 0.1 - 0.5 * 0.1 * np.asarray(tree["embed"])[[1, 4]]
    np.testing.assert_allclose(updates["embed"].to_dense(), expected, atol=1e-6)
    frozen = gx.param_groups(gx.adam(0.1), [gx.param_group("^embed", freeze=True)])
    updates, _ = frozen.update(g, frozen.init(tree), tree)
    assert not np.any(updates["embed"].to_dense())


def test_who_keeps_copies_of_the_parameters_is_told_of_the_multipliers():
    """Madgrad keeps the first parameters, and steps from there: half a step must stay half."""
    inner = gx.madgrad(0.1, momentum=0.0)
    rules = [gx.param_group("^head", 0.5)]
    wrappers = [
        gx.param_groups(inner, rules),
        gx.decoupled_weight_decay(inner, 0.05, gx.path_matches("^head")),
        gx.variable_clipping(inner, {"head": (0,)}, 0.5),
        gx.project(
            inner,
            gx.projections.projection_l2_ball,
            gx.path_matches("^head"),
            arguments={"scale": 0.5},
        ),
    ]
    for tx in wrappers:
        params = start()
        state = tx.init(params)
        x0 = gx.tree.get(state, "x0")["head"]
        g = gradients(params, 1)[0]
        updates, state = tx.update(g, state, params)
        own, _ = inner.update(g, inner.init(params), params)
        moved = gx.tree.get(state, "x0")["head"] - x0
        np.testing.assert_allclose(moved, updates["head"] - own["head"], rtol=1e-5, atol=1e-6)
        assert np.abs(moved).max() > 1e-3, tx


@pytest.mark.usefixtures("eight_devices")
def test_groups_and_divided_states_work_in_each_other():
    params = {"w": start()["embed"], "b": start()["head"]}
    rules = [gx.param_group("^b$", 0.5, 0.0)]
    fields = {"weight_decay": 0.1, "learning_rate": 0.1}
    whole = gx.param_groups(gx.adam(0.1), rules, **fields)
    expected, _ = trained(whole, params)
    outside = gx.param_groups(gd.zero1(gx.adam(0.1), "x"), rules, **fields)
    mesh = jax.make_mesh((8,), ("x",))
    for tx in (gd.zero1(whole, "x"), outside):

        def steps(params, grads, tx=tx):
            state = tx.init(params)
            for g in grads:
                updates, state = tx.update(g, state, params)
                params = gx.apply_updates(params, updates)
            return params

        run = jax.shard_map(steps, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        assert_close(jax.jit(run)(params, gradients(params, STEPS)), expected)


def test_16_bit_parameters_keep_their_dtypes():
    tx = gx.param_groups(
        gx.adam(0.1), [gx.param_group("bias$", RISING)], weight_decay=0.1, learning_rate=0.1
    )
    params, state = trained(tx, start(jnp.bfloat16))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(
        lambda x: x.dtype, tx.init(params)
    )


# -------------------------------------------------------------------------------------- describe


def test_describe_shows_who_gets_what_before_training():
    mesh = jax.sharding.AbstractMesh((4,), ("model",))

    def shape(*dims, spec=()):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(dims, jnp.float32, sharding=sharding)

    tree = {
        "embed": shape(8, 4, spec=("model",)),
        "head": {"kernel": shape(4, 8, spec=(None, "model")), "bias": shape(8)},
    }
    rules = [
        gx.param_group("bias$", RISING, 0.0),
        gx.param_group("^embed", freeze=True),
        gx.param_group("kernel$", inner=gx.sgd(0.1, 0.9), label="heads"),
    ]
    tx = gx.chain(gx.clip(1.0), gx.param_groups(gx.adam(0.1), rules, weight_decay=0.1))
    description = gx.describe(tx, tree)
    ((bias, embed, heads),) = description.groups
    assert bias[:2] == ("bias$", ("head/bias",)) and bias.weight_decay == 0.0
    assert bias[5:] == (32, 64, 32 + 64)  # replicated
    assert embed.optimizer is None and embed[5:] == (128, 0, 32)
    assert heads.optimizer == "trace, scale_by_learning_rate" and heads[5:] == (128, 128, 64)
    text = str(description)
    for words in ("on each device", "heads", "frozen", "x linear_schedule", "scale_by_adam"):
        assert words in text
    assert sum(row.bytes for row in description.rows) == description.total_bytes
    arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    assert [row.device_bytes for row in gx.describe(tx, arrays).groups[0]] == [None] * 3
    assert gx.describe(tx).groups == ()


# --------------------------------------------------------------------------------------- presets


def model(width, layers=2):
    shapes = {"embed": (9, width), "head": {"kernel": (width, 9), "bias": (9,)}}
    shapes |= {
        f"layers_{i}": {"attention": (width, width // 2, 4), "bias": (width // 2, 4)}
        for i in range(layers)
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape)


def multipliers(rules):
    return {x.path: x.learning_rate for x in rules.table}


def test_layerwise_decay_falls_from_the_head_to_the_embeddings():
    rules = gx.layerwise_decay(model(4, layers=11), 0.5)
    factors = multipliers(rules)
    assert factors["head/kernel"] == 1 and factors["layers_10/bias"] == 0.5
    assert factors["layers_1/bias"] == 0.5**10 and factors["embed"] == 0.5**12
    tx = gx.param_groups(gx.sgd(1.0), rules)
    tree = jax.tree.map(lambda s: jnp.ones(s.shape), model(4, layers=11))
    updates, _ = tx.update(tree, tx.init(tree), tree)
    np.testing.assert_allclose(updates["layers_1"]["bias"], np.full((2, 4), -(0.5**10)))
    assert "embeddings" in str(rules) and eval(repr(tx), names_of(gx)) == tx


INPUTS = [
    "cls_token", "reg_token", "dist_token", "mask_token", "register_tokens", "cls", "pos_embed",
    "patch_embed/proj/kernel", "posembed_input/pos_embedding", "embedding/kernel", "pos_emb",
    "tok_emb/weight", "wte/embedding", "wpe/embedding", "stem/conv/kernel", "rel_pos_bias/table",
    "embeddings/cls_token", "embeddings/position_embeddings", "embeddings/LayerNorm/scale",
    "visual/class_embedding", "embed_tokens/embedding", "tok_embeddings/weight",
]  # fmt: skip
OTHERS = ["head/kernel", "norm/scale", "cls/predictions/bias", "unembed/kernel", "pooler/kernel",
          "member/kernel", "lm_head/kernel", "token_type/kernel"]  # fmt: skip


def test_layerwise_decay_knows_the_inputs_of_models():
    paths = [*INPUTS, *OTHERS, "blocks_0/attn/kernel", "blocks_1/attn/kernel"]
    factors = multipliers(gx.layerwise_decay({path: jnp.ones(2) for path in paths}, 0.5))
    assert [path for path in paths if factors[path] == 0.5**3] == INPUTS
    assert [path for path in paths if factors[path] == 1] == OTHERS


def test_layers_of_two_stacks_are_one_after_the_other_or_side_by_side():
    tree = {k: {f"layer_{i}": jnp.ones(2) for i in range(n)} for k, n in (("enc", 3), ("dec", 2))}
    path = "{}/layer_{}".format
    in_order = multipliers(gx.layerwise_decay(tree, 0.5, stacks=("^enc", "^dec")))
    assert [in_order[path("enc", i)] for i in range(3)] == [0.5**4, 0.5**3, 0.5**2]
    assert [in_order[path("dec", i)] for i in range(2)] == [0.5, 1.0]
    beside = multipliers(gx.layerwise_decay(tree, 0.5, r"(?:enc|dec)/layer_(\d+)"))
    assert [beside[path(k, 0)] for k in tree] == [0.25, 0.25] and beside["enc/layer_2"] == 1
    alone = multipliers(gx.layerwise_decay(tree, 0.5, r"enc/layer_(\d+)"))
    assert alone["enc/layer_0"] == 0.125 and alone["dec/layer_0"] == 1


# Yang et al., Tables 3 and 8, for a model of four times the width.
TABLES = {
    ("adam", False): {"input": 1, "hidden": 1 / 4, "output": 1 / 4},
    ("sgd", False): {"input": 4, "hidden": 1, "output": 1 / 4},
    ("adam", True): {"input": 1, "hidden": 1 / 4, "output": 1},
    ("sgd", True): {"input": 4, "hidden": 1, "output": 4},
}


@pytest.mark.parametrize("optimizer, output_multiplier", TABLES)
def test_mup_follows_its_tables(optimizer, output_multiplier):
    rules = gx.mup(
        model(8),
        model(32),
        optimizer,
        output_multiplier=output_multiplier,
        inputs=gx.path_matches("bias$"),
    )
    expected = TABLES[optimizer, output_multiplier]
    factors = multipliers(rules)
    assert factors["embed"] == factors["layers_0/bias"] == expected["input"]
    assert factors["layers_1/attention"] == expected["hidden"]
    assert factors["head/kernel"] == expected["output"] and factors["head/bias"] == 1
    assert gx.mup(model(8), model(8)) == ()


def test_mup_keeps_the_change_of_the_output_as_a_model_grows():
    """A two-layer linear model, Adam: one rate moves the outputs by as much at every width."""

    def moved(width, with_rules):
        rng = np.random.default_rng(0)
        tree = {
            "in": rng.normal(size=(4, width)) / 2,
            "hidden": rng.normal(size=(width, width)) / np.sqrt(width),
            "out": rng.normal(size=(width, 1)) / width,
        }
        tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
        small = {"in": jnp.ones((4, 16)), "hidden": jnp.ones((16, 16)), "out": jnp.ones((16, 1))}
        tx = gx.param_groups(gx.adam(1e-3), gx.mup(small, tree) if with_rules else ())
        x = jnp.ones((1, 4))

        def output(p):
            return jnp.sum(x @ p["in"] @ p["hidden"] @ p["out"])

        @jax.jit
        def change(tree):
            updates, _ = tx.update(jax.grad(output)(tree), tx.init(tree), tree)
            return output(gx.apply_updates(tree, updates)) - output(tree)

        return float(change(tree))

    ratio = moved(512, True) / moved(64, True)
    assert 1 / 3 < ratio < 3
    assert moved(512, False) / moved(64, False) > 4


# ------------------------------------------------------------------------------- freezing as Optax


@pytest.mark.usefixtures("optax_rules")
@pytest.mark.parametrize("mask", [True, False, {"embed": True, "layer_0": False, "head": True}])
def test_frozen_parameters_are_those_of_optax(mask):
    tree = start()
    for ours, theirs in (
        (
            gx.chain(gx.sgd(0.1, 0.9), gx.freeze(mask)),
            optax.chain(optax.sgd(0.1, 0.9), optax.freeze(mask)),
        ),
        (
            gx.selective_transform(gx.sgd(0.1, 0.9), freeze_mask=mask),
            optax.selective_transform(optax.sgd(0.1, 0.9), freeze_mask=mask),
        ),
    ):
        assert_close(trained(ours, steps=30)[0], trained(theirs, steps=30)[0])
        state, expected = ours.init(tree), theirs.init(tree)
        names = [jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_leaves_with_path(state)]
        assert names == [
            jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_leaves_with_path(expected)
        ]


def test_a_mask_of_ours_selects_what_is_frozen():
    tree, mask = start(), gx.path_matches("^layer_0")
    for which in (mask, lambda params: mask(params)):
        after, state = trained(gx.selective_transform(gx.adam(0.1), freeze_mask=which))
        assert np.array_equal(after["layer_0"]["kernel"], tree["layer_0"]["kernel"])
        assert {x.shape for x in jax.tree.leaves(gx.tree.get(state, "mu"))} == {(6, 4), (4, 3)}


def test_the_last_layer_has_the_full_rate_where_there_is_no_head():
    """It looks for a head, and may be told."""
    layers = {f"layer_{i}": {"w": jnp.ones(2)} for i in range(3)}
    trunk = {"embed": jnp.ones(2), **layers}

    def rates(params, **options):
        table = gx.layerwise_decay(params, 0.5, r"layer_(\d+)", **options).table
        return {x.path.removesuffix("/w"): x.learning_rate for x in table}

    without = {"embed": 0.125, "layer_0": 0.25, "layer_1": 0.5, "layer_2": 1.0}
    below = {k: x / 2 for k, x in without.items()}
    assert rates(trunk) == rates(trunk, head=False) == without
    assert rates(layers) == {k: without[k] for k in layers}
    assert rates(trunk, head=True) == below
    assert rates(trunk | {"head": jnp.ones(2)}) == below | {"head": 1.0}
    assert rates(trunk | {"scale": jnp.ones(2)}, head=False) == without | {"scale": 1.0}
    with pytest.raises(TypeError, match="layerwise_decay: head must be True, False or None"):
        rates(trunk, head="head")
