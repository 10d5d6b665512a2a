"""Values as keys of compiled calls: values that differ at any depth have programs of their own."""

import dataclasses
import enum
import functools
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.values import FrozenTree, key_of

pytestmark = pytest.mark.numeric


class Gain(NamedTuple):
    by: Any


class Loss(NamedTuple):
    by: Any


@dataclasses.dataclass(frozen=True)
class Record:
    by: Any


class Percent(float):
    pass


class Level(enum.IntEnum):
    LOW = 1


def factor(x):
    """Return the factor of a rule that branches on the type of its field."""
    if isinstance(x, Gain | Record):
        return 10 * factor(x.by)
    if isinstance(x, Loss):
        return -factor(x.by)
    if isinstance(x, Percent):
        return float(x) / 100
    if isinstance(x, frozenset | tuple):
        return 7 + sum(map(factor, x))
    if isinstance(x, FrozenTree):
        return 5 + sum(map(factor, x.unfreeze()))
    if isinstance(x, functools.partial):
        return 3 * x()
    if isinstance(x, bool):
        return 1000.0
    if isinstance(x, int | float):
        return 2 * x if isinstance(x, int) else x
    return x if isinstance(x, jax.Array) else 1.0


@gx.transform
class times_field(gx.ArrayRule):
    """A rule of another package, whose field may be any value."""

    field: Any
    locality = "entry"

    def rule(self, g, p):
        return factor(self.field) * g


@gx.transform
class times_tree(gx.ArrayRule):
    """The same of a static tree."""

    field: gx.types.StaticTree
    locality = "entry"

    def rule(self, g, p):
        return factor(self.field) * g


def plus(a, b=0):
    return a + b


# Each two are equal to Python, or look alike; a rule may tell them apart.
CONFUSED = {
    "named tuples of two classes": (Gain(2.0), Loss(2.0)),
    "a named tuple and a tuple": (Gain(2.0), (2.0,)),
    "named tuples of 1 and True": (Gain(1), Gain(True)),
    "frozen dataclasses of 1 and 1.0": (Record(1), Record(1.0)),
    "frozen dataclasses of 0.0 and -0.0": (Record(0.0), Record(-0.0)),
    "a float and a subclass": (50.0, Percent(50.0)),
    "a subclass of float in a tuple": ((50.0,), (Percent(50.0),)),
    "frozensets": (frozenset({1}), frozenset({True})),
    "frozensets in tuples": ((frozenset({1}),), (frozenset({1.0}),)),
    "an enum and its number": (Level.LOW, 1),
    "partials": (functools.partial(plus, 1), functools.partial(plus, 1.0)),
    "partials of keywords": (functools.partial(plus, 1, b=1), functools.partial(plus, 1, b=2)),
    "trees by their keys": (FrozenTree({1: 2.0}), FrozenTree({True: 2.0})),
    "deep": ((Gain((Record(1),)),), (Gain((Record(True),)),)),
}


def updated(tx):
    tree = {"w": jnp.full(3, 2.0)}
    return tx.update(tree, tx.init(tree), tree)[0]["w"]


@pytest.mark.parametrize("name", CONFUSED)
def test_values_that_differ_in_a_type_have_programs_of_their_own(name):
    one, other = CONFUSED[name]
    for make in (times_field, lambda x: gx.chain(gx.clip(1e9), times_field(x))):
        assert make(one) != make(other)
        for x in (one, other, one):
            np.testing.assert_allclose(updated(make(x)), float(factor(x)) * np.full(3, 2.0))


@pytest.mark.parametrize("name", CONFUSED)
def test_equal_values_are_equal_hash_alike_and_pickle(name):
    for x in CONFUSED[name]:
        tx = times_field(x)
        again = pickle.loads(pickle.dumps(tx))
        assert tx == again and hash(tx) == hash(again) and type(again.field) is type(tx.field)


def test_trees_with_keys_1_and_true_differ():
    one, other = times_tree({1: 2.0}), times_tree({True: 2.0})
    assert one != other and times_tree({1: 2.0}) == one
    assert float(updated(one)[0]) == (5 + 2) * 2.0 and float(updated(other)[0]) == (5 + 1000) * 2.0


def test_numpy_and_jax_scalars_are_python_numbers_at_every_depth():
    for wrap in (
        lambda x: x,
        lambda x: (x, (x,)),
        Gain,
        Record,
        lambda x: frozenset({x}),
        lambda x: functools.partial(plus, x),
        lambda x: FrozenTree({"a": [x]}),
    ):
        ours = times_field(wrap(0.5))
        for x in (np.float32(0.5), np.float64(0.5)):
            assert times_field(wrap(x)) == ours and repr(times_field(wrap(x))) == repr(ours)
        assert times_field(wrap(np.int32(1))) == times_field(wrap(1)) != times_field(wrap(True))
        assert times_field(wrap(np.bool_(True))) == times_field(wrap(True))
    for wrap in (lambda x: (x,), Gain, Record, lambda x: functools.partial(plus, b=x)):
        assert times_field(wrap(jnp.asarray(0.5))) == times_field(wrap(0.5))


def test_partials_are_compared_by_their_parts():
    for kind in (functools.partial, jax.tree_util.Partial):
        one, other = (gx.stateless(kind(plus, 0.5)) for _ in range(2))
        assert one == other and hash(one) == hash(other)
        assert one != gx.stateless(kind(plus, 0.25)) and one != gx.stateless(kind(max, 0.5))
    assert times_field(functools.partial(plus, 1)) != times_field(jax.tree_util.Partial(plus, 1))
    table = [1.0, 2.0]  # what can change is equal to nothing else
    held = functools.partial(plus, table)
    assert times_field(held) == times_field(held)
    assert times_field(held) != times_field(functools.partial(plus, table))
    shown = repr(gx.stateless(functools.partial(plus, b=0.5)))
    assert shown == "stateless(f=functools.partial(plus, b=0.5))"


# -------------------------------------------------------------------------------- not a value


class Config:
    def __init__(self):
        self.rate = 0.1


@dataclasses.dataclass
class Changeable:
    rate: float = 0.1

    def __call__(self, *args):
        return self.rate


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *args):
        return 0.1


REFUSED = {
    "a list": ([1, 2], "a list, which can change. Give a tuple or a frozenset."),
    "a dict": ({"a": 1}, "a dict, which can change"),
    "a set": ({1}, "a set, which can change"),
    "an array": (np.ones(3), "an array of shape (3,)"),
    "a dict with arrays": ({"a": np.ones(2)}, "a dict, which can change"),
    "a list in a tuple": ((1, [2]), "a list, which can change"),
    "an array in a tuple": ((1, jnp.ones(2)), "an array of shape (2,)"),
    "a list in a named tuple": (Gain([2]), "a list, which can change"),
    "a dict in a frozen dataclass": (Record({"a": 1}), "a dict, which can change"),
    "an object": (Config(), "equal only to itself. Make its class a frozen dataclass or a NamedT"),
    "a dataclass that can change": (Changeable(), "cannot be hashed. Make its class a frozen data"),
    "an unhashable function": (Unhashable(), "cannot be hashed. Make its class a frozen dataclass"),
    "a partial of an array": (functools.partial(plus, np.ones(2)), "a partial that holds an array"),
    "a partial of a tree of arrays": (
        functools.partial(plus, b={"a": [jnp.ones(2)]}),
        "a partial that holds an array of shape (2,). Arrays belong in the state",
    ),
    "a partial of an unhashable": (functools.partial(Unhashable(), 1), "cannot be hashed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_not_a_value_is_refused_with_its_class_and_name(name):
    x, words = REFUSED[name]
    with pytest.raises(TypeError) as caught:
        times_field(x)
    assert "times_field: field must be a value" in str(caught.value) and words in str(caught.value)


def test_arrays_in_trees_and_functions_without_hashes_are_refused():
    for make, words in (
        (lambda: times_tree({"a": np.ones(2)}), ("times_tree: field", "array of shape (2,)")),
        (lambda: times_tree([{1, 2}]), ("times_tree: field", "a set, which can change")),
        (lambda: times_tree(Unhashable()), ("times_tree: field", "cannot be hashed")),
        (
            lambda: gx.scale_by_schedule(functools.partial(plus, np.ones(2))),
            ("scale_by_schedule: step_size_fn", "a partial"),
        ),
        (lambda: gx.sgd(Changeable()), ("scale_by_learning_rate: learning_rate", "hashed")),
        (lambda: gx.inject_hyperparams(_given)([jnp.ones(2)]), ("inject_hyperparams: x", "array")),
    ):
        with pytest.raises(TypeError) as caught:
            make()
        for word in words:
            assert word in str(caught.value)


def _given(x):
    return gx.scale(x)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Equal to others of the same factor, whatever their shift."""

    factor: float
    shift: float = dataclasses.field(default=0.0, compare=False)


@gx.transform
class shifted_by(gx.ArrayRule):
    """A rule that reads what its field's own `==` leaves out."""

    by: Any

    def rule(self, g, p):
        return self.by.factor * g + self.by.shift


def test_fields_that_a_dataclass_does_not_compare_are_part_of_a_value():
    one, other = (shifted_by(Labelled(2.0, shift)) for shift in (1.0, 3.0))
    assert one != other
    for tx, shift in ((one, 1.0), (other, 3.0)):
        updates, _ = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        np.testing.assert_array_equal(updates["w"], np.full(2, 2.0 + shift))


def test_transforms_of_others_are_accepted_as_they_are():
    class Theirs:
        __hash__ = None  # type: ignore[assignment]

        def init(self, params):
            return ()

        def update(self, updates, state, params=None):
            return updates, state

    theirs = Theirs()
    assert gx.chain(theirs) == gx.chain(theirs) != gx.chain(Theirs())
    assert hash(gx.chain(theirs)) == hash(gx.chain(theirs))


# ---------------------------------------------------------------------------------- live numbers


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (x, 1),
        lambda x: ((1, (x,)),),
        Gain,
        Record,
        lambda x: Gain((Record(x),)),
        lambda x: functools.partial(plus, x),
        lambda x: functools.partial(plus, 1, b=x),
        lambda x: FrozenTree([x, 2.0]),
    ],
)
def test_live_numbers_are_found_at_every_depth(wrap):
    def stepped(x):
        return updated(times_field(wrap(x)))

    xs = jnp.asarray([0.25, 4.0])
    wanted = [np.full(3, float(factor(wrap(float(x)))) * 2.0) for x in xs]
    np.testing.assert_allclose(jnp.stack([jax.jit(stepped)(x) for x in xs]), wanted, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(stepped)(xs), wanted, rtol=1e-6)


def test_a_value_with_a_live_number_equals_only_itself():
    def compare(x):
        tx = times_field(Gain(x))
        assert tx == tx and tx != times_field(Gain(x))
        assert FrozenTree([x]) != FrozenTree([x])
        with pytest.raises(TypeError, match="live number"):
            key_of(tx)
        return x

    jax.jit(compare)(1.0)


def test_a_traced_array_is_refused_like_any_array():
    for wrap in (lambda x: x, lambda x: (x,), Gain, lambda x: functools.partial(plus, x)):
        with pytest.raises(TypeError, match=r"times_field: field must be a value.*shape \(2,\)"):
            jax.jit(lambda x, wrap=wrap: updated(times_field(wrap(x))))(jnp.ones(2))


def test_the_key_of_a_rule_may_be_traced():
    tree = {"w": jnp.ones(3)}

    def noise(key):
        tx = gx.add_noise(0.1, 0.55, key)
        return tx.update(tree, tx.init(tree))[0]["w"]

    keys = jax.random.split(jax.random.key(0), 2)
    np.testing.assert_array_equal(jax.vmap(noise)(keys)[1], noise(keys[1]))
    raw = jax.random.key_data(keys)
    np.testing.assert_array_equal(jax.vmap(noise)(raw)[1], noise(raw[1]))
    np.testing.assert_array_equal(jax.vmap(noise)(jnp.arange(2))[1], noise(1))


class _Tagged(tuple):
    """A tuple that says more than its entries."""


class _Slotted:
    """Equal to itself only, with an attribute that can change."""

    __slots__ = ("k",)


class _SlottedFloat(float):
    __slots__ = ("k",)


def _with(x, k):
    x.k = k
    return x


@pytest.mark.parametrize("make", [lambda: _Tagged((1,)), _Slotted], ids=["tuple", "slots"])
def test_an_object_with_attributes_outside_its_key_is_refused(make):
    with pytest.raises(TypeError, match=r"frozen dataclass or a NamedTuple"):
        times_field(_with(make(), 1.0))


def test_slots_of_a_number_are_part_of_its_key():
    one, other = (times_field(_with(_SlottedFloat(2.0), k)) for k in (1.0, 3.0))
    assert one != other
