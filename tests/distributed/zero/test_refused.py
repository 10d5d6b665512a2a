"""`zero1` refuses transforms that cannot run on shards of arrays, and wrong calls."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.base import ArrayRule, transform
from gradxform.distributed.shares.reach import check_reach
from gradxform.sparse import RowSparse
from gradxform.types import Finite
from tests.distributed.zero.test_zero import CLIPPED, MATRICES, in_vmap, mesh_of


def adding_rows(updates, params):
    return jax.tree.map(lambda u: u + jnp.sum(u), updates)


@transform(name=None)
class divide_by_sum(ArrayRule):
    """A rule of a user, who does not know of pieces."""

    scale: Finite = 1.0

    State = gx.EmptyState
    locality = "array"

    def init(self, params):
        """Return a state without slots."""
        return gx.EmptyState()

    def rule(self, g, p):
        """Return the entries over their sum."""
        return self.scale * g / jnp.sum(g)


FAR = gx.chain(divide_by_sum(), gx.sgd(0.1))
REFUSED = [
    (FAR, ("divide_by_sum", "looks at whole arrays", "partition(...)")),
    (gx.chain(gx.clip(1.0), FAR), ("divide_by_sum", "looks at")),
    (gx.masked(FAR, MATRICES), ("divide_by_sum", "looks at whole arrays")),
    (gx.chain(gx.add_noise(0.1, 0.5, 0), gx.sgd(0.1)), ("add_noise", "looks at the whole tree")),
    (gx.lbfgs_steps(), ("step_by_lbfgs", "looks at the whole tree")),
    (
        gx.MultiSteps(gx.adam(0.1), 2, should_skip_update_fn=gx.skip_not_finite),
        ("MultiSteps", "looks at the whole tree"),
    ),
    (gd.tower(gx.adam(0.1), "x"), ("tower", "looks at the whole tree")),
    (gx.inject_hyperparams(divide_by_sum)(0.1), ("divide_by_sum", "looks at whole arrays")),
    # What is inside looks as far or further, and may run.
    (gx.scale_by_galore(base_optimizer=FAR), ("divide_by_sum", "looks at whole arrays")),
    (gx.masked(gx.factor_state(FAR), MATRICES), ("divide_by_sum", "looks at whole arrays")),
    # What is outside may run.
    (gx.cautious(FAR), ("divide_by_sum", "looks at whole arrays")),
    (gx.mechanize(FAR), ("divide_by_sum", "looks at whole arrays")),
]


@pytest.mark.parametrize("inner, words", REFUSED, ids=lambda x: x[0] if type(x) is tuple else "")
def test_a_rule_that_looks_too_far_is_refused_by_name(inner, words):
    with pytest.raises(ValueError) as error:
        gd.zero1(inner, "x")
    assert all(word in str(error.value) for word in ("zero1: ", *words))


ASKED = {
    "optax.chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "optax.novograd": optax.novograd(0.1),
    "stateless": gx.stateless(adding_rows),
    "GradientTransformation": gx.GradientTransformation(
        lambda params: gx.EmptyState(), lambda u, s, p=None: (adding_rows(u, p), s)
    ),
    # Which acts entry by entry on matrices as small as these.
    "optax.factored_rms": optax.scale_by_factored_rms(),
}


@pytest.mark.parametrize("name", list(ASKED))
def test_a_program_that_looks_too_far_is_refused_when_the_parameters_are_known(name):
    tx = gd.zero1(ASKED[name], "x")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        with pytest.raises(ValueError, match=r"zero1: .* looks further than at single entries"):
            in_vmap(tx.init, {"w": jnp.ones((8, 4)), "b": jnp.ones(8)})


@pytest.mark.parametrize(
    "inner",
    [optax.adam(0.1), optax.lion(0.1), optax.sgd(0.1, 0.9), optax.rmsprop(0.1), optax.radam(0.1)],
)
def test_an_entrywise_program_is_accepted(inner):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        in_vmap(gd.zero1(inner, "x").init, {"w": jnp.ones((8, 4)), "b": jnp.ones(())})


def test_a_rule_that_looks_at_rows_keeps_rows_whole():
    assert check_reach("test", gx.chain(gx.scale_by_rowwise_rss(), gx.adam(0.1)))[0] == "row"
    assert check_reach("test", CLIPPED) == ("entry", [])
    assert check_reach("test", gx.quantize_state(CLIPPED))[0] == "row"


def bad(function, kind, *words):
    with pytest.raises(kind) as error:
        function()
    assert all(word in str(error.value) for word in words), error.value


def test_wrong_calls_of_zero1_are_refused():
    tx, mesh = gd.zero1(gx.adam(0.1), "x"), mesh_of("8")
    params = {"a": jnp.ones(8), "b": jnp.ones((2, 8))}
    state = gd.Zero1State(None, None)
    bad(lambda: tx.init(params), NameError, "zero1: the axis 'x' is not bound", "shard_map")
    bad(lambda: tx.update(params, state, None), ValueError, "zero1: needs the parameters")
    bad(lambda: in_vmap(tx.update, params, (), params), TypeError, "Zero1State, got tuple")
    bad(
        lambda: gd.zero1(gx.adam(0.1), "xx").state_specs(params, mesh),
        ValueError,
        "lacks the axis 'xx', only x",
    )
    sparse = {"a": RowSparse(jnp.zeros(1, jnp.int32), jnp.ones(1), 8), "b": params["b"]}

    def step(grads, params=params, form=tx.step):
        return in_vmap(lambda: form(grads, tx.init(params), params))

    bad(lambda: step(sparse), TypeError, "zero1: divides arrays over devices", "['a']")
    bad(lambda: step({"a": jnp.ones(8), "b": jnp.ones(8)}), ValueError, "['b'] has shape (8,)")
    narrow = {"a": jnp.ones(8, jnp.bfloat16)}
    other = gd.zero1(gx.adam(0.1), "x", master_dtype=None)
    bad(
        lambda: in_vmap(lambda: tx.step(narrow, other.init(narrow), narrow)),
        ValueError,
        "master of ['a'] has shape (1,), this device's shard needs (2,)",
    )


def test_gradients_that_are_summed_already_are_refused():
    mesh, tx, params = mesh_of("8"), gd.zero1(gx.sgd(0.1), "x"), {"w": jnp.ones((8, 2))}
    specs = tx.state_specs(params, mesh)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), specs, P("x")), out_specs=P())
    def step(params, state, x):
        grads = jax.grad(lambda p: jnp.sum(p["w"]) * jnp.mean(x))(params)
        return tx.step(grads, state, params)[0]

    state = jax.jit(jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs))(params)
    with pytest.raises(gd.AlreadyReducedError, match="zero1: the gradient of \\['w'\\]"):
        jax.jit(step)(params, state, jnp.ones(8))
