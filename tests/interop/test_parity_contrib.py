"""Beside the installed Optax: the contributed optimizers make the same steps."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.values.known_arguments import own_name
from tests.public import names_of

pytestmark = pytest.mark.numeric

STEPS = 30
FALLING = gx.linear_schedule(0.5, 0.1, 20)
RISING = gx.linear_schedule(0.0, 0.9, 20)
TREE = {"w": (3, 4), "b": (4,), "s": ()}
SMALL = 1e-5  # where to begin for rules whose first steps are 1e-6: movement, not rounding
MATRICES = gx.ndim_at_least(2)


def only_matrices(params):
    """The mask MATRICES as Optax takes it."""
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def normal(seed, scale=1.0, lead=()):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(scale * rng.normal(size=lead + s), jnp.float32) for k, s in TREE.items()}


def curved(params):
    """A loss whose Hessian is diagonal, so that an estimate of its diagonal is exact, nearly."""
    return sum(jnp.sum(jnp.square(p) + 0.25 * p**4) for p in jax.tree.leaves(params))


def coupled(params):
    """A loss whose Hessian is not diagonal: the draws count."""
    return curved(params) + jnp.square(sum(jnp.sum(p) for p in jax.tree.leaves(params)))


# name, arguments, where to begin, extra arguments of the update
ROWS = [
    ("acprop", {"learning_rate": 0.1}, 1.0),
    (
        "acprop",
        {"learning_rate": FALLING, "b1": 0.5, "b2": 0.9, "eps_root": 1e-2, "weight_decay": 0.1},
        1.0,
    ),
    ("ademamix", {"learning_rate": 0.1}, 1.0),
    ("ademamix", {"learning_rate": FALLING, "b3": RISING, "alpha": FALLING}, 1.0),
    ("ademamix", {"learning_rate": 0.1, "eps": 0.1, "eps_root": 0.2, "weight_decay": 0.1}, 1.0),
    ("simplified_ademamix", {"learning_rate": 0.01}, 1.0),
    (
        "simplified_ademamix",
        {"learning_rate": 0.1, "b1": 0.9, "alpha": FALLING, "eps_root": 0.2, "weight_decay": 0.1},
        1.0,
    ),
    ("adopt", {"learning_rate": 0.1}, 0.1),
    ("adopt", {"learning_rate": FALLING, "nesterov": True, "b1": 0.5, "b2": 0.99}, 1.0),
    ("adopt", {"learning_rate": 0.1, "use_clipping": False, "eps": 0.1}, 1.0),
    ("adopt", {"learning_rate": 0.1, "clip_value_fn": FALLING}, 1.0),
    ("cocob", {}, 1.0),
    ("cocob", {"learning_rate": FALLING, "alpha": 10.0, "eps": 1e-3, "weight_decay": 0.1}, 1.0),
    ("dadapt_adamw", {}, SMALL),
    ("dadapt_adamw", {"learning_rate": FALLING, "estim_lr0": 0.1, "betas": (0.8, 0.95)}, 1.0),
    ("dadapt_adamw", {"estim_lr0": 0.01, "eps": 1e-3, "weight_decay": 0.1}, 1.0),
    ("prodigy", {}, SMALL),
    ("prodigy", {"learning_rate": FALLING, "estim_lr0": 0.1, "betas": (0.8, 0.95)}, 1.0),
    ("prodigy", {"estim_lr0": 0.01, "beta3": 0.9, "eps": 1e-2, "weight_decay": 0.1}, 1.0),
    ("prodigy", {"learning_rate": FALLING, "safeguard_warmup": True, "estim_lr_coef": 2.0}, SMALL),
    ("dog", {}, SMALL),
    ("dog", {"init_step": ("distance", 0.1), "eps": 0.1, "weight_decay": 0.1}, 1.0),
    ("dog", {"learning_rate": FALLING, "init_step": ("learning_rate", 0.01)}, 0.1),
    ("dowg", {}, SMALL),
    ("dowg", {"learning_rate": FALLING, "init_estim_sq_dist": 0.1, "weight_decay": 0.1}, 1.0),
    ("madgrad", {"learning_rate": 0.1}, 1.0),
    ("madgrad", {"learning_rate": FALLING, "momentum": 0.5, "weight_decay": 0.1, "eps": 0.1}, 1.0),
    ("momo", {}, 1.0, {"value": 3.0}),
    ("momo", {"learning_rate": FALLING, "beta": 0.5, "weight_decay": 0.1}, 1.0, {"value": 3.0}),
    ("momo", {"lower_bound": -1.0, "adapt_lower_bound": True}, 1.0, {"value": 0.5}),
    ("momo", {"adapt_lower_bound": True, "weight_decay": 0.1}, 1.0, {"value": 9.0}),
    ("momo_adam", {}, 1.0, {"value": 3.0}),
    ("momo_adam", {"learning_rate": FALLING, "b1": 0.5, "b2": 0.9}, 1.0, {"value": 3.0}),
    ("momo_adam", {"learning_rate": 1.0, "eps": 0.1, "weight_decay": 0.1}, 1.0, {"value": 9.0}),
    ("momo_adam", {"learning_rate": 1.0, "adapt_lower_bound": True}, 1.0, {"value": 9.0}),
    ("sophia", {"learning_rate": 0.1}, 1.0, {"obj_fn": coupled}),
    (
        "sophia",
        {"learning_rate": FALLING, "gamma": 1.0, "weight_decay": 0.1},
        1.0,
        {"obj_fn": curved},
    ),
    (
        "sophia",
        {"learning_rate": 0.1, "b1": 0.5, "b2": 0.5, "update_interval": 3},
        1.0,
        {"obj_fn": coupled},
    ),
    ("sophia", {"learning_rate": 1e-9, "clip_threshold": None}, 1e-7, {"obj_fn": coupled}),
]


def walk(tx, params, grads, extra=None):
    """The parameters after every step, and the last state; with the promotion Optax needs."""

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p, **(extra or {}))
        p = jax.tree.map(jnp.add, p, updates)
        return (p, state), p

    @jax.jit
    def run(p):
        (_, state), path = jax.lax.scan(step, (p, tx.init(p)), grads)
        return path, state

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return run(params)


def worst(ours, theirs, start):
    """The largest difference at the last step, as a part of the movement of its array."""
    found = 0.0
    for a, b, p in zip(*map(jax.tree.leaves, (ours, theirs, start)), strict=True):
        a, b, p = (np.asarray(x, np.float64) for x in (a[-1], b[-1], p))
        found = max(found, np.max(np.abs(a - b)) / np.max(np.abs(b - p)))
    return found


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{i}" for i, row in enumerate(ROWS)])
def test_a_contributed_optimizer_makes_the_steps_of_optax(row):
    """Optax in double precision, ours in single: what Optax loses to rounding is not asked for."""
    name, arguments, scale, *extra = row
    start, grads = normal(0, scale), normal(1, lead=(STEPS,))
    ours, _ = walk(getattr(gx.contrib, name)(**arguments), start, grads, *extra)
    # The draws of Sophia's estimate depend on the precision.
    with jax.enable_x64(name != "sophia"):
        wide = jax.tree.map(lambda x: x.astype(float), (start, grads))
        theirs, _ = walk(getattr(optax.contrib, name)(**arguments), *wide, *extra)
    assert worst(ours, theirs, start) < 1e-5


NAMES = [k for k in vars(optax.contrib) if k in names_of(gx.contrib) and not k.startswith("__")]
# Where a default differs, or an argument is left out: each is a row of docs/differences.md.
CHANGED = {
    "hutchinson_estimator_diag_hessian": {"random_seed"},
    "adopt": {"clip_value_fn"},
    "scale_by_adopt": {"clip_value_fn"},
    "sophia": {"hessian_diagonal_fn"},
}
# Arguments that only these have: keyword-only, and None or a value that changes nothing.
OURS = {
    "muon": {"compute_dtype", "iteration", "debias", "adam_nesterov"},
    "scale_by_muon": {"compute_dtype", "iteration", "debias"},
    "galore": {"mu_dtype", "shorter_side"},
    "scale_by_galore": {"shorter_side"},
    "schedule_free": {"weights_ahead", "weight_step_power", "decoupling", "base_at_z"},
    "schedule_free_adamw": {"warmup_from_zero", "weight_step_power", "decoupling"},
    "schedule_free_sgd": {"warmup_from_zero", "weight_step_power"},
    "sophia": {"debias", "delayed"},
    "prodigy": {"weight_decay_mask", "growth_rate", "use_bias_correction"},
    "sam": {"plain_steps"},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_contributed_name_has_the_arguments_of_optax(name):
    ours, theirs = getattr(gx.contrib, name), getattr(optax.contrib, name)
    assert ours is getattr(gx, name)
    if hasattr(theirs, "_fields"):
        # Dimension numbers are values here: they have fields too.
        named = hasattr(ours, "_fields")
        fields = ours._fields if named else tuple(ours.__dataclass_fields__)
        assert fields == theirs._fields and ours.__name__ == theirs.__name__
        return
    changed = CHANGED.get(name, set()) | OURS.get(name, set())
    added = [inspect.signature(ours).parameters[k] for k in OURS.get(name, ())]
    assert all(p.kind == p.KEYWORD_ONLY and p.default is not p.empty for p in added)

    names = list(inspect.signature(ours).parameters)

    def arguments(factory):
        found = inspect.signature(factory).parameters.values()
        named = [(own_name(p.name, names), p) for p in found]
        return [(name, p.kind, p.default) for name, p in named if name not in changed]

    assert arguments(ours) == arguments(theirs)


def named_states(state):
    """The named tuples in a state, by the name of their class."""
    found = {}
    if hasattr(state, "_fields"):
        found[type(state).__name__] = state._fields
    if isinstance(state, tuple):
        for inner in state:
            found |= named_states(inner)
    return found


@pytest.mark.parametrize("row", {row[0]: row for row in ROWS}.values(), ids=lambda row: row[0])
def test_a_contributed_optimizer_has_the_state_of_optax(row):
    name, arguments, *_ = row
    ours = named_states(getattr(gx.contrib, name)(**arguments).init(normal(0)))
    theirs = named_states(getattr(optax.contrib, name)(**arguments).init(normal(0)))
    assert ours == theirs


# -------------------------------------------------------------------------------- gradients apart


@pytest.mark.reference
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9, "nesterov": True}])
def test_dpsgd_makes_the_steps_of_optax(noise, momentum):
    """With the same draws."""
    start, grads = normal(0), normal(1, lead=(STEPS, 5))
    ours, _ = walk(gx.contrib.dpsgd(FALLING, 1.0, noise, 7, **momentum), start, grads)
    private = optax.contrib.differentially_private_aggregate(1.0, noise, key=7)
    trace = optax.trace(
        **{"decay": momentum["momentum"], "nesterov": True} if momentum else {"decay": 0.0}
    )
    theirs, _ = walk(
        optax.chain(private, trace, optax.scale_by_learning_rate(FALLING)), start, grads
    )
    assert worst(ours, theirs, start) < 1e-5


def test_private_noise_has_the_requested_deviation():
    grads = {"w": jnp.zeros((4, 200, 100))}
    tx = gx.differentially_private_aggregate(2.0, 3.0, 0)
    u, state = tx.update(grads, tx.init({"w": grads["w"][0]}))
    assert abs(float(jnp.std(u["w"])) - 2.0 * 3.0 / 4) < 0.02
    again, _ = tx.update(grads, state)
    assert not np.any(np.asarray(again["w"]) == np.asarray(u["w"]))


def test_private_norms_are_of_examples_over_the_whole_tree():
    grads = {"a": jnp.asarray([[3.0], [0.3]]), "b": jnp.asarray([4.0, 0.4])}
    tx = gx.differentially_private_aggregate(1.0, 0.0, 0)
    u, _ = tx.update(grads, tx.init({"a": jnp.zeros(1), "b": jnp.zeros(())}))
    np.testing.assert_allclose(u["a"], [(0.6 + 0.3) / 2], rtol=1e-6)
    np.testing.assert_allclose(u["b"], (0.8 + 0.4) / 2, rtol=1e-6)


def test_hutchinson_draws_what_optax_draws():
    params = normal(0)
    ours, theirs = (m.contrib.hutchinson_estimator_diag_hessian() for m in (gx, optax))
    a, state = ours.update(params, ours.init(params), params, obj_fn=coupled)
    b, other = theirs.update(params, theirs.init(params), params, obj_fn=coupled)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)
    np.testing.assert_array_equal(state.key, other.key)
    exact, _ = ours.update(params, state, params, obj_fn=curved)
    jax.tree.map(lambda x, p: np.testing.assert_allclose(x, 2 + 3 * p**2, rtol=1e-5), exact, params)


# ----------------------------------------------------------------------------- better differences


@pytest.mark.parametrize("name", ["dadapt_adamw", "prodigy"])
def test_an_estimate_survives_a_step_without_gradients(name):
    params = normal(0)
    zero, g = jax.tree.map(jnp.zeros_like, params), normal(1)
    tx, theirs = (getattr(m.contrib, name)() for m in (gx, optax))
    state = tx.init(params)
    for grads in (zero, g, zero):
        updates, state = tx.update(grads, state, params)
        assert np.isfinite(gx.global_norm(updates))
    assert state.estim_lr >= np.float32(1e-6)
    with jax.numpy_dtype_promotion("standard"):
        _, poisoned = theirs.update(zero, theirs.init(params), params)
    assert np.isnan(poisoned.estim_lr)


def test_dog_waits_for_its_first_gradient():
    """A first step given as a learning rate is not lost on gradients of zero."""
    params, g = normal(0), normal(1)
    tx = gx.scale_by_dog(("learning_rate", 0.5), eps=0.0)
    state = tx.init(params)
    updates, state = tx.update(jax.tree.map(jnp.zeros_like, params), state, params)
    assert gx.global_norm(updates) == 0
    updates, state = tx.update(g, state, params)
    jax.tree.map(lambda u, x: np.testing.assert_allclose(u, 0.5 * x, rtol=1e-6), updates, g)
    assert not state.is_init_step


@pytest.mark.parametrize("tx", [gx.scale_by_cocob(eps=0.0), gx.scale_by_madgrad(0.1, eps=0.0)])
def test_an_entry_without_gradients_does_not_move(tx):
    params = {"w": jnp.asarray([1.0, -2.0])}
    updates, _ = tx.update({"w": jnp.asarray([0.0, 1.0])}, tx.init(params), params)
    assert updates["w"][0] == 0 and updates["w"][1] < 0


def test_adopt_survives_a_huge_first_gradient_without_clipping():
    params = {"w": jnp.ones(2)}
    tx = gx.scale_by_adopt(use_clipping=False)
    updates, _ = tx.update({"w": jnp.full(2, 1e38)}, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], 0)


def test_initial_parameters_are_kept_in_float32():
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    for tx, k in (
        (gx.scale_by_dog(("distance", 0.1)), "init_params"),
        (gx.step_by_prodigy(), "params0"),
    ):
        assert getattr(tx.init(params), k)["w"].dtype == jnp.float32


# ------------------------------------------------------------------------------------------ Sophia


def test_sophia_estimates_the_curvature_only_when_it_is_due():
    params, g = normal(0), normal(1)
    tx = gx.scale_by_sophia(update_interval=3)
    state, curvatures = tx.init(params), []
    for _ in range(5):
        _, state = tx.update(g, state, params, obj_fn=curved)
        curvatures.append(float(gx.global_norm(state.nu)))
    first, *_ = curvatures
    assert first > 0 and curvatures[1:3] == [first] * 2 and curvatures[3] == curvatures[4] > first


def test_sophia_prints_its_win_rate(capfd):
    params, g = normal(0), normal(1)
    tx = gx.scale_by_sophia(verbose=True, print_win_rate_every_n_steps=2, gamma=1.0)
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(g, state, params, obj_fn=curved)
    jax.effects_barrier()
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("Sophia optimizer win rate: ") and 0 < float(line.split()[-1]) < 1


def test_sophia_takes_any_estimator():
    """A transform of the user's own, with an extra argument of its own."""

    def update(updates, state, params, *, curvature):
        return jax.tree.map(lambda u: jnp.full_like(u, curvature), updates), state

    mine = gx.GradientTransformationExtraArgs(lambda p: gx.EmptyState(), update)
    tx, params = gx.scale_by_sophia(hessian_diagonal_fn=mine, b2=0.5), normal(0)
    _, state = tx.update(normal(1), tx.init(params), params, curvature=4.0)
    jax.tree.map(lambda h: np.testing.assert_allclose(h, 2.0), state.nu)


def test_climbs_of_a_period_go_on_from_each_other_and_begin_anew_after_it():
    """Step by step they are those of a whole period, with a momentum of the climbs."""

    def grad_fn(params, i=0):
        return jax.tree.map(lambda p: jnp.tanh(p) - 0.2, params)

    tree = {"w": jnp.asarray([1.5, -0.5, 0.3])}
    parts = gx.sgd(0.1), gx.sgd(0.2, momentum=0.9)
    single, whole = (gx.sam(*parts, sync_period=4, opaque_mode=x) for x in (False, True))
    p, state = tree, single.init(tree)
    q, other = tree, whole.init(tree)
    for _ in range(3):
        for _ in range(4):
            updates, state = single.update(grad_fn(p), state, p)
            p = gx.apply_updates(p, updates)
        updates, other = whole.update(grad_fn(q), other, q, grad_fn=grad_fn)
        q = gx.apply_updates(q, updates)
        np.testing.assert_allclose(p["w"], q["w"], rtol=1e-5)
