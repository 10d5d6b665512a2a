"""Extra arguments of update: a misspelt name is an error, any other name passes, as in Optax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.errors import name_of

PARAMS = {"w": jnp.ones(3), "b": jnp.ones(2)}
POLYAK = gx.scale_by_polyak()


def kinds(params):
    return jax.tree.map(lambda _: "a", params)


@gx.transform
class times_factor(gx.ArrayRule):
    """A rule of another package that may be given a number."""

    locality = "entry"

    def prepare(self, updates, state, params, *, factor=1.0):
        return state, factor

    def rule(self, g, p, factor):
        return factor * g


@gx.transform
class logging(gx.Transform):
    """A wrapper of another package, which may take any extra argument."""

    inner: object

    def init(self, params):
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        return self.inner.update(updates, state, params, **extra)


def scaled_by(updates, state, params=None, *, factor=1.0):
    return jax.tree.map(lambda g: factor * g, updates), state


def scaled_by_any(updates, state, params=None, **extra):
    return jax.tree.map(lambda g: extra.get("factor", 1.0) * g, updates), state


def scaled_by_position(updates, state, params=None, factor=1.0):
    return jax.tree.map(lambda g: factor * g, updates), state


def scaled_twice(first, updates, state, params=None, *, factor=1.0):
    return scaled_by(updates, state, params, factor=first * factor)


def made(rate):
    return gx.chain(times_factor(), gx.scale(rate))


def nothing(params):
    return ()


TX = times_factor()
WITH_FACTOR = {
    "a rule": TX,
    "a chain": gx.chain(gx.clip(9.0), TX),
    "a chain in a chain": gx.chain(gx.clip(9.0), gx.chain(gx.scale(1.0), gx.chain(TX))),
    "named_chain": gx.named_chain(("a", gx.scale(1.0)), ("b", TX)),
    "sum_of": gx.sum_of(TX, gx.set_to_zero()),
    "masked": gx.masked(TX, {"w": True, "b": True}),
    "partition": gx.partition({"a": TX, 1: gx.adam(0.1)}, kinds),
    "MultiSteps": gx.MultiSteps(TX, 1),
    "apply_if_finite": gx.apply_if_finite(TX, 2),
    "external_step": gx.external_step(gx.chain(gx.scale_by_schedule(lambda n: 1.0), TX)),
    "sparse_semantics": gx.sparse_semantics(TX, "dense"),
    "inject_hyperparams": gx.inject_hyperparams(made)(1.0),
    "two functions": gx.GradientTransformation(nothing, scaled_by),
    "two functions, extra": gx.GradientTransformationExtraArgs(nothing, scaled_by),
    "two functions, by position": gx.GradientTransformationExtraArgs(nothing, scaled_by_position),
    "a partial": gx.GradientTransformation(nothing, functools.partial(scaled_twice, 1.0)),
    "Optax's": gx.chain(gx.clip(9.0), optax.GradientTransformationExtraArgs(nothing, scaled_by)),
    "with_extra_args_support": gx.with_extra_args_support(
        optax.GradientTransformationExtraArgs(nothing, scaled_by)
    ),
}


def step(tx, **extra):
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS, **extra)[0]


@pytest.mark.parametrize("name", WITH_FACTOR)
def test_a_misspelt_extra_argument_is_an_error_with_a_suggestion(name):
    tx = WITH_FACTOR[name]
    np.testing.assert_array_equal(step(tx, factor=4.0)["w"], 4 * np.ones(3))
    np.testing.assert_array_equal(step(tx, factor=4.0, nobody_asked=1)["w"], 4 * np.ones(3))
    np.testing.assert_array_equal(step(tx, other=1, loss=2.0)["w"], np.ones(3))
    for update in (tx.update, jax.jit(tx.update)):
        with pytest.raises(TypeError) as caught:
            update(PARAMS, tx.init(PARAMS), PARAMS, facotr=4.0)
        said = str(caught.value)
        assert "no part takes the extra argument 'facotr'" in said
        assert "Did you mean 'factor'?" in said and said.startswith(name_of(tx))


ANYTHING = {
    "a function of any": gx.GradientTransformationExtraArgs(nothing, scaled_by_any),
    "beside a function of any": gx.chain(
        TX, gx.GradientTransformationExtraArgs(nothing, scaled_by_any)
    ),
    "Optax's chain": gx.chain(TX, optax.chain(optax.scale(1.0))),
    "a wrapper of another package": gx.chain(TX, logging(gx.scale(1.0))),
}


@pytest.mark.parametrize("name", ANYTHING)
def test_a_part_that_takes_anything_takes_everything(name):
    assert ANYTHING[name].extra_names() is None
    np.testing.assert_array_equal(step(ANYTHING[name], facotr=4.0)["w"], np.ones(3))


def test_a_transform_lists_the_extra_arguments_that_it_takes():
    assert gx.chain(gx.scale_by_polyak(), gx.external_step(gx.adam(0.1))).extra_names() == {
        *POLYAK.extra_names(),
        "step",
    }
    assert gx.adam(0.1).extra_names() == frozenset()
    assert gx.sophia(0.1).extra_names() >= {"obj_fn"}


def test_only_the_outermost_transform_checks_the_names():
    """An argument that an inner part does not take may belong to another part."""
    factors = gx.GradientTransformationExtraArgs(
        nothing, lambda u, s, p=None, *, factors=0.0: (jax.tree.map(lambda g: g + factors, u), s)
    )
    inner = gx.masked(gx.chain(TX), True)
    tx = gx.chain(inner, gx.masked(factors, True), gx.apply_if_finite(inner, 2))
    np.testing.assert_array_equal(step(tx, factors=2.0)["w"], np.full(3, 3.0))
    np.testing.assert_array_equal(step(tx, factors=2.0, factor=3.0)["w"], np.full(3, 15.0))


def test_parameters_under_another_name_are_an_error():
    tx = gx.add_decayed_weights(0.1)
    with pytest.raises(TypeError, match=r"'param'.* Did you mean 'params'"):
        tx.update(PARAMS, tx.init(PARAMS), param=PARAMS)
    with pytest.raises(TypeError, match=r"'update'.* Did you mean 'updates'"):
        tx.update(update=PARAMS, state=tx.init(PARAMS), params=PARAMS)


def test_inside_optax_unknown_names_pass():
    tx = optax.chain(gx.as_optax(gx.chain(POLYAK)), optax.scale_by_polyak())
    step(tx, value=1.0)
    step(tx, value=1.0, value_fn=lambda p: 1.0, grad=PARAMS)
    with pytest.raises(TypeError, match=r"'valeu'.* Did you mean 'value'"):
        step(tx, valeu=1.0)


def test_a_partial_function_makes_a_transform():
    tx = gx.GradientTransformation(nothing, functools.partial(scaled_twice, 2.0))
    np.testing.assert_array_equal(step(tx, factor=3.0)["b"], 6 * np.ones(2))
    assert tx == gx.GradientTransformation(nothing, functools.partial(scaled_twice, 2.0))


STEPPING = {
    "model_average": lambda tx: gd.model_average(tx, "r", period=2),
    "elastic_average": lambda tx: gd.elastic_average(tx, "r", period=2, moving_rate=0.4, rho=0.0),
    "agn": lambda tx: gd.agn(tx, "r", period=2),
    "diloco": lambda tx: gd.diloco(tx, "r", period=2),
    "zero1": lambda tx: gd.zero1(tx, "r"),
    "tower": lambda tx: gd.tower(tx, "r"),
    "sync_replicas": lambda tx: gd.sync_replicas(tx, "r", replicas_to_aggregate=2),
}


@pytest.mark.parametrize("name", STEPPING)
def test_the_step_method_checks_the_names_too(name):
    tx = STEPPING[name](gx.external_step(gx.sgd(gx.linear_schedule(0.1, 0.0, 9))))
    params = {"w": jnp.ones((2, 4))}

    def one(p, **extra):
        return tx.step(p, tx.init(p), p, **extra)[0]

    stepped = jax.vmap(functools.partial(one, step=jnp.asarray(3)), axis_name="r")(params)
    assert np.isfinite(stepped["w"]).all()
    with pytest.raises(TypeError, match=r"'setp'.* Did you mean 'step'"):
        jax.vmap(functools.partial(one, setp=jnp.asarray(3)), axis_name="r")(params)
