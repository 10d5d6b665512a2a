"""Parameters become larger in the middle of a run: what their slots become, and what is refused."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves import is_hole, names_of, with_paths
from gradxform.leaves.storage import fetched, is_stored
from gradxform.testing.promise import settings
from tests.catalogue import CASES
from tests.leaves.test_storage import normal
from tests.run_states.test_migrate import numbered
from tests.run_states.test_reset_slots import is_below, is_joint, is_kept_as_means, same_bits
from tests.telling import with_new_parts
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

OLD = {"emb": jnp.arange(10.0).reshape(5, 2), "w": jnp.ones((3, 4)), "b": jnp.ones(4)}
NEW = OLD | {"emb": jnp.concatenate([OLD["emb"], jnp.full((2, 2), 9.0)])}
ADAM = gx.adam(1e-2)


def state_of(tx, params=OLD):
    """A state after two steps."""
    state = tx.init(params)
    for _ in range(2):
        _, state = jax.jit(tx.update)(params, state, params)
    return state


@pytest.mark.parametrize("name", with_new_parts(CASES))
def test_old_entries_stay_and_new_ones_begin_or_it_is_refused(name):
    case = CASES[name]
    with settings(case):
        tx, old_params = case.tx, case.params()
        leaves, treedef = jax.tree.flatten(old_params)
        named = [path for path, x in with_paths(old_params) if not is_hole(x)]
        ranks = [jnp.ndim(x) for x in leaves]
        if not any(ranks):
            pytest.skip("no parameter can grow")
        k = max(range(len(ranks)), key=ranks.__getitem__)
        leaves[k] = jnp.concatenate([leaves[k], leaves[k][:1]])
        params = jax.tree.unflatten(treedef, leaves)
        fresh = tx.init(params)
        state = numbered(tx.init(old_params))
        try:
            new, report = gx.migrate_state(state, tx, tx, params, grown=True)
        except ValueError as error:
            words = ("cannot grow with its parameter", "has shape", "do not tell")
            assert any(word in str(error) for word in words)
            assert tx.locality not in ("entry", "row") or is_joint(tx) or is_kept_as_means(fresh)
            return
        assert jax.tree.structure(new) == jax.tree.structure(fresh)
        assert not report.begun and not report.dropped
        flat = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)[0]
        trees = [jax.tree.leaves(x, is_leaf=is_stored) for x in (new, fresh)]
        grew = 0
        for (path, old), *pair in zip(flat, *trees, strict=True):
            if is_stored(old):
                grew += 1
                continue
            x, first, old = fetched((*pair, old))
            assert (x.shape, x.dtype) == (first.shape, first.dtype)
            if x.shape == old.shape:
                assert same_bits(x, old), path
                continue
            grew += 1
            assert is_below(named[k], names_of(path))
            there = np.zeros(x.shape, bool)
            there[tuple(map(slice, old.shape))] = True
            np.testing.assert_array_equal(x[tuple(map(slice, old.shape))], old)
            np.testing.assert_array_equal(np.asarray(x)[~there], np.asarray(first)[~there])
        assert report.is_identity == (grew == 0)


# --------------------------------------------------------------------------- where old entries are


def test_rows_are_put_where_the_user_says():
    state = state_of(ADAM)
    where = [6, 0, 2, 3, 4]
    for at in (where, np.asarray(where), tuple(where), [-1, 0, 2, 3, 4]):
        new, report = gx.migrate_state(state, ADAM, ADAM, NEW, grown={"emb": {0: at}})
        assert_identical(new[0].mu["emb"][np.asarray(where)], state[0].mu["emb"])
        np.testing.assert_array_equal(new[0].mu["emb"][np.asarray([1, 5])], 0)
        assert int(new[0].count) == 2
    assert [slot.grown_from for slot in report.taken] == [(), ((5, 2),), ((5, 2),)]
    assert "0.mu (from [5, 2])" in str(report)
    last, _ = gx.migrate_state(state, ADAM, ADAM, NEW, grown={"emb": {0: slice(2, None)}})
    assert_identical(last[0].nu["emb"][2:], state[0].nu["emb"])


def test_several_dimensions_grow():
    params = OLD | {"w": jnp.ones((6, 5))}
    state = state_of(ADAM)
    for grown in ({"w": [0, 1]}, {"w": (0, -1)}, {"w": {0: slice(0, 3), 1: range(4)}}, True):
        new, _ = gx.migrate_state(state, ADAM, ADAM, params, grown=grown)
        assert_identical(new[0].mu["w"][:3, :4], state[0].mu["w"])
        assert float(jnp.sum(jnp.abs(new[0].mu["w"]))) == float(jnp.sum(jnp.abs(state[0].mu["w"])))
    new, _ = gx.migrate_state(state, ADAM, ADAM, params, grown={"w": {0: [0, 2, 4], 1: None}})
    assert_identical(new[0].mu["w"][::2, :4], state[0].mu["w"])


def test_a_square_matrix_that_grows_is_told_from_a_factor_of_a_preconditioner():
    old, new = {"w": jnp.eye(3)}, {"w": jnp.eye(4)}
    for tx in (gx.adam(0.1), gx.muon(0.1)):
        state = state_of(tx, old)
        migrated, _ = gx.migrate_state(state, tx, tx, new, grown=True)
        before, after = (x for x in (jax.tree.leaves(state), jax.tree.leaves(migrated)))
        assert [x.shape for x in after if x.ndim == 2]
        for x, y in zip(before, after, strict=True):
            assert_identical(y[:3, :3] if y.ndim == 2 else y, x)
    tx = gx.shampoo(0.1)
    with pytest.raises(ValueError, match=r"those of a preconditioner.*pass match=") as error:
        gx.migrate_state(state_of(tx, old), tx, tx, new, grown=True)
    said = str(error.value)
    match = eval(said[said.index("match=") + 6 : -1])  # what the message advises
    migrated, report = gx.migrate_state(state_of(tx, old), tx, tx, new, grown=True, match=match)
    fresh = tx.init(new)
    assert {x.slot for x in report.begun} and jax.tree.structure(migrated) == jax.tree.structure(
        fresh
    )


def test_copies_of_the_parameters_begin_at_the_new_ones():
    for tx in (gx.moving_average(ADAM), gx.lookahead(ADAM, 3, 0.5), gx.schedule_free_adamw(0.1)):
        state = state_of(tx)
        new, _ = gx.migrate_state(state, tx, tx, NEW, grown=True)
        copies = [x for x in jax.tree.leaves(new) if x.shape == (7, 2)]
        olds = [x for x in jax.tree.leaves(state) if x.shape == (5, 2)]
        assert any(same_bits(x[5:], NEW["emb"][5:]) for x in copies)
        for x, old in zip(copies, olds, strict=True):
            assert_identical(x[:5], old)


def test_factored_means_go_on_along_the_axes_that_they_have():
    tx = gx.adafactor(1e-2, min_dim_size_to_factor=2)
    state = state_of(tx)
    new, _ = gx.migrate_state(state, tx, tx, NEW, grown={"emb": 0})
    by_row = [x for x in jax.tree.leaves(new[0]) if x.shape == (7,)]
    assert len(by_row) == 1 and float(jnp.sum(by_row[0][5:])) == 0
    assert any(same_bits(by_row[0][:5], x) for x in jax.tree.leaves(state[0]) if x.shape == (5,))
    # The longer dimension becomes the shorter one: the means would be over the other dimension.
    params = OLD | {"w": jnp.ones((9, 4))}
    with pytest.raises(ValueError, match=r"migrate_state: .*v_") as error:
        gx.migrate_state(state, tx, tx, params, grown={"w": {0: slice(0, 3)}})
    assert "keeps other dimensions" in str(error.value)


FORMS = {
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 128),
    "rank1": lambda tx: gx.quantize_state(tx, 4, 64, "rank1"),
    "bfloat16": gx.state_dtype,
    "host": gx.offload_state,
    "host in 8 bits": lambda tx: gx.offload_state(gx.quantize_state(tx)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [0, 1])
def test_slots_in_other_forms_grow(form, dim):
    tx = FORMS[form](ADAM)
    old = {"w": normal((64, 129)), "b": normal((4,))}
    new = {"w": jnp.pad(old["w"], [(0, 3 * (d == dim)) for d in range(2)]), "b": old["b"]}
    state = state_of(tx, old)
    migrated, report = gx.migrate_state(state, tx, tx, new, grown={"w": dim})
    like = jax.eval_shape(tx.init, new)
    assert jax.tree.structure(migrated) == jax.tree.structure(like)
    kinds = [x.sharding.memory_kind for x in jax.tree.leaves(migrated)]
    assert kinds == [x.sharding.memory_kind for x in jax.tree.leaves(state)]
    before, after = (numbers_of(x) for x in (state, migrated))
    for x, y in zip(before, after, strict=True):
        rtol = {"4 bits": 0.2, "rank1": 0.3}.get(form, 0.1 if "8" in form else 0)
        atol = 0 if form in ("bfloat16", "host") else float(np.max(np.abs(x), initial=0)) * rtol
        np.testing.assert_allclose(y[tuple(map(slice, x.shape))], x, rtol=1e-6, atol=atol)
        if y.shape != x.shape:
            np.testing.assert_array_equal(np.delete(y, np.s_[: x.shape[dim]], dim), 0)
    assert not report.begun


def numbers_of(state):
    leaves = jax.tree.leaves(state, is_leaf=is_stored)
    return [
        np.asarray((x.load() if is_stored(x) else x).astype(jnp.float32)) for x in fetched(leaves)
    ]


WRAPPERS = {
    "MultiSteps": lambda tx: gx.MultiSteps(tx, 2),
    "partition": lambda tx: gx.partition(
        {"a": tx, "b": gx.sgd(0.1, 0.9)}, {"emb": "a", "w": "b", "b": "b"}
    ),
    "masked": lambda tx: gx.masked(tx, gx.path_matches("emb")),
    "inject": lambda tx: gx.inject_hyperparams(gx.adam)(0.1),
    "param_groups": lambda tx: gx.param_groups(tx, [gx.param_group("emb", inner=gx.adamw(0.1))]),
    "as_optax": gx.as_optax,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_inside_wrappers_and_under_jit(name):
    tx = WRAPPERS[name](ADAM)
    state = state_of(tx)
    new, report = gx.migrate_state(state, tx, tx, NEW, grown={"emb": 0})
    grown = [x for x in jax.tree.leaves(new) if x.shape == (7, 2)]
    olds = [x for x in jax.tree.leaves(state) if x.shape == (5, 2)]
    assert grown and len(grown) == len(olds)
    for x, old in zip(grown, olds, strict=True):
        assert_identical(x[:5], old)
        assert not np.any(x[5:])
    migrate = jax.jit(
        lambda s, p: gx.migrate_state(s, tx, tx, p, grown={"emb": 0}), donate_argnums=()
    )
    jitted, same = migrate(state, NEW)
    assert same == report
    assert jax.tree.structure(jitted) == jax.tree.structure(new)
    for x, y in zip(jax.tree.leaves(jitted), jax.tree.leaves(new), strict=True):
        assert same_bits(x, y)
    jax.jit(tx.update, donate_argnums=(1,))(NEW, new, NEW)


def test_the_optimizer_may_change_at_once():
    new_tx = gx.chain(gx.clip_by_global_norm(1.0), gx.nadamw(1e-2))
    new, report = gx.migrate_state(state_of(ADAM), ADAM, new_tx, NEW, grown=True)
    assert_identical(new[1][0].mu["emb"][:5], state_of(ADAM)[0].mu["emb"])
    assert not report.begun


def test_masters_grow_and_take_another_form():
    old = jax.tree.map(lambda x: (x / 3).astype(jnp.bfloat16), OLD)
    new = jax.tree.map(lambda x: (x / 3).astype(jnp.bfloat16), NEW)
    forms = [gx.master_weights, lambda tx: gx.master_weights(tx, remainders=True)]
    for first, second in itertools.product(forms, forms):
        tx, new_tx = first(ADAM), second(ADAM)
        state = tx.init(old)
        migrated, _ = gx.migrate_state(state, tx, new_tx, new, grown={"emb": 0})
        assert_identical(migrated.master["emb"], new_tx.init(new).master["emb"])


def test_a_state_that_was_restored_without_a_target_grows():
    from flax import serialization

    state = state_of(ADAM)
    restored = serialization.to_state_dict(state)
    new, _ = gx.migrate_state(restored, ADAM, ADAM, NEW, grown=True)
    want, _ = gx.migrate_state(state, ADAM, ADAM, NEW, grown=True)
    assert_identical(new, want)


def mesh_of(kind):
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_arrays_are_sharded_as_the_new_parameters(kind):
    place = NamedSharding(mesh_of(kind), P("x", "y"))
    old = {"w": jax.device_put(normal((8, 8)), place)}
    new = {"w": jax.device_put(normal((16, 8)), place)}
    with jax.set_mesh(mesh_of(kind)):
        state = ADAM.init(old)
        _, state = jax.jit(ADAM.update)(old, state, old)
        migrated, _ = gx.migrate_state(state, ADAM, ADAM, new, grown={"w": 0})
        assert migrated[0].mu["w"].sharding == place
        jitted = jax.jit(lambda s, p: gx.migrate_state(s, ADAM, ADAM, p, grown={"w": 0})[0])
        again = jitted(state, new)
    assert_identical(np.asarray(migrated[0].mu["w"])[:8], np.asarray(state[0].mu["w"]))
    assert_identical(jax.device_get(again), jax.device_get(migrated))


# ------------------------------------------------------------------------------- what is refused

REFUSED = [
    (None, ValueError, "has shape (5, 2), expected (7, 2)", "pass grown=True"),
    (False, ValueError, "has shape (5, 2), expected (7, 2)", "pass grown=True"),
    ({"emm": 0}, ValueError, "grown names 'emm', which is not a parameter. Did you mean 'emb'?"),
    ({}, ValueError, "['emb'] has shape (5, 2), expected (7, 2)", "grown=True"),
    ({"emb": 0, "w": 1}, ValueError, "grown names dimension 1 of w, which has 4 entries, as in"),
    ({"emb": {0: range(7)}}, ValueError, "dimension 0 of emb, which has 7 entries, as in the old"),
    ({"emb": 2}, ValueError, "grown['emb'] must be dimensions of 2", "got 2"),
    ({"emb": True}, ValueError, "grown['emb'] must be dimensions of 2", "True"),
    ({"emb": {0: [0, 1, 2, 3, 7]}}, ValueError, "grown['emb'][0] must be a slice, or different"),
    ({"emb": {0: [0, 1, 2, 3, 3]}}, ValueError, "different indices below 7"),
    ({"emb": {0: [0.0, 1.0]}}, ValueError, "different indices below 7"),
    ({"emb": {0: [0, 1]}}, ValueError, "has shape (5, 2), expected (2, 2)"),
    (["emb"], TypeError, "grown must be True, or a dict from paths of parameters", "['emb']"),
]  # fmt: skip


@pytest.mark.parametrize("grown, error, words", [(a, b, c) for a, b, *c in REFUSED])
def test_bad_arguments_are_refused(grown, error, words):
    with pytest.raises(error) as raised:
        gx.migrate_state(state_of(ADAM), ADAM, ADAM, NEW, grown=grown)
    for word in ("migrate_state: ", *words):
        assert word in str(raised.value)


def test_a_parameter_that_has_shrunk_is_refused():
    with pytest.raises(ValueError, match=r"emb has 5 entries along dimension 0.*have 7.*cut"):
        gx.migrate_state(state_of(ADAM, NEW), ADAM, ADAM, OLD, grown=True)


def test_a_vector_of_all_parameters_cannot_grow():
    tx: Any = gx.flatten(ADAM)
    with pytest.raises(ValueError, match="has shape"):
        gx.migrate_state(state_of(tx), tx, tx, NEW, grown=True)


def test_the_pieces_of_zero1_cannot_grow():
    replicas = gd.Replicas(n=2, mode="vmap")
    tx = gd.zero1(ADAM, "replica")
    state = replicas.wrap(tx.init)(replicas.replicate(OLD))
    grow = replicas.wrap(lambda state, p: gx.migrate_state(state, tx, tx, p, grown=True)[0])
    with pytest.raises(ValueError, match=r"mu\['emb'\].*such as the pieces of zero1, cannot grow"):
        grow(state, replicas.replicate(NEW))


def test_a_transform_without_slots_has_nothing_that_could_be_wrong():
    tx = gx.sgd(0.1)
    new, _ = gx.migrate_state(state_of(tx), tx, tx, NEW, grown={"emb": 0})
    assert jax.tree.leaves(new) == []
