"""What is remembered for a structure: computed once, and never where it may differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.leaves import flatten_with_names, masks
from gradxform.values import memory


@pytest.fixture
def asked(monkeypatch):
    """What `make` was called for, with nothing remembered at first."""
    monkeypatch.setattr(masks, "_KNOWN", memory.Memory())
    return []


def of(asked, tree, what="test"):
    def make():
        asked.append(what)
        return [len(asked)]

    return masks.entries_of(None, True, tree).once(what, make)


def test_a_result_is_computed_once_for_a_structure_with_its_shapes(asked):
    tree = {"w": jnp.ones((2, 3)), "b": None}
    assert of(asked, tree) is of(asked, {"w": np.zeros((2, 3)), "b": None})
    of(asked, {"w": jnp.ones((3, 2)), "b": None})
    of(asked, {"w": jnp.ones((2, 3)), "b": gx.MaskedNode()})
    of(asked, {"w": jnp.ones((2, 3)), "b": 1.0})
    of(asked, {"w": jnp.ones((2, 3)), "c": None})
    of(asked, tree, what="another")
    assert len(asked) == 6


@jax.tree_util.register_pytree_node_class
class WithArray:
    """A node whose structure has an array, which has no hash."""

    def tree_flatten(self):
        return [1.0], np.ones(2)

    @classmethod
    def tree_unflatten(cls, _, __):
        return cls()


def test_what_has_no_hash_and_what_fails_are_not_remembered(asked):
    def fails():
        raise ValueError("no")

    for _ in range(2):
        of(asked, [WithArray()])
        with pytest.raises(ValueError, match="no"):
            masks.entries_of(None, True, [1.0]).once("fails", fails)
    assert len(asked) == 2
    assert of(asked, [1.0], what="fails") == [3]


def test_a_memory_that_is_full_begins_anew(asked):
    first = of(asked, [1.0])
    for i in range(memory.MOST):
        of(asked, {i: 1.0})
    assert of(asked, [1.0]) != first and len(masks._KNOWN._items) <= memory.MOST


def test_what_a_function_answers_is_resolved_once(asked):
    tree = {"w": jnp.ones(2), "b": jnp.ones(2)}
    answers = [True, False, True]

    def mask(params):
        asked.append(params)
        return {"w": answers[len(asked) - 1], "b": True}

    first, other, again = (masks.entries_of(None, mask, tree) for _ in answers)
    assert len(asked) == 3 and again is first and other is not first
    assert not masks.resolve(None, lambda _: {"w": False, "b": True}, tree)["w"]
    masks.resolve(None, True, tree)["w"] = None  # a tree of its own
    assert masks.resolve(None, True, tree) == {"w": True, "b": True}


def test_numbers_that_are_equal_are_different_entries(asked):
    for n in (1, True, 1.0):
        (entry,) = masks.entries_of(None, n, [1.0], object).in_order
        assert type(entry) is type(n)


def test_paths_are_those_of_the_tree_at_hand():
    for _ in range(2):
        for tree in ({"a": 1, "b": 2}, {"a": 1, "c": 2}, [1, 2], ({"a": 1}, 2)):
            named, treedef = flatten_with_names(tree)
            assert treedef.unflatten(x for _, x in named) == tree
        assert [path for path, _ in named] == [("0", "a"), ("1",)]


def test_a_mask_that_may_look_at_numbers_is_asked_at_every_update():
    tx = gx.masked(gx.scale(2.0), lambda p: {"w": bool(p["w"].sum() > 0)})
    up, down = {"w": jnp.ones(2)}, {"w": -jnp.ones(2)}
    state = tx.init(up)
    assert tx.update(up, state, up)[0]["w"][0] == 2
    assert tx.update(up, state, down)[0]["w"][0] == 1


def test_labels_follow_the_shapes_of_the_parameters_at_hand():
    labels = gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", True))
    tx = gx.partition({"matrix": gx.scale(2.0), "rest": gx.scale(3.0)}, labels)
    for _ in range(2):
        for shape, factor in (((2, 2), 2), ((2,), 3), ((), 3), ((1, 2, 2), 2)):
            p = {"w": jnp.ones(shape)}
            updates, _ = tx.update(p, tx.init(p), p)
            np.testing.assert_array_equal(updates["w"], factor * np.ones(shape))


def test_other_transforms_with_the_same_labels_have_parts_of_their_own():
    labels = gx.label_by(("a", gx.path_matches("w")), ("b", True))
    p = {"w": jnp.ones(2), "c": jnp.ones(2)}
    for a, b in ((2.0, 3.0), (4.0, 5.0)):
        tx = gx.partition({"a": gx.scale(a), "b": gx.scale(b)}, labels)
        updates, _ = tx.update(p, tx.init(p), p)
        assert (updates["w"][0], updates["c"][0]) == (a, b)
    with pytest.raises(ValueError, match="does not have a transform"):
        gx.partition({"a": gx.scale(1.0)}, labels)
