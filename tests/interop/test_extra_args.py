"""Extra arguments of `update` reach exactly the parts that declare them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PARAMS = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray([[3.0]])}
MASK = {"a": True, "b": False}
SEEN = {}  # by name of the part: the extra arguments that reached it in the last update


@pytest.fixture(autouse=True)
def _nothing_seen():
    SEEN.clear()


@gx.transform
class rule_with_value(gx.ArrayRule):
    def prepare(self, updates, state, params, *, value):
        SEEN["rule_with_value"] = {"value": value}
        return state, value

    def rule(self, g, p, value):
        return value * g


@gx.transform
class rule_with_default(gx.ArrayRule):
    def prepare(self, updates, state, params, *, value=10.0):
        SEEN["rule_with_default"] = {"value": value}
        return state, jnp.asarray(value, jnp.float32)

    def rule(self, g, p, value):
        return value * g


@gx.transform
class rule_without(gx.ArrayRule):
    def prepare(self, updates, state, params):
        SEEN["rule_without"] = {}
        return (state,)

    def rule(self, g, p):
        return g


@gx.transform
class transform_with_value(gx.Transform):
    def init(self, params):
        return gx.EmptyState()

    def update(self, updates, state, params=None, *, value, **extra):
        SEEN["transform_with_value"] = {"value": value, **extra}
        return jax.tree.map(lambda g: value * g, updates), state


@gx.transform
class transform_closed(gx.Transform):
    """Names one argument and takes no others."""

    def init(self, params):
        return gx.EmptyState()

    def update(self, updates, state, params=None, *, grad_norm):
        SEEN["transform_closed"] = {"grad_norm": grad_norm}
        return updates, state


def _functional_update(updates, state, params=None, *, value, **extra):
    SEEN["functions"] = {"value": value, **extra}
    return jax.tree.map(lambda g: value * g, updates), state


def functions():
    return gx.GradientTransformationExtraArgs(lambda params: (), _functional_update)


def _update_without(updates, state, params=None):
    SEEN["functions_without"] = {}
    return updates, state


class Foreign:
    """Somebody's object, with an explicit keyword."""

    def init(self, params):
        return ()

    def update(self, updates, state, params=None, *, value):
        SEEN["Foreign"] = {"value": value}
        return jax.tree.map(lambda g: value * g, updates), state


class ForeignWithout:
    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        SEEN["ForeignWithout"] = {}
        return updates, state


WANTING = {
    "rule_with_value": rule_with_value,
    "transform_with_value": transform_with_value,
    "functions": functions,
    "Foreign": Foreign,
}

# Every wrapper that runs another transform, as a function of what it wraps.
WRAPPERS = {
    "chain": lambda tx: gx.chain(gx.scale(1.0), tx, gx.scale(1.0)),
    "chain in chain": lambda tx: gx.chain(gx.clip(99.0), gx.chain(gx.scale(1.0), tx)),
    "named_chain": lambda tx: gx.named_chain(("one", gx.scale(1.0)), ("two", tx)),
    "masked": lambda tx: gx.masked(tx, MASK),
    "partition": lambda tx: gx.partition({"x": tx, "y": gx.scale(1.0)}, {"a": "x", "b": "y"}),
    "MultiSteps": lambda tx: gx.MultiSteps(tx, 1),
    "lookahead": lambda tx: gx.lookahead(tx, 10, 0.5),
    "apply_if_finite": lambda tx: gx.apply_if_finite(tx, 1),
    "inject_hyperparams": lambda tx: gx.inject_hyperparams(_scaled, static_args="inner")(1.0, tx),
}


def _scaled(step_size: float, inner: object):
    return gx.chain(gx.scale(step_size), inner)


def call(tx, jit=False, **extra):
    update = jax.jit(tx.update) if jit else tx.update
    return update(PARAMS, tx.init(PARAMS), PARAMS, **extra)[0]


@pytest.mark.parametrize("wrapper", list(WRAPPERS))
@pytest.mark.parametrize("part", list(WANTING))
def test_a_declared_argument_arrives(wrapper, part):
    tx = WRAPPERS[wrapper](WANTING[part]())
    updates = call(tx, value=jnp.asarray(3.0))
    np.testing.assert_allclose(updates["a"], 3 * PARAMS["a"])
    assert set(SEEN) == {part}


@pytest.mark.parametrize("part", list(WANTING))
def test_a_missing_required_argument_names_the_part_and_itself(part):
    tx = gx.chain(gx.scale(1.0), gx.masked(WANTING[part](), MASK))
    named = {"functions": "_functional_update"}.get(part, part)
    with pytest.raises(TypeError, match=f"{named}: needs the extra argument 'value'"):
        call(tx)
    with pytest.raises(TypeError, match=f"{named}: needs the extra argument 'value'"):
        call(tx, jit=True, other=jnp.asarray(1.0))


def test_every_part_gets_what_it_declares_and_no_more():
    tx = gx.chain(
        rule_with_value(),
        rule_without(),
        rule_with_default(),
        transform_with_value(),
        transform_closed(),
        functions(),
        gx.GradientTransformation(lambda params: (), _update_without),
        Foreign(),
        ForeignWithout(),
        gx.adam(0.1),
    )
    extra = {"value": jnp.asarray(2.0), "grad_norm": jnp.asarray(1.0), "loss_fn": None}
    call(tx, **extra)
    assert {name: set(seen) for name, seen in SEEN.items()} == {
        "rule_with_value": {"value"},
        "rule_without": set(),
        "rule_with_default": {"value"},
        "transform_with_value": {"value", "grad_norm", "loss_fn"},
        "transform_closed": {"grad_norm"},
        "functions": {"value", "grad_norm", "loss_fn"},
        "functions_without": set(),
        "Foreign": {"value"},
        "ForeignWithout": set(),
    }


def test_a_default_is_used_where_the_argument_is_not_given():
    np.testing.assert_allclose(call(gx.chain(rule_with_default()))["a"], 10 * PARAMS["a"])
    found = call(gx.chain(rule_with_default()), value=jnp.asarray(2.0))
    np.testing.assert_allclose(found["a"], 2 * PARAMS["a"])


@pytest.mark.parametrize("make", [rule_with_value, transform_with_value, functions])
def test_an_argument_arrives_without_a_chain(make):
    np.testing.assert_allclose(call(make(), value=jnp.asarray(3.0))["a"], 3 * PARAMS["a"])
    with pytest.raises(TypeError, match="'value'"):
        call(make())


def test_extra_arguments_are_traced_under_jit():
    traces = []

    @gx.transform
    class counted(gx.ArrayRule):
        def prepare(self, updates, state, params, *, value):
            traces.append(value)
            return state, value

        def rule(self, g, p, value):
            return value * g

    tx = gx.chain(gx.clip(99.0), counted())
    update = jax.jit(tx.update)
    state = tx.init(PARAMS)
    for value in (2.0, 3.0, 4.0):
        updates, _ = update(PARAMS, state, PARAMS, value=jnp.asarray(value))
        np.testing.assert_allclose(updates["b"], value * PARAMS["b"])
    assert len(traces) == 1


def test_two_classes_of_one_name_are_routed_apart():
    def make(argument):
        if argument == "value":

            @gx.transform
            class same_name(gx.ArrayRule):
                def prepare(self, updates, state, params, *, value):
                    return state, value

                def rule(self, g, p, x):
                    return x * g
        else:

            @gx.transform
            class same_name(gx.ArrayRule):
                def prepare(self, updates, state, params, *, other):
                    return state, other

                def rule(self, g, p, x):
                    return x * g

        return same_name()

    tx = gx.chain(make("value"), make("other"))
    found = call(tx, value=jnp.asarray(2.0), other=jnp.asarray(5.0))
    np.testing.assert_allclose(found["a"], 10 * PARAMS["a"])


@pytest.mark.parametrize("wrapper", [gx.masked, gx.partition])
def test_extra_trees_are_masked_with_the_updates_on_request(wrapper):
    @gx.transform
    class subtract(gx.Transform):
        def init(self, params):
            return gx.EmptyState()

        def update(self, updates, state, params=None, *, other, **extra):
            return jax.tree.map(jnp.subtract, updates, other), state

    if wrapper is gx.masked:
        tx = gx.masked(subtract(), MASK, mask_compatible_extra_args=True)
    else:
        transforms = {"x": subtract(), "y": gx.scale(1.0)}
        labels = {"a": "x", "b": "y"}
        tx = gx.partition(transforms, labels, mask_compatible_extra_args=True)
    found = call(tx, other=PARAMS)
    assert not np.any(found["a"])
    np.testing.assert_array_equal(found["b"], PARAMS["b"])


def test_with_extra_args_support_accepts_a_foreign_object():
    assert gx.with_extra_args_support(gx.sgd(0.1)) == gx.sgd(0.1)
    foreign = gx.with_extra_args_support(ForeignWithout())
    np.testing.assert_array_equal(call(foreign, value=jnp.asarray(3.0))["a"], PARAMS["a"])
    np.testing.assert_array_equal(
        call(gx.with_extra_args_support(Foreign()), value=jnp.asarray(3.0))["a"], 3 * PARAMS["a"]
    )
