"""Slots of some parameters, or of some of their entries, begin anew in the middle of a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from jax.sharding import NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves import is_hole, names_of, with_paths
from gradxform.leaves.storage import fetched, is_stored
from gradxform.testing.promise import settings
from gradxform.tree.params_in_state import map_params
from gradxform.wrappers.parts import all_parts
from tests.catalogue import CASES
from tests.interop.optax_calls import as_optax_wants
from tests.leaves.test_storage import normal
from tests.run_states.test_migrate import numbered
from tests.telling import with_new_parts
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

PARAMS = {"emb": jnp.arange(10.0).reshape(5, 2), "w": jnp.ones((3, 4)), "b": jnp.ones(4)}
ROWS = with_new_parts(CASES)


def changes(new, old):
    """The paths of the arrays of a state that differ, as names."""
    pairs = zip(jax.tree_util.tree_flatten_with_path(old)[0], jax.tree.leaves(new), strict=True)
    return {names_of(path) for (path, x), y in pairs if not same_bits(x, y)}


def same_bits(x, y):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = map(jax.random.key_data, (x, y))
    return np.asarray(x).tobytes() == np.asarray(y).tobytes()


def is_below(path, names):
    """Whether a parameter's path is in that of an array."""
    n = len(path)
    return any(names[i : i + n] == path for i in range(len(names) - n + 1))


def is_joint(tx):
    """Whether a part keeps all parameters in one array."""
    return any(isinstance(part, gx.flatten) for part in all_parts(tx))


# -------------------------------------------------------------------------------- every transform


@pytest.mark.parametrize("name", ROWS)
def test_all_slots_begin_as_init_has_them_and_nothing_else_changes(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        new = gx.reset_slots(state, tx, params, True)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert same_types(new, state)
        paths = [path for path, x in with_paths(params) if not is_hole(x)]
        try:
            seen = jax.tree.map(lambda x: jnp.zeros(x.shape), state, is_leaf=is_stored)
            indices = jax.tree.unflatten(jax.tree.structure(params), range(len(paths)))
            like = map_params(tx, is_slot, seen, indices, transform_non_params=lambda _: False)
        except (TypeError, ValueError):  # its init looks into the parameters
            like = jax.tree.map(lambda _: False, state, is_leaf=is_stored)
        flat = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)[0]
        leaves = [jax.tree.leaves(x, is_leaf=is_stored) for x in (new, fresh)]
        is_like = jax.tree.leaves(like)
        for (path, old), x, first, declared in zip(flat, *leaves, is_like, strict=True):
            names = names_of(path)
            owned = declared or any(is_below(p, names) for p in paths if p)
            assert_identical(x, first if owned else old)


def is_slot(x, index):
    """Whether an array is of one parameter, or of all in one; not the average of a measure."""
    return isinstance(index, int) or x.ndim > 0


def same_types(a, b):
    kinds = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (a, b)]
    return kinds[0] == kinds[1]


@pytest.mark.parametrize("name", ROWS)
def test_only_the_slots_of_the_chosen_parameter_change(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        paths = [path for path, x in with_paths(params) if not is_hole(x)]
        chosen = max(paths, key=len)
        where = jax.tree_util.tree_map_with_path(lambda p, _: names_of(p) == chosen, params)
        if is_joint(tx) and jax.tree.leaves(state) and len(paths) > 1:
            with pytest.raises(ValueError, match="all parameters in one array"):
                gx.reset_slots(state, tx, params, where)
            return
        new = gx.reset_slots(state, tx, params, where)
        everything = changes(gx.reset_slots(state, tx, params, True), state)
        if len(paths) > 1:
            expected = {names for names in everything if is_below(chosen, names)}
            assert changes(new, state) == expected
        else:
            assert changes(new, state) == everything


@pytest.mark.parametrize("name", ROWS)
def test_rows_begin_anew_and_others_stay_or_it_is_refused(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        paths = {path: x for path, x in with_paths(params) if not is_hole(x)}
        tables = [path for path, x in paths.items() if jnp.ndim(x) == 2 and len(x) > 1]
        if not tables or not all(tables):
            pytest.skip("no matrix with a name")
        n, m = paths[tables[0]].shape
        rows = np.arange(n) % 2 == 1
        where = jax.tree_util.tree_map_with_path(
            lambda p, _: jnp.asarray(rows) if names_of(p) == tables[0] else False, params
        )
        try:
            new = gx.reset_slots(state, tx, params, where)
        except ValueError as error:
            assert "cannot begin anew in part" in str(error)
            assert tx.locality not in ("entry", "row") or is_kept_as_means(fresh)
            return
        flat = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)[0]
        leaves = [jax.tree.leaves(x, is_leaf=is_stored) for x in (new, fresh)]
        for (path, old), *pair in zip(flat, *leaves, strict=True):
            if is_stored(old):  # see below for what it keeps
                continue
            old, x, first = fetched((old, *pair))
            if not is_below(tables[0], names_of(path)) or n not in old.shape:
                assert same_bits(x, old), path
            elif old.shape == (n, m) and n != m:
                np.testing.assert_array_equal(x[rows], first[rows])
                np.testing.assert_array_equal(x[~rows], old[~rows])


def is_kept_as_means(state):
    leaves = jax.tree.leaves(state, is_leaf=is_stored)
    return any(is_stored(x) and x.needs_means for x in leaves)


# --------------------------------------------------------------------------------- what is chosen

ADAM = gx.adam(1e-2)
GROUPS = gx.partition(
    {"table": ADAM, "rest": gx.sgd(0.1, 0.9)}, {"emb": "table", "w": "rest", "b": "rest"}
)
NEW_ROWS = jnp.asarray([False, False, True, False, True])


def state_of(tx, params=PARAMS, steps=2):
    state = tx.init(params)
    for _ in range(steps):
        _, state = jax.jit(tx.update)(jax.tree.map(jnp.ones_like, params), state, params)
    return state


CHOSEN = [
    ("emb", {"emb"}),
    ("^(w|b)$", {"w", "b"}),
    (["emb", "b$"], {"emb", "b"}),
    (gx.path_matches("w"), {"w"}),
    (gx.ndim_at_least(2), {"emb", "w"}),
    (~gx.ndim_at_least(2), {"b"}),
    ({"emb": False, "w": True, "b": np.bool_(False)}, {"w"}),
    (FrozenDict({"emb": False, "w": True, "b": False}), {"w"}),
    (lambda params: jax.tree.map(lambda p: p.ndim == 1, params), {"b"}),
    (True, {"emb", "w", "b"}),
]  # fmt: skip


@pytest.mark.parametrize("where, names", CHOSEN)
def test_parameters_are_chosen_by_name_by_mask_and_by_tree(where, names):
    state = state_of(ADAM)
    new = gx.reset_slots(state, ADAM, PARAMS, where)
    assert {path[-1] for path in changes(new, state)} == names
    for name in PARAMS:
        assert bool(jnp.any(new[0].mu[name])) == (name not in names)
    assert int(new[0].count) == 2


def test_groups_are_chosen_by_label():
    state = state_of(GROUPS)
    for where, names in (("table", {"emb"}), ("rest", {"w", "b"}), (["table", "w"], {"emb", "w"})):
        new = gx.reset_slots(state, GROUPS, PARAMS, where)
        assert {path[-1] for path in changes(new, state)} == names
    # A label of a partition in others, and what a wrapper around it keeps for its parameters.
    outer = gx.moving_average(gx.MultiSteps(gx.chain(gx.clip(1.0), GROUPS), 2), 0.5)
    state = numbered(outer.init(PARAMS))
    new = gx.reset_slots(state, outer, PARAMS, "rest")
    assert {path[-1] for path in changes(new, state)} == {"w", "b"}
    assert_identical(new.average["w"], PARAMS["w"])
    groups = gx.param_groups(ADAM, [gx.param_group("emb", inner=gx.lion(0.1), label="table")])
    state = numbered(groups.init(PARAMS))
    new = gx.reset_slots(state, groups, PARAMS, "table")
    assert {path[-1] for path in changes(new, state)} == {"emb"}


def test_a_prefix_of_the_parameters_chooses_a_branch():
    params = {"encoder": {"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, "head": jnp.ones(2)}
    state = state_of(ADAM, params)
    new = gx.reset_slots(state, ADAM, params, {"encoder": True, "head": False})
    assert {path[-1] for path in changes(new, state)} == {"w", "b"}
    rows = {"encoder": jnp.asarray([True, False, False]), "head": False}
    new = gx.reset_slots(state, ADAM, params, rows)
    for x in new[0].mu["encoder"].values():
        assert not jnp.any(x[0]) and jnp.all(x[1:] != 0)


def test_bare_arrays_and_holes():
    params = jnp.ones((3, 2))
    state = state_of(ADAM, params)
    new = gx.reset_slots(state, ADAM, params, jnp.asarray([True, False, False]))
    assert int(new[0].count) == 2
    assert not jnp.any(new[0].mu[0]) and jnp.all(new[0].mu[1:] != 0)
    new = gx.reset_slots(state, ADAM, params, True)
    assert int(new[0].count) == 2 and not jnp.any(new[0].nu)
    some = PARAMS | {"w": None}
    state = state_of(ADAM, some)
    new = gx.reset_slots(state, ADAM, some, "emb")
    assert {path[-1] for path in changes(new, state)} == {"emb"}


# ---------------------------------------------------------------------------------------- entries

MASKS = {
    "rows": (NEW_ROWS, NEW_ROWS[:, None] & jnp.ones((5, 2), bool)),
    "rows in NumPy": (np.asarray(NEW_ROWS), NEW_ROWS[:, None] & jnp.ones((5, 2), bool)),
    "columns": (jnp.asarray([[True, False]]), jnp.tile(jnp.asarray([[True, False]]), (5, 1))),
    "entries": (jnp.arange(10).reshape(5, 2) % 3 == 0,) * 2,
    "nothing": (jnp.zeros(5, bool), jnp.zeros((5, 2), bool)),
    "everything": (jnp.asarray(True), jnp.ones((5, 2), bool)),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_chooses_entries(name):
    mask, chosen = MASKS[name]
    state = state_of(ADAM)
    new = gx.reset_slots(state, ADAM, PARAMS, {"emb": mask, "w": False, "b": False})
    assert changes(new, state) <= {("0", "mu", "emb"), ("0", "nu", "emb")}
    for slot in ("mu", "nu"):
        old, x = (getattr(s[0], slot)["emb"] for s in (state, new))
        assert_identical(x, jnp.where(chosen, 0, old))


def test_copies_of_chosen_entries_begin_at_the_parameters():
    for tx in (gx.moving_average(ADAM), gx.lookahead(ADAM, 3, 0.5)):
        state = numbered(tx.init(PARAMS))
        new = gx.reset_slots(state, tx, PARAMS, {"emb": NEW_ROWS, "w": False, "b": False})
        changed = [path for path in changes(new, state) if path[0] in ("average", "slow")]
        assert len(changed) == 1
        copy = (getattr(s, changed[0][0])["emb"] for s in (state, new))
        old, x = copy
        assert_identical(x, jnp.where(NEW_ROWS[:, None], PARAMS["emb"], old))


def test_factored_means_begin_anew_along_the_axis_that_is_chosen():
    tx = gx.adafactor(1e-2, min_dim_size_to_factor=2)
    state = state_of(tx)
    rows = {"emb": NEW_ROWS, "w": False, "b": False}
    new = gx.reset_slots(state, tx, PARAMS, rows)
    (path,) = changes(new, state)
    old, x = (getattr(s[0], path[1])["emb"] for s in (state, new))
    assert_identical(x, jnp.where(NEW_ROWS, 0, old))
    columns = rows | {"emb": jnp.asarray([[True, False]])}
    (other,) = changes(gx.reset_slots(state, tx, PARAMS, columns), state)
    assert {path[1], other[1]} == {"v_row", "v_col"}
    with pytest.raises(ValueError, match="some of the dimensions along which the mask chooses"):
        gx.reset_slots(state, tx, PARAMS, rows | {"emb": MASKS["entries"][0]})


@pytest.mark.parametrize("make", [gx.shampoo, gx.soap, gx.splus, gx.psgd_kron, gx.kl_shampoo])
def test_preconditioners_begin_anew_as_a_whole_only(make):
    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
    tx = make(1e-2)
    state = numbered(tx.init(params))
    whole = gx.reset_slots(state, tx, params, {"w": True, "b": False})
    assert changes(whole, state)
    with pytest.raises(ValueError, match=r"cannot begin anew in part.*'w': True"):
        mask = jnp.asarray([True, False, False, False])
        gx.reset_slots(state, tx, params, {"w": mask, "b": False})


def test_square_moments_of_muon_begin_anew_by_entry():
    params = {"w": jnp.ones((4, 4))}
    tx = gx.scale_by_muon()
    state = state_of(tx, params)
    for mask, kept in (
        ([True, False, False, False], (slice(1, None),)),
        ([[True, False, False, False]], (slice(None), slice(1, None))),
    ):
        new = gx.reset_slots(state, tx, params, {"w": jnp.asarray(mask)})
        assert_identical(new.mu["w"][kept], state.mu["w"][kept])
        assert int(jnp.sum(new.mu["w"] == 0)) == 4


def test_a_number_for_each_parameter_begins_anew_with_the_whole():
    tx = gx.scale_by_novograd()
    state = state_of(tx)
    new = gx.reset_slots(state, tx, PARAMS, "emb")
    assert {path[-2:] for path in changes(new, state)} == {("mu", "emb"), ("nu", "emb")}
    rows = gx.reset_slots(state, tx, PARAMS, {"emb": NEW_ROWS, "w": False, "b": False})
    assert {path[-2:] for path in changes(rows, state)} == {("mu", "emb")}


# ------------------------------------------------------------------------------------------ forms

FORMS = {
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 128),
    "rank1": lambda tx: gx.quantize_state(tx, 4, 64, "rank1"),
    "bfloat16": gx.state_dtype,
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "host": gx.offload_state,
    "host in 8 bits": lambda tx: gx.offload_state(gx.quantize_state(tx)),
}


@pytest.mark.parametrize("form", FORMS)
def test_slots_in_other_forms_begin_anew(form):
    tx = FORMS[form](ADAM)
    params = {"w": normal((64, 128)), "b": normal((4,))}
    state = tx.init(params)
    for seed in range(2):
        grads = jax.tree.map(lambda x, seed=seed: normal(x.shape, seed), params)
        _, state = jax.jit(tx.update)(grads, state, params)
    rows = jnp.arange(64) % 3 == 0
    # None of what is drawn for a form is drawn anew, and every array stays in its memory.
    for where in ({"w": True, "b": False}, {"w": rows, "b": False}):
        new = gx.reset_slots(state, tx, params, where)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        kinds = [[(x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(s)] for s in (new, state)]
        assert kinds[0] == kinds[1]
        for slot in ("mu", "nu"):
            old, x = (in_float32(getattr(s[0], slot)["w"]) for s in (state, new))
            gone = np.ones(64, bool) if where["w"] is True else np.asarray(rows)
            np.testing.assert_array_equal(x[gone], 0)
            atol = float(np.max(np.abs(old))) * (0.3 if form in ("4 bits", "rank1") else 0)
            np.testing.assert_allclose(x[~gone], old[~gone], rtol=1e-6, atol=atol)
            assert_identical(getattr(new[0], slot)["b"], getattr(state[0], slot)["b"])


def in_float32(x):
    x = fetched(x)
    return np.asarray((x.load() if is_stored(x) else x).astype(jnp.float32))


def test_means_of_rows_and_columns_begin_anew_as_a_whole_only():
    tx = gx.factor_state(ADAM)
    params = {"w": normal((128, 128))}
    state = state_of(tx, params)
    new = gx.reset_slots(state, tx, params, "w")
    assert not np.any(in_float32(new[0].nu["w"]))
    with pytest.raises(ValueError, match="it is kept as row and column means"):
        gx.reset_slots(state, tx, params, {"w": jnp.arange(128) == 0})


# -------------------------------------------------------------------------- programs and devices


def test_under_jit_with_a_donated_state_and_a_traced_mask():
    for tx in (ADAM, gx.as_optax(ADAM), gx.quantize_state(ADAM), optax.adam(1e-2)):
        with as_optax_wants():
            state = state_of(tx)
        where = {"emb": NEW_ROWS, "w": jnp.asarray(True), "b": False}
        want = gx.reset_slots(state, tx, PARAMS, where)
        assert jax.tree.structure(want) == jax.tree.structure(state)
        reset = jax.jit(
            lambda s, p, rows, flag, tx=tx: gx.reset_slots(
                s, tx, p, {"emb": rows, "w": flag, "b": False}
            ),
            donate_argnums=(0,),
        )
        got = reset(jax.tree.map(jnp.copy, state), PARAMS, NEW_ROWS, jnp.asarray(True))
        assert_identical(got, want)
        none = reset(jax.tree.map(jnp.copy, state), PARAMS, NEW_ROWS & False, jnp.asarray(False))
        assert_identical(none, state)


def test_in_a_loop_of_steps():
    def body(carry, i):
        params, state = carry
        updates, state = ADAM.update(params, state, params)
        state = gx.reset_slots(
            state, ADAM, params, {"emb": NEW_ROWS & (i == 1), "w": False, "b": False}
        )
        return (gx.apply_updates(params, updates), state), state[0].mu["emb"][2, 0]

    _, seen = jax.lax.scan(body, (PARAMS, ADAM.init(PARAMS)), jnp.arange(3))
    assert [bool(x) for x in seen] == [True, False, True]


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_arrays_stay_sharded_as_they_are(kind):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
    place = NamedSharding(mesh, P("x", "y"))
    params = {"w": jax.device_put(normal((8, 8)), place), "b": normal((3,))}
    for tx in (ADAM, gx.moving_average(ADAM), gx.quantize_state(ADAM, block=2)):
        with jax.set_mesh(mesh):
            state = jax.jit(tx.init)(params)
            _, state = jax.jit(tx.update)(params, state, params)
            for where in ({"w": True, "b": False}, {"w": jnp.arange(8) % 2 == 0, "b": False}):
                new = gx.reset_slots(state, tx, params, where)
                pairs = zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True)
                assert all(x.sharding == y.sharding for x, y in pairs)
                jitted = jax.jit(lambda s, p, tx=tx, where=where: gx.reset_slots(s, tx, p, where))
                assert_identical(jax.device_get(jitted(state, params)), jax.device_get(new))


@pytest.mark.parametrize("where", ["rows", "columns", "entries", "all"])
@pytest.mark.parametrize("make", [gx.adam, gx.adafactor])
def test_pieces_of_zero1_begin_anew(where, make):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    inner = gx.adafactor(0.1, min_dim_size_to_factor=2) if make is gx.adafactor else make(0.1)
    tx = gd.zero1(inner, "data")
    params = {"emb": normal((8, 12)), "q": normal((8, 8)), "b": normal((3,))}
    specs = tx.state_specs(params, mesh)
    state = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs)(params)
    state = numbered(state)
    masks = {"rows": jnp.arange(8) % 3 == 0, "columns": jnp.arange(8)[None] % 3 == 0}
    masks["entries"] = jnp.arange(64).reshape(8, 8) % 5 == 0
    mask = masks.get(where, jnp.asarray(True))

    def reset(state, params, mask):
        return gx.reset_slots(state, tx, params, {"emb": False, "q": mask, "b": False})

    mapped = jax.shard_map(reset, mesh=mesh, in_specs=(specs, P(), P()), out_specs=specs)
    if make is gx.adafactor and where == "entries":
        with pytest.raises(ValueError, match="cannot begin anew in part"):
            mapped(state, params, mask)
        return
    new = mapped(state, params, mask)
    # The pieces together are what the optimizer has without zero1.
    state, new = (jax.device_get(s.inner) for s in (state, new))
    want = gx.reset_slots(state, inner, params, {"emb": False, "q": mask, "b": False})
    assert_identical(new, jax.device_get(want))
    assert changes(new, state)


def test_states_of_replicas_begin_anew():
    replicas = gd.Replicas("replica")
    tx = gd.model_average(ADAM, "replica", period=10)
    params = replicas.replicate(PARAMS)
    states = numbered(replicas.wrap(tx.init)(params))
    reset = replicas.wrap(lambda state, params: gx.reset_slots(state, tx, params, "emb"))
    new = reset(states, params)
    assert {path[-1] for path in changes(new, states)} == {"emb"}


# ------------------------------------------------------------------------------- what is refused

FALSE = dict.fromkeys(PARAMS, False)
REFUSED = [
    (ADAM, "embb",
     ValueError, "'embb' matches none of the parameters 'b', 'emb', 'w'. Did you mean 'emb'?"),
    (GROUPS, "tabel",
     ValueError, "'tabel' is not a label ('rest', 'table'), and matches none", "mean 'table'?"),
    (ADAM, gx.path_matches("kernel"),
     ValueError, "path_matches('kernel') matches none of the parameters"),
    (ADAM, False, ValueError, "chooses nothing: it is False for every parameter"),
    (ADAM, FALSE, ValueError, "chooses nothing"),
    (ADAM, gx.ndim_at_least(3), ValueError, "where=ndim_at_least(n=3) chooses nothing"),
    (ADAM, {"emb": True}, ValueError, "no entry for the parameter ['b']"),
    (ADAM, FALSE | {"c": True}, ValueError, "the entry ['c']: True matches no parameter"),
    (ADAM, FALSE | {"c": NEW_ROWS},
     ValueError, "the entry ['c']", "array of shape (5,)", "matches no"),
    (ADAM, FALSE | {"emb": jnp.ones(4, bool)},
     ValueError, "where at ['emb'] has shape (4,), but the parameter has (5, 2)",
     "(n,) chooses rows, (1, n) chooses columns"),
    (ADAM, FALSE | {"emb": jnp.ones(2, bool)}, ValueError, "where at ['emb'] has shape (2,)"),
    (ADAM, FALSE | {"b": jnp.ones((4, 1), bool)}, ValueError, "where at ['b'] has shape (4, 1)"),
    (ADAM, FALSE | {"emb": jnp.ones(5)},
     TypeError, "where at ['emb'] must be a boolean or an array of them"),
    (ADAM, FALSE | {"emb": None}, TypeError, "where at ['emb'] must be a boolean", "None"),
    (ADAM, 1, TypeError, "where at ['b'] must be a boolean", "1"),
    (ADAM, [], ValueError, "no entry for the parameter"),
    (gx.flatten(ADAM), "emb",
     ValueError, "0.mu has shape (26,) and cannot begin anew in part: it holds all parameters in "
     "one array. Choose where=True."),
]  # fmt: skip


@pytest.mark.parametrize("tx, where, error, words", [(a, b, c, d) for a, b, c, *d in REFUSED])
def test_bad_choices_are_refused(tx, where, error, words):
    state = tx.init(PARAMS)
    with pytest.raises(error) as raised:
        gx.reset_slots(state, tx, PARAMS, where)
    for word in ("reset_slots: ", *words):
        assert word in str(raised.value)


def test_another_state_and_what_is_no_transform_are_refused():
    with pytest.raises(ValueError, match=r"reset_slots: the state is not one of chain"):
        gx.reset_slots(gx.trace(0.9).init(PARAMS), ADAM, PARAMS, True)
    with pytest.raises(TypeError, match=r"reset_slots: tx is the class scale_by_lion"):
        gx.reset_slots(ADAM.init(PARAMS), gx.scale_by_lion, PARAMS, True)
