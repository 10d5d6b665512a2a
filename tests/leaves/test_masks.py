"""Masks and labels: the parameters they name must exist, and labels may be of any type."""

import enum
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PARAMS = {
    "encoder": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)},
    "head": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)},
}
VECTORS = {"a": jnp.ones(2), "b": jnp.ones(3)}


def step(tx, params=PARAMS, with_params=True):
    state = tx.init(params)
    return tx.update(params, state, params if with_params else None)[0]


# ------------------------------------------------------------------------- what names nothing

TYPO = gx.path_matches("kernal")
PLACES = {
    "masked": lambda mask: gx.masked(gx.sgd(1.0), mask),
    "masked, negated": lambda mask: gx.masked(gx.sgd(1.0), ~mask),
    "masked, combined": lambda mask: gx.masked(gx.sgd(1.0), mask | gx.ndim_at_least(2)),
    "masked, and not": lambda mask: gx.masked(gx.sgd(1.0), gx.ndim_at_least(1) & ~mask),
    "adamw": lambda mask: gx.adamw(0.1, mask=mask),
    "lars": lambda mask: gx.lars(0.1, weight_decay_mask=mask),
    "add_decayed_weights": lambda mask: gx.add_decayed_weights(0.1, mask),
    "label_by": lambda mask: gx.partition(
        {"a": gx.sgd(1.0), "b": gx.adam(1.0)}, gx.label_by(("a", mask), ("b", True))
    ),
    "label_by, where another mask has taken all": lambda mask: gx.partition(
        {"a": gx.sgd(1.0), "b": gx.adam(1.0)},
        gx.label_by(("b", gx.ndim_at_least(0)), ("a", mask), ("b", True)),
    ),
    "in a chain": lambda mask: gx.chain(gx.clip(1.0), gx.masked(gx.scale(2.0), mask)),
    "in a partition": lambda mask: gx.partition(
        {"a": gx.adamw(0.1, mask=mask)}, lambda p: jax.tree.map(lambda _: "a", p)
    ),
    "in masked": lambda mask: gx.masked(gx.masked(gx.sgd(1.0), mask), gx.ndim_at_least(2)),
    "in Optax's masked": lambda mask: optax.masked(optax.sgd(1.0), mask),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("jit", [False, True])
def test_a_pattern_that_no_path_matches_is_an_error_with_the_nearest(name, jit):
    tx = PLACES[name](TYPO)
    with pytest.raises(ValueError) as caught:
        (jax.jit(tx.init) if jit else tx.init)(PARAMS)
    said = str(caught.value)
    assert "path_matches('kernal') matches none of the parameters 'encoder/bias', " in said
    assert "Did you mean 'kernel'?" in said and "optional=True" in said
    step(PLACES[name](gx.path_matches("kernel$")))
    step(PLACES[name](gx.path_matches("kernal", optional=True)))


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("^encodr/", "'encoder'"),
        ("encoder/kernal$", "'encoder/kernel'"),
        ("^(?:bais|scale)$", "'bias'"),
        ("Head", "'head'"),
    ],
)
def test_the_nearest_piece_of_a_path_is_suggested(pattern, meant):
    with pytest.raises(ValueError, match=f"Did you mean {meant}"):
        gx.path_matches(pattern)(PARAMS)
    with pytest.raises(ValueError, match=r"none of the parameters 'a', 'b'\. Where it may"):
        gx.path_matches("nothing like it")(VECTORS)


def test_a_mask_of_shapes_may_select_nothing():
    for mask in (gx.ndim_at_least(2), gx.ndim_at_least(2) & gx.path_matches("a"), gx.any_of()):
        np.testing.assert_array_equal(step(gx.masked(gx.sgd(9.0), mask), VECTORS)["a"], jnp.ones(2))
        step(gx.adamw(0.1, mask=mask), VECTORS)
    parts = {"matrix": gx.scale(1.0), "rest": gx.scale(2.0)}
    labels = gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", True))
    np.testing.assert_array_equal(step(gx.partition(parts, labels), VECTORS)["a"], [2.0, 2.0])


def test_a_pattern_whose_parameters_are_hidden_is_found():
    biases = gx.path_matches("bias$")
    hidden = gx.masked(gx.masked(gx.scale(2.0), ~biases), gx.ndim_at_least(2))
    assert float(step(hidden)["head"]["kernel"][0, 0]) == 2.0
    inner = {"matrix": gx.adamw(0.1, mask=~biases), "rest": gx.masked(gx.sgd(1.0), biases)}
    labels = gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", True))
    assert float(step(gx.partition(inner, labels))["head"]["bias"][0]) == -1.0
    step(gx.chain(gx.partition(inner, labels), gx.masked(gx.scale(2.0), gx.path_matches("^head"))))
    frozen = PARAMS | {"encoder": {"kernel": None, "bias": None}}
    step(gx.masked(gx.sgd(1.0), gx.path_matches("^encoder/kernel")), frozen)


def test_a_branch_without_gradients_hides_no_pattern():
    tx = gx.masked(gx.sgd(1.0), gx.path_matches("encoder/kernel"))
    state = tx.init(PARAMS)
    for params in (PARAMS, None):
        updates, _ = tx.update({"encoder": None, "head": PARAMS["head"]}, state, params)
        assert updates["encoder"] is None and float(updates["head"]["bias"][0]) == 1.0


def test_without_parameters_nothing_is_missing():
    for tree in ({}, {"a": {}}, (), [], None):
        assert gx.path_matches("a")(tree) == tree
        step(gx.masked(gx.adam(0.1), gx.path_matches("a")), tree)


def test_the_flag_optional_is_printed_and_pickled():
    mask = gx.path_matches("a", optional=True)
    assert repr(mask) == "path_matches(pattern='a', optional=True)"
    assert pickle.loads(pickle.dumps(mask)) == mask != gx.path_matches("a")
    assert gx.from_json(gx.to_json(mask)) == mask


# ------------------------------------------------------------------------------------ empty trees

EMPTY = {
    "{}": {},
    "{'a': {}}": {"a": {}},
    "()": (),
    "[]": [],
    "None": None,
    "an empty branch": {"a": {}, "b": jnp.ones(2)},
    "None beside an array": {"a": None, "b": jnp.ones(2)},
}
LABELS = {
    "one": lambda tree: "a",
    "a function": lambda tree: lambda p: jax.tree.map(lambda _: "a", p),
    "a tree": lambda tree: jax.tree.map(lambda _: "a", tree),
    "a prefix": lambda tree: {k: "b" for k in tree} if tree and type(tree) is dict else "b",
}


def groups(lib):
    return {"a": lib.adam(0.1), "b": lib.sgd(1.0)}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_trees_are_masked_and_partitioned_as_by_optax(name):
    tree = EMPTY[name]

    def step_of(tx):
        return jax.jit(lambda t: step(tx, t))(tree)

    def both(make):
        with jax.numpy_dtype_promotion("standard"):
            theirs = step_of(make(optax))
        ours = step_of(make(gx))
        assert jax.tree.structure(theirs) == jax.tree.structure(ours)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), theirs, ours)

    for mask in (True, False, jax.tree.map(lambda _: True, tree) if tree is not None else True):
        both(lambda lib, mask=mask: lib.masked(lib.adam(0.1), mask))
    for labels in LABELS.values():
        made = labels(tree)
        if made is not None:  # a tree without labels to Optax, nothing to us
            both(lambda lib, made=made: lib.partition(groups(lib), made))


def test_an_entry_below_an_empty_branch_matches_nothing():
    with pytest.raises(ValueError, match=r"the entry \['a'\]\['w'\]: True matches no parameter"):
        gx.masked(gx.sgd(1.0), {"a": {"w": True}, "b": True}).init(EMPTY["an empty branch"])


# ---------------------------------------------------------------------------- labels of any type


class Group(enum.Enum):
    SLOW = 1
    FAST = "fast"


class Kind(enum.StrEnum):
    DECAYED = "decayed"


KEYS = (1, "a", Group.SLOW, Group.FAST, None, ("a", 1), 2.5, True + 1)


def parted(labels):
    """A partition that multiplies the parameter of the n-th label by n + 2."""
    return {label: gx.scale(float(n + 2)) for n, label in enumerate(labels)}


@pytest.mark.parametrize("jit", [False, True])
def test_labels_may_be_of_several_types(jit):
    tree = {f"p{n}": jnp.ones(n + 1) for n in range(len(KEYS))}
    by_mask = gx.label_by(*((k, gx.path_matches(f"^p{n}$")) for n, k in enumerate(KEYS)))
    by_tree = {f"p{n}": k for n, k in enumerate(KEYS)}
    for labels in (by_mask, by_tree, lambda p: {name: by_tree[name] for name in p}):
        tx = gx.partition(parted(KEYS), labels)
        init, update = (jax.jit(tx.init), jax.jit(tx.update)) if jit else (tx.init, tx.update)
        state = init(tree)
        updates, state = update(tree, state, tree)
        updates, state = update(updates, state, tree)
        for n in range(len(KEYS)):
            np.testing.assert_array_equal(updates[f"p{n}"], np.full(n + 1, (n + 2.0) ** 2))
        assert set(state.inner_states) == set(KEYS)
        assert jax.tree.structure(state) == jax.tree.structure(init(tree))
    same = gx.partition(parted(KEYS), by_mask)
    assert same == gx.partition(dict(reversed(parted(KEYS).items())), by_mask)
    assert hash(same) == hash(gx.partition(parted(KEYS), by_mask))
    assert pickle.loads(pickle.dumps(same)) == same and gx.replace(same, param_labels=by_tree)
    assert "OrderedDict" not in repr(same) and len(gx.describe(same, tree).rows) == len(KEYS) + 1


def test_a_state_by_labels_that_sort_is_a_dict_like_optax_s():
    for keys in (("b", "a"), (2, 1), (True, False), (2.5, 1), (("b", 1), ("a", 2))):
        labels = {str(n): k for n, k in enumerate(keys)}
        tree = {str(n): jnp.ones(2) for n in range(len(keys))}
        ours = gx.partition(parted(keys), labels).init(tree)
        assert type(ours.inner_states) is dict
        if not isinstance(keys[0], tuple):
            theirs = optax.partition({k: optax.scale(1.0) for k in keys}, labels).init(tree)
            assert ours.inner_states.keys() == theirs.inner_states.keys()


def test_true_is_another_label_than_1_and_an_enum_of_strings_is_its_string():
    tree = {"w": jnp.ones(2)}
    for key, label in ((1, True), (True, 1), (1.0, True), (0, False)):
        for labels in ({"w": label}, gx.label_by((label, True)), lambda p, x=label: {"w": x}):
            with pytest.raises(ValueError, match=f"label {label}.* a transform; there are {key}"):
                gx.partition({key: gx.sgd(1.0)}, labels).init(tree)
    for key in (True, 1, "a"):  # one label for all parameters
        gx.partition({key: gx.sgd(1.0)}, key).init(tree)
    for key, label in (("decayed", Kind.DECAYED), (Kind.DECAYED, "decayed"), (1, np.int32(1))):
        gx.partition({key: gx.sgd(1.0)}, {"w": label}).init(tree)
    one, other = (gx.partition({k: gx.sgd(1.0)}, {"w": k}) for k in (1, True))
    assert one != other
    with pytest.raises(ValueError, match="made by another partition"):
        other.update(tree, one.init(tree), tree)


def test_a_config_has_labels_of_several_types():
    keys = (1, "a", None, ("a", 1), 2.5)
    tx = gx.partition(parted(keys), gx.label_by(*((k, gx.ndim_at_least(0)) for k in keys)))
    assert gx.from_json(gx.to_json(tx)) == tx


@pytest.mark.parametrize(
    "mask", [{"dense": False, "head": True}, lambda p: {"dense": False, "head": True}]
)
def test_a_pattern_is_found_in_a_branch_that_a_mask_leaves_out(mask):
    params = {"dense": {"kernel": jnp.ones((2, 2))}, "head": {"scale": jnp.ones(2)}}
    tx = gx.masked(gx.adamw(0.1, mask=gx.path_matches("kernel")), mask)
    state = tx.init(params)
    assert type(state.inner_state[0].mu["dense"]).__name__ == "MaskedNode"
    updates, new = tx.update(params, state, params)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    np.testing.assert_array_equal(updates["dense"]["kernel"], 1)
    with pytest.raises(ValueError, match=r"kernl.*matches none of the parameters"):
        gx.masked(gx.adamw(0.1, mask=gx.path_matches("kernl")), mask).init(params)


def test_a_branch_left_out_by_one_label_is_one_node():
    params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": jnp.ones(2)}
    tx = gx.partition({"a": gx.trace(0.9), "b": gx.trace(0.5)}, {"dense": "a", "scale": "b"})
    state = tx.init(params)
    assert type(state.inner_states["b"].inner_state.trace["dense"]).__name__ == "MaskedNode"
    for grads in (params, {"dense": None, "scale": jnp.ones(2)}):
        updates, new = tx.update(grads, state, params)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert jax.tree.structure(updates) == jax.tree.structure(grads)


def test_none_of_several_masks_leaves_out_what_any_of_them_selects():
    tree = {"w": jnp.ones((2, 3)), "bias": jnp.ones(3), "s": jnp.ones(())}
    neither = gx.none_of(gx.ndim_at_least(2), gx.path_matches("bias"))
    assert neither(tree) == {"w": False, "bias": False, "s": True}
