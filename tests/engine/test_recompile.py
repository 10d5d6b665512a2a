"""An equal optimizer is the same program: nothing is traced or compiled twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PARAMS = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray([[3.0]])}
GRADS = jax.tree.map(lambda p: 0.5 * p, PARAMS)
RULE_TRACES = []


@pytest.fixture(autouse=True)
def _no_traces():
    RULE_TRACES.clear()


@gx.transform
class counted(gx.ArrayRule):
    """u = rate g; remembers every call of its rule, which is a trace under jit."""

    rate: float = 1.0
    test: str = ""  # another value is another program

    def rule(self, g, p):
        RULE_TRACES.append(jnp.shape(g))
        return self.rate * g


MAKERS = {
    "sgd": lambda: gx.sgd(0.1, momentum=0.9),
    "adamw, mask": lambda: gx.adamw(0.1, mask=gx.ndim_at_least(2)),
    "adamw, mask tree": lambda: gx.adamw(0.1, mask={"a": True, "b": False}),
    "chain": lambda: gx.chain(gx.clip_by_global_norm(1.0), gx.adam(0.1)),
    "partition": lambda: gx.partition({"x": gx.adam(0.1), "y": gx.sgd(0.2)}, {"a": "x", "b": "y"}),
    "MultiSteps": lambda: gx.MultiSteps(gx.masked(gx.adam(0.1), gx.path_matches("a")), 2),
    "inject": lambda: gx.inject_hyperparams(gx.adamw)(0.1, mask=gx.ndim_at_least(2)),
    "lookahead": lambda: gx.lookahead(gx.apply_if_finite(gx.lion(0.1), 2), 5, 0.5),
}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def test_an_equal_transform_is_the_same_static_argument(make):
    traces = []

    def step(tx, params, state, grads):
        traces.append(tx)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    jitted = jax.jit(step, static_argnums=0)
    for _ in range(3):
        tx = make()
        jitted(tx, PARAMS, jax.tree.map(jnp.copy, tx.init(PARAMS)), GRADS)
    assert len(traces) == 1
    other = gx.scale(0.123)
    jitted(other, PARAMS, other.init(PARAMS), GRADS)
    assert len(traces) == 2


def test_jitting_the_updates_of_equal_transforms_compiles_once():
    for _ in range(3):
        tx = gx.chain(gx.clip(5.0), counted(0.5))
        jax.jit(tx.update)(GRADS, tx.init(PARAMS), PARAMS)
    assert sorted(RULE_TRACES) == [(1, 1), (2,)]
    tx = gx.chain(gx.clip(5.0), counted(0.25))
    updates, _ = jax.jit(tx.update)(GRADS, tx.init(PARAMS), PARAMS)
    assert len(RULE_TRACES) == 4
    np.testing.assert_allclose(updates["a"], 0.25 * GRADS["a"])


def test_jitting_the_update_in_a_loop_traces_the_whole_update_once():
    calls = []

    @gx.transform
    class whole(gx.Transform):
        rate: float = 1.0

        def init(self, params):
            calls.append("init")
            return gx.EmptyState()

        def update(self, updates, state, params=None, **extra):
            calls.append("update")
            return jax.tree.map(lambda g: self.rate * g, updates), state

    state = jax.jit(whole(2.0).init)(PARAMS)
    jax.jit(whole(2.0).init)(PARAMS)
    for _ in range(3):
        jax.jit(whole(2.0).update)(GRADS, state, PARAMS)
    assert calls == ["init", "update"]


def test_the_methods_are_values(make):
    a, b = make(), make()
    assert a.update == b.update
    assert hash(a.update) == hash(b.update)
    assert a.init == b.init
    assert a.init != a.update
    assert a.update is a.update
    assert a.update != gx.scale(0.123).update


def test_eager_updates_trace_once_per_shape():
    tx = gx.chain(gx.clip(5.0), counted(0.75))
    state = tx.init(PARAMS)
    for _ in range(4):
        _, state = tx.update(GRADS, state, PARAMS)
    again = gx.chain(gx.clip(5.0), counted(0.75))
    again.update(GRADS, again.init(PARAMS), PARAMS)
    assert sorted(RULE_TRACES) == [(1, 1), (2,)]


def test_leaves_of_one_shape_are_traced_once_inside_jit_too():
    params = {f"layer{i}": jnp.full((3,), float(i)) for i in range(20)}
    tx = gx.chain(gx.clip(5.0), counted(0.8125))
    jax.jit(tx.update)(params, tx.init(params), params)
    assert RULE_TRACES == [(3,)]


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_setting_an_injected_hyperparameter_compiles_nothing(jit):
    tx = gx.inject_hyperparams(counted)(0.5, f"inject {jit}")
    update = jax.jit(tx.update) if jit else tx.update
    state = tx.init(PARAMS)
    update(GRADS, state, PARAMS)
    first = len(RULE_TRACES)
    assert first >= 2
    for rate in (0.25, 0.125, 3.0):
        # With its dtype: jnp.asarray(0.25) is weakly typed, which is another type to any jax.jit.
        state.hyperparams["rate"] = jnp.asarray(rate, jnp.float32)
        updates, state = update(GRADS, state, PARAMS)
        np.testing.assert_allclose(updates["a"], rate * GRADS["a"])
        np.testing.assert_allclose(updates["b"], rate * GRADS["b"])
    assert len(RULE_TRACES) == first
    # Nor does an equal optimizer made anew.
    again = gx.inject_hyperparams(counted)(0.5, f"inject {jit}")
    (jax.jit(again.update) if jit else again.update)(GRADS, again.init(PARAMS), PARAMS)
    assert len(RULE_TRACES) == first


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_an_injected_schedule_compiles_once(jit):
    def warmup(n):
        return 0.5 * (n.astype(jnp.float32) + 1.0)

    tx = gx.inject_hyperparams(counted)(warmup, f"schedule {jit}")
    update = jax.jit(tx.update) if jit else tx.update
    state = tx.init(PARAMS)
    counts = []
    for n in range(4):
        updates, state = update(GRADS, state, PARAMS)
        np.testing.assert_allclose(updates["a"], 0.5 * (n + 1) * GRADS["a"])
        counts.append(len(RULE_TRACES))
    assert counts[0] >= 2
    assert len(set(counts)) == 1


@pytest.mark.parametrize("as_number", [float, jnp.asarray, np.float32], ids=["float", "weak", "np"])
def test_a_number_of_another_type_compiles_at_most_once_more(as_number):
    tx = gx.inject_hyperparams(counted)(0.5, f"set {as_number.__name__}")
    update = jax.jit(tx.update)
    state = tx.init(PARAMS)
    update(GRADS, state, PARAMS)
    for rate in (0.5, 0.25, 0.125):
        state.hyperparams["rate"] = as_number(rate)
        updates, state = update(GRADS, state, PARAMS)
        np.testing.assert_allclose(updates["a"], rate * GRADS["a"])
    assert len(RULE_TRACES) <= 4


def test_a_train_state_rebuilt_with_an_equal_optimizer_compiles_nothing(make):
    train_state = pytest.importorskip("flax.training.train_state")
    traces = []

    def loss(params):
        traces.append(1)
        return jnp.sum(params["a"] ** 2) + jnp.sum(params["b"] ** 2)

    @jax.jit
    def step(ts):
        return ts.apply_gradients(grads=jax.grad(loss)(ts.params))

    def rebuilt():
        params = jax.tree.map(jnp.copy, PARAMS)
        return train_state.TrainState.create(apply_fn=loss, params=params, tx=make())

    for _ in range(3):
        step(rebuilt())
    assert len(traces) == 1
    step(step(rebuilt()))  # nor do the types of the state change after the first step
    assert len(traces) <= 2  # linen's own step count begins as a Python number


def test_state_types_never_change(make):
    traces = []
    tx = make()

    @jax.jit
    def step(state):
        traces.append(1)
        return tx.update(GRADS, state, PARAMS)[1]

    state = tx.init(PARAMS)
    for _ in range(4):
        state = step(state)
    assert len(traces) == 1


# -------------------------------------------------------- hazard 1: equal numbers, equal programs


@pytest.mark.parametrize(
    "number",
    [np.float32(0.5), np.float64(0.5), np.asarray(0.5), jnp.asarray(0.5), jnp.bfloat16(0.5)],
    ids=["np.float32", "np.float64", "np 0-d", "jax 0-d", "bfloat16"],
)
def test_scalars_of_arrays_are_numbers(number):
    assert gx.sgd(number) == gx.sgd(0.5)
    assert hash(gx.sgd(number)) == hash(gx.sgd(0.5))
    assert repr(gx.sgd(number)) == repr(gx.sgd(0.5))
    assert type(gx.scale(number).step_size) is float


def test_an_int_equals_the_float_that_it_stands_for():
    assert gx.scale(1) == gx.scale(1.0) == gx.scale(np.int32(1))
    assert hash(gx.scale(1)) == hash(gx.scale(1.0))


def test_values_that_only_look_equal_differ():
    assert gx.scale(0.0) != gx.scale(-0.0)
    assert gx.sgd(np.float32(0.1)) != gx.sgd(0.1)  # 0.10000000149 as a double
    assert gx.MultiSteps(gx.sgd(0.1), 2) != gx.MultiSteps(gx.sgd(0.1), 3)
    assert counted(1.0) != gx.scale(1.0)
    tx = gx.scale(0.0), gx.scale(-0.0)
    signs = [
        np.signbit(jax.jit(t.update)({"a": jnp.ones(())}, t.init({"a": jnp.ones(())}))[0]["a"])
        for t in tx
    ]
    assert signs == [False, True]


def test_arrays_with_dimensions_are_refused():
    with pytest.raises(TypeError, match="scale: step_size"):
        gx.scale(np.ones((2,)))
    with pytest.raises(TypeError, match="scale_by_learning_rate: learning_rate"):
        gx.sgd(jnp.ones((1,)))


@pytest.mark.parametrize(
    "tx, kept", [(gx.sgd(0.1, momentum=0.9), False), (gx.adamw(0.1), True)], ids=("sgd", "adamw")
)
def test_a_program_keeps_calls_of_long_rules_only(tx, kept):
    """XLA has to inline every call, which for a few operations costs more than it saves."""
    params = {f"{i}": jnp.ones((2, 3 + i % 2)) for i in range(32)}

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    program = jax.jit(step).lower(params, tx.init(params), params).as_text()
    assert (" call @" in program) == kept
    assert program.count("stablehlo.sqrt") <= 2  # of the two shapes, not of 32 leaves
