"""Products with Hessians, Gauss-Newton and Fisher matrices, against dense ones in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import curvature
from tests.curvature.problem import (
    batch,
    dense_of,
    flat,
    hessian_of,
    jacobian_of,
    loss,
    model,
    params,
    squared_error,
)

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def assert_near(got, expected, rtol=1e-12):
    np.testing.assert_allclose(got, expected, rtol=0, atol=rtol * np.max(np.abs(expected)))


def test_the_hessian_is_that_of_jax():
    product = curvature.hessian_product(loss).at(params(), **batch())
    assert_near(dense_of(product, params()), hessian_of(lambda p: loss(p, **batch()), params()))


def test_the_gauss_newton_matrix_is_j_h_j():
    def soft(outputs, labels):
        return jnp.sum(jax.nn.logsumexp(outputs, axis=-1)) + jnp.sum(outputs * labels)

    product = curvature.gauss_newton_product(model, soft).at(params(), **batch())
    j = jacobian_of(lambda p: model(p, batch()["inputs"]), params())
    h = hessian_of(lambda z: soft(z, batch()["labels"]), model(params(), batch()["inputs"]))
    assert_near(dense_of(product, params()), j.T @ h @ j)


def test_outputs_may_be_a_tree_with_the_parameters():
    def both(params, inputs):
        return model(params, inputs), params

    def penalized(outputs, labels):
        z, ps = outputs
        squares = sum(jnp.sum(p**2) for p in jax.tree.leaves(ps))
        return squared_error(z, labels) + 0.5 * squares

    j = jacobian_of(lambda p: model(p, batch()["inputs"]), params())
    product = curvature.gauss_newton_product(both, penalized).at(params(), **batch())
    assert_near(dense_of(product, params()), j.T @ j / len(j) + np.eye(j.shape[1]))


def entries(params, inputs):
    """Outputs of a size at which no distribution is near a limit."""
    return 0.3 * model(params, inputs)


FISHERS = {
    "normal": lambda z: np.eye(z.size) / z.size,
    "bernoulli": lambda z: np.diag((np.exp(z) / (1 + np.exp(z)) ** 2).ravel()) / z.size,
    "poisson": lambda z: np.diag(np.exp(z).ravel()) / z.size,
}


def categorical(z):
    """The Fisher matrix of softmax probabilities, a block for each row of logits."""
    n, k = z.shape
    out = np.zeros((n * k, n * k))
    for i, row in enumerate(np.asarray(z)):
        p = np.exp(row) / np.exp(row).sum()
        out[i * k : (i + 1) * k, i * k : (i + 1) * k] = (np.diag(p) - np.outer(p, p)) / n
    return out


FISHERS["categorical"] = categorical


@pytest.mark.parametrize("kind", FISHERS)
def test_the_fisher_matrix_is_that_of_the_distribution(kind):
    inputs = batch()["inputs"]
    j = jacobian_of(lambda p: entries(p, inputs), params())
    expected = j.T @ FISHERS[kind](np.asarray(entries(params(), inputs))) @ j
    product = curvature.fisher_product(entries, kind)
    assert_near(dense_of(product.at(params(), inputs=inputs), params()), expected)
    assert not product.draws


LOSSES = {
    "categorical": lambda z: -jnp.mean(jax.nn.log_softmax(z)[:, 0]),
    "bernoulli": lambda z: jnp.mean(jax.nn.softplus(z) - z),
    "poisson": lambda z: jnp.mean(jnp.exp(z) - 3 * z),
    "normal": lambda z: jnp.mean((z - 1) ** 2) / 2,
}


@pytest.mark.parametrize("kind", FISHERS)
def test_it_is_the_gauss_newton_matrix_of_the_mean_loss(kind):
    inputs = batch()["inputs"]
    fisher = curvature.fisher_product(entries, kind).at(params(), inputs=inputs)
    gauss_newton = curvature.gauss_newton_product(entries, LOSSES[kind])
    expected = dense_of(gauss_newton.at(params(), inputs=inputs), params())
    assert_near(dense_of(fisher, params()), expected)


def mean_over_keys(sampled, draws=4000):
    """The mean of an array drawn at random, and three standard errors of it."""
    keys = jax.random.split(jax.random.key(0), draws)
    every = np.asarray(jax.jit(lambda keys: jax.lax.map(sampled, keys, batch_size=100))(keys))
    return every.mean(axis=0), 5 * every.std(axis=0) / np.sqrt(draws)


@pytest.mark.parametrize("kind", FISHERS)
def test_sampled_labels_give_the_fisher_matrix_on_average(kind):
    given = {"inputs": batch()["inputs"]}
    v = jax.tree.map(lambda p: jnp.cos(7 * p), params())
    sampled = curvature.fisher_product(entries, kind, sampled=True)
    from jax.flatten_util import ravel_pytree

    mean, error = mean_over_keys(
        lambda key: ravel_pytree(sampled(params(), v, key=key, **given))[0]
    )
    exact = flat(curvature.fisher_product(entries, kind)(params(), v, **given))
    assert np.all(np.abs(mean - exact) <= error)
    assert np.max(error) < 0.3 * np.max(np.abs(exact))


def test_a_likelihood_of_your_own_is_sampled():
    own = curvature.likelihood(
        log_prob=lambda z, y: -jnp.sum((y - z) ** 2, axis=-1) / 2,
        sample=lambda key, z: z + jax.random.normal(key, z.shape, z.dtype),
        label_axes=1,
    )
    given = {"inputs": batch()["inputs"], "key": jax.random.key(3)}
    v = params()
    got = curvature.fisher_product(entries, own, sampled=True)(params(), v, **given)
    # One label is a row of two numbers here, and each of these is one there.
    z = entries(params(), given["inputs"])
    s = np.asarray(jax.random.normal(given["key"], z.shape, z.dtype))
    j = jacobian_of(lambda p: entries(p, given["inputs"]), params()).reshape(*z.shape, -1)
    g = np.einsum("nk,nkp->np", s, j)
    assert_near(flat(got), g.T @ (g @ flat(v)) / len(g))


def test_hutchinson_is_exact_for_a_diagonal_matrix_and_right_on_average():
    def apart(params):
        return sum(jnp.sum(p**4) for p in jax.tree.leaves(params)) / 12

    once = curvature.hutchinson_diagonal(curvature.hessian_product(apart))
    assert_near(flat(once(params(), key=jax.random.key(1))), flat(params()) ** 2)

    product = curvature.hessian_product(loss)
    diagonal = np.diag(dense_of(product.at(params(), **batch()), params()))
    many = curvature.hutchinson_diagonal(product, samples=1500)
    got = flat(many(params(), key=jax.random.key(2), **batch()))
    assert np.max(np.abs(got - diagonal)) < 0.15 * np.max(np.abs(diagonal))
    one = curvature.hutchinson_diagonal(product)
    assert np.max(np.abs(flat(one(params(), key=jax.random.key(2), **batch())) - got)) > 1e-3


def test_hutchinson_draws_as_the_estimator_of_the_hessian_does():
    tx = gx.hutchinson_estimator_diag_hessian(5)
    state = tx.init(params())
    expected, _ = tx.update(params(), state, params(), obj_fn=lambda p: loss(p, **batch()))
    key = jax.random.split(state.key)[1]
    diagonal = curvature.hutchinson_diagonal(curvature.hessian_product(loss))
    assert_near(flat(diagonal(params(), key=key, **batch())), flat(expected))


@pytest.mark.parametrize("kind", FISHERS)
def test_bartlett_gives_the_diagonal_of_the_fisher_matrix_on_average(kind):
    given = {"inputs": batch()["inputs"]}
    diagonal = curvature.bartlett_diagonal(entries, kind)
    from jax.flatten_util import ravel_pytree

    mean, error = mean_over_keys(lambda key: ravel_pytree(diagonal(params(), key=key, **given))[0])
    product = curvature.fisher_product(entries, kind).at(params(), **given)
    exact = np.diag(dense_of(product, params()))
    assert np.all(np.abs(mean - exact) <= error)
    assert np.max(error) < 0.3 * np.max(exact)


def test_values_compare_and_print():
    one = curvature.gauss_newton_product(model, squared_error)
    assert one == curvature.gauss_newton_product(model, squared_error)
    assert repr(one) == "gauss_newton_product(model=model, loss=squared_error)"
    plain = curvature.hessian_product()
    tx = gx.newton_cg(product=plain)
    assert gx.from_json(gx.to_json(tx)) == tx
    assert hash(plain) == hash(curvature.hessian_product())


def test_a_function_that_draws_gets_the_key_of_an_exact_matrix():
    def noisy(params, key):
        return model(params, batch()["inputs"] * jax.random.uniform(key))

    key = jax.random.key(5)
    still = curvature.fisher_product(lambda p: noisy(p, key), "categorical")
    got = curvature.fisher_product(noisy, "categorical")(params(), params(), key=key)
    assert_near(flat(got), flat(still(params(), params())))
    # One that does not name it does without.
    assert_near(flat(still(params(), params(), key=key)), flat(got))


@pytest.mark.parametrize("raw", [False, True])
def test_keys_may_be_raw(raw):
    key = jax.random.key(0)
    sampled = curvature.fisher_product(half, "normal", sampled=True)
    got = sampled(params(), params(), key=jax.random.key_data(key) if raw else key)
    assert_near(flat(got), flat(sampled(params(), params(), key=key)))


def half(params):
    return params["w"]


REFUSED = [
    (lambda: curvature.hessian_product(3.0), TypeError, "loss must be the loss of the parameters"),
    (lambda: curvature.hessian_product()(params(), params()), TypeError, "without a loss of its"),
    (
        lambda: curvature.hessian_product(loss)(params(), params(), inputs=1.0),
        TypeError,
        "hessian_product: loss needs the extra argument 'labels'; give it by name",
    ),
    (
        lambda: curvature.hessian_product(loss)(params(), params(), inputs=1.0, label=1.0),
        TypeError,
        "hessian_product: loss has no argument 'label'. Did you mean 'labels'?",
    ),
    (
        lambda: curvature.hessian_product(half)(params(), params()),
        TypeError,
        "hessian_product: the value of loss must be one real number",
    ),
    (
        lambda: curvature.hessian_product(loss)({"w": jnp.arange(3)}, params()),
        TypeError,
        "hessian_product: parameter ['w'] has dtype",
    ),
    (
        lambda: curvature.hessian_product(loss)({"w": jnp.ones(3, complex)}, params()),
        TypeError,
        "hessian_product: parameter ['w'] has dtype complex128; only real parameters",
    ),
    (
        lambda: curvature.hessian_product(loss)(params(), {"w": jnp.ones(3)}, **batch()),
        ValueError,
        "hessian_product: the vector must be a tree like the parameters",
    ),
    (
        lambda: curvature.hessian_product(loss)(params(), params() | {"b": jnp.ones(4)}, **batch()),
        ValueError,
        "hessian_product: the vector's leaf ['b'] must be floating, with the shape (3,)",
    ),
    (
        lambda: curvature.hessian_product(loss)(
            params(), jax.tree.map(lambda p: jnp.ones(p.shape, jnp.int32), params()), **batch()
        ),
        ValueError,
        "of the parameter, got an array of shape (3,) in int32.",
    ),
    (
        lambda: curvature.gauss_newton_product(None, loss),
        TypeError,
        "gauss_newton_product: model must be the outputs of the parameters, a function, got None",
    ),
    (
        lambda: curvature.gauss_newton_product(lambda p: jnp.arange(3), jnp.sum)(
            params(), params()
        ),
        TypeError,
        "gauss_newton_product: model must return floating arrays, got",
    ),
    (
        lambda: curvature.hessian_product(loss, batch_axis_name=3),
        TypeError,
        "hessian_product: batch_axis_name must be a string or None, got 3",
    ),
    (
        lambda: curvature.hessian_product(loss, batch_axis_name="data")(
            params(), params(), **batch()
        ),
        NameError,
        "hessian_product: the axis 'data' is not bound here",
    ),
    (
        lambda: curvature.fisher_product(half, "norml"),
        ValueError,
        "fisher_product: likelihood must be one of 'categorical', 'normal', 'bernoulli', 'poisson'",
    ),
    (lambda: curvature.fisher_product(half, 2), TypeError, "or a curvature.likelihood, got 2"),
    (
        lambda: curvature.fisher_product(half, curvature.likelihood(half, half)),
        ValueError,
        "give sampled=True with one of your own",
    ),
    (
        lambda: curvature.fisher_product(half, "normal", True)(params(), params()),
        TypeError,
        "fisher_product: draws at random; give it key=jax.random.key(seed)",
    ),
    (
        lambda: curvature.fisher_product(half, "normal", True)(params(), params(), key=0),
        TypeError,
        "fisher_product: key must be one PRNG key, such as jax.random.key(seed), got 0.",
    ),
    (
        lambda: curvature.bartlett_diagonal(half, "normal")(
            params(), key=jax.random.split(jax.random.key(0))
        ),
        TypeError,
        "bartlett_diagonal: key must be one PRNG key, such as jax.random.key(seed), got an array",
    ),
    (
        lambda: curvature.fisher_product(lambda p: p, "normal")(params(), params()),
        TypeError,
        "fisher_product: model must return the parameters of the distribution, one array",
    ),
    (lambda: curvature.likelihood(1, half), TypeError, "likelihood: log_prob must be a function"),
    (
        lambda: curvature.likelihood(half, half, -1),
        ValueError,
        "likelihood: label_axes must be at least 0, got -1",
    ),
    (
        lambda: curvature.hutchinson_diagonal(loss),
        TypeError,
        "hutchinson_diagonal: product must be a product of gradxform.curvature",
    ),
    (
        lambda: curvature.hutchinson_diagonal(curvature.hessian_product(), 0),
        ValueError,
        "hutchinson_diagonal: samples must be at least 1, got 0",
    ),
    (
        lambda: curvature.bartlett_diagonal(half, "gamma"),
        ValueError,
        "bartlett_diagonal: likelihood must be one of",
    ),
]


@pytest.mark.parametrize("call, error, words", REFUSED)
def test_bad_input_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
