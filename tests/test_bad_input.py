"""Wrong input is refused, with a message that says what is wrong, where, and what to do."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from tests import catalogue
from tests.catalogue import CASES

NAN, INF = float("nan"), float("inf")
PARAMS = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}
GRADS = jax.tree.map(jnp.ones_like, PARAMS)
KERNEL, BIAS = "['dense']['kernel']", "['dense']['bias']"
SGD, ADAM = gx.sgd(0.1), gx.adam(0.1)
MATRICES = gx.ndim_at_least(2)


class Row(NamedTuple):
    call: Any
    error: type[Exception]
    words: tuple[str, ...]


def bad(call, error, *words):
    return Row(call, error, words)


def dense(kernel: Any, **others: Any):
    """A tree like PARAMS with another kernel."""
    return {"dense": {"kernel": kernel, "bias": jnp.ones(3), **others}}


def step(tx, grads=GRADS, state=None, params: Any = PARAMS, **extra):
    """One update; of a new state unless one is given."""
    return tx.update(grads, tx.init(PARAMS) if state is None else state, params, **extra)


def field(part, name, value, error, rule, got, **others):
    """A hyperparameter that is refused, and the whole message."""
    made = functools.partial(part, **{name: value}, **others)
    return Row(made, error, (f"{part.__name__}: {name} must be {rule}, got {got}",))


# ------------------------------------------------------------------------- hyperparameters, masks

NUMBER, STEPS = "a number or a schedule", "an integer or a function"
AXIS, KEY = "an integer or a tuple or None", "an integer or one PRNG key"
RATE = functools.partial(field, gx.scale_by_learning_rate, "learning_rate")
HYPERPARAMETERS = [
    RATE(None, TypeError, NUMBER, "None."),
    RATE(NAN, ValueError, NUMBER, "nan."),
    RATE(INF, ValueError, "finite", "inf."),
    RATE(-0.1, ValueError, "at least 0", "-0.1."),
    RATE("0.1", TypeError, NUMBER, "'0.1'."),
    RATE(True, TypeError, NUMBER, "True."),
    RATE(1j, TypeError, NUMBER, "1j."),
    RATE([0.1], TypeError, NUMBER, "[0.1]."),
    RATE(np.ones(3), TypeError, NUMBER, "an array of shape (3,). Arrays belong in the state"),
    RATE(jnp.ones((1, 1)), TypeError, NUMBER, "an array of shape (1, 1)."),
    RATE(np.float32(-1), ValueError, "at least 0", "-1.0."),
    RATE(MATRICES, TypeError, NUMBER, "ndim_at_least(n=2)."),
    RATE(gx.scale_by_adam, TypeError, NUMBER, "the class scale_by_adam."),
    RATE(gx.label_by(("a", True)), TypeError, NUMBER, "label_by("),
    bad(lambda: gx.adamw(None), TypeError, "scale_by_learning_rate: learning_rate", "got None."),
    bad(lambda: gx.sgd(-1.0), ValueError, "learning_rate must be at least 0, got -1.0."),
    bad(lambda: gx.adamw(1e-3, b1=1.0), ValueError, "scale_by_adam: b1 must be in [0, 1), got 1.0"),
    bad(lambda: gx.adamw(1e-3, weight_decay=-1), ValueError, "add_decayed_weights: weight_decay"),
    bad(lambda: gx.lamb(1e-3, weight_decay=NAN), ValueError, "weight_decay", "got nan."),
    bad(
        lambda: gx.lars(1e-3, momentum=2.0), ValueError, "lars: momentum must be in [0, 1], got 2.0"
    ),
    bad(lambda: gx.signum(1e-3, beta=-0.5), ValueError, "signum: beta must be in [0, 1), got -0.5"),
    field(gx.scale, "step_size", INF, ValueError, "finite", "inf."),
    field(gx.scale, "step_size", lambda n: 0.1, TypeError, "a number", "the function <lambda>."),
    field(gx.scale, "step_size", jax.random.key(0), TypeError, "a number", "a PRNG key."),
    field(gx.scale_by_schedule, "step_size_fn", 0.1, TypeError, "a function", "0.1."),
    field(gx.scale_by_schedule, "step_size_fn", MATRICES, TypeError, "a function", "ndim_at_"),
    field(gx.clip, "max_delta", -1, ValueError, "at least 0", "-1.0."),
    field(gx.clip, "max_delta", NAN, ValueError, "a number", "nan."),
    field(gx.clip_by_block_rms, "threshold", 0, ValueError, "greater than 0", "0.0."),
    field(gx.clip_by_global_norm, "max_norm", 0.0, ValueError, "greater than 0", "0.0."),
    field(gx.clip_by_global_norm, "max_norm", lambda n: 1, TypeError, "a number", "the function"),
    field(gx.adaptive_grad_clip, "clipping", -1, ValueError, "greater than 0", "-1.0."),
    field(gx.adaptive_grad_clip, "eps", INF, ValueError, "finite", "inf.", clipping=1),
    field(gx.adaptive_grad_clip, "axis", (0.5,), TypeError, AXIS, "(0.5,).", clipping=1),
    field(gx.trace, "decay", 1.5, ValueError, "in [0, 1]", "1.5."),
    field(gx.trace, "nesterov", 1, TypeError, "True or False", "1.", decay=0.9),
    field(gx.trace, "accumulator_dtype", bool, ValueError, "a floating dtype", "'bool'", decay=0.9),
    field(gx.ema, "decay", 1, ValueError, "in [0, 1)", "1.0."),
    field(gx.ema, "debias", None, TypeError, "True or False", "None.", decay=0.9),
    field(gx.add_noise, "eta", -1, ValueError, "at least 0", "-1.0.", gamma=0, key=0),
    field(gx.add_noise, "gamma", INF, ValueError, "finite", "inf.", eta=0, key=0),
    field(gx.add_noise, "key", 0.5, TypeError, KEY, "0.5.", eta=0, gamma=0),
    field(gx.add_noise, "key", np.ones(2), TypeError, KEY, "an array", eta=0, gamma=0),
    field(gx.scale_by_adam, "b2", -0.1, ValueError, "in [0, 1)", "-0.1."),
    field(gx.scale_by_adam, "b1", "0.9", TypeError, "a number", "'0.9'."),
    field(gx.scale_by_adam, "b1", True, TypeError, "a number", "True."),
    field(gx.scale_by_adam, "eps", -1e-8, ValueError, "at least 0", "-1e-08."),
    field(gx.scale_by_adam, "eps", INF, ValueError, "finite", "inf."),
    field(gx.scale_by_adam, "eps_root", None, TypeError, "a number", "None."),
    field(gx.scale_by_adam, "mu_dtype", "int32", ValueError, "a floating dtype", "'int32'."),
    field(gx.scale_by_adam, "mu_dtype", "f31", TypeError, "a dtype or None", "'f31'."),
    field(gx.scale_by_adam, "mu_dtype", jnp.ones(2), TypeError, "a dtype or None", "an array"),
    field(gx.scale_by_amsgrad, "b1", 2.0, ValueError, "in [0, 1)", "2.0."),
    field(gx.scale_by_rms, "decay", 1.0, ValueError, "in [0, 1)", "1.0."),
    field(gx.scale_by_rms, "initial_scale", -1, ValueError, "at least 0", "-1.0."),
    field(gx.scale_by_stddev, "eps", NAN, ValueError, "a number", "nan."),
    field(gx.scale_by_rss, "initial_accumulator_value", -1, ValueError, "at least 0", "-1.0."),
    field(gx.scale_by_lion, "smooth_beta", 0, ValueError, "greater than 0", "0.0."),
    field(gx.normalize_by_update_norm, "eps", -1, ValueError, "at least 0", "-1.0."),
    field(gx.scale_by_trust_ratio, "min_norm", -1, ValueError, "at least 0", "-1.0."),
    field(gx.scale_by_trust_ratio, "trust_coefficient", INF, ValueError, "finite", "inf."),
    bad(
        lambda: gx.scale_by_lion(mode="smoth"),
        ValueError,
        "scale_by_lion: mode must be one of 'hard', 'smooth', 'refined', got 'smoth'",
        "Did you mean 'smooth'?",
    ),
    field(gx.MultiSteps, "every_k_schedule", 0, ValueError, "at least 1", "0.", opt=SGD),
    field(gx.MultiSteps, "every_k_schedule", 2.5, TypeError, STEPS, "2.5.", opt=SGD),
    field(gx.MultiSteps, "every_k_schedule", True, TypeError, STEPS, "True.", opt=SGD),
    bad(lambda: gx.apply_if_finite(SGD, -1), ValueError, "max_consecutive_errors must be at least"),
    bad(lambda: gx.lookahead(SGD, 0, 0.5), ValueError, "lookahead: sync_period must be at least 1"),
    bad(lambda: gx.lookahead(SGD, 5, 1.5), ValueError, "slow_step_size must be in [0, 1], got 1.5"),
    bad(lambda: gx.lookahead(SGD, 2.0, 0.5), TypeError, "sync_period must be an integer, got 2.0"),
    field(gx.ndim_at_least, "n", -1, ValueError, "at least 0", "-1."),
    field(gx.ndim_at_least, "n", 2.0, TypeError, "an integer", "2.0."),
    field(gx.path_matches, "pattern", "(", ValueError, "a regular expression", "'('"),
    field(gx.path_matches, "pattern", None, TypeError, "a string", "None."),
    bad(lambda: MATRICES & True, TypeError, "all_of: masks are combined with masks", "got True."),
    bad(lambda: gx.any_of("kernel"), TypeError, "any_of", "ndim_at_least(2)", "got 'kernel'."),
    bad(lambda: gx.label_by("a"), TypeError, "label_by: argument 0 must be a pair", "got 'a'."),
    bad(lambda: gx.label_by(("a", "kernel$")), TypeError, "label_by", "(label, mask)"),
    bad(lambda: gx.replace(ADAM, b1=0.5), TypeError, "chain: no field named 'b1', it has transf"),
    bad(lambda: gx.replace(gx.ema(0.9), decya=0), TypeError, "ema", "Did you mean 'decay'?"),
    bad(lambda: gx.replace(gx.ema(0.9), decay=3), ValueError, "ema: decay must be in [0, 1)"),
    bad(lambda: gx.replace(3, decay=3), TypeError, "replace", "got 3."),
]

# --------------------------------------------------------------------------------------- structure

REPLACED = gx.partition({"a": SGD, "b": ADAM}, gx.label_by(("a", MATRICES), ("b", True)))
COMPOSITION = [
    bad(
        lambda: gx.chain(gx.scale_by_adam), TypeError, "chain: argument 0 is the class", "call it:"
    ),
    bad(lambda: gx.chain(SGD, gx.adam), TypeError, "argument 1 is the function adam", "adam(...)"),
    bad(
        lambda: gx.chain(SGD, 3), TypeError, "chain: argument 1 must have init and update", "got 3"
    ),
    bad(lambda: gx.chain([SGD, SGD]), TypeError, "chain: argument 0", "Unpack it with a star."),
    bad(lambda: gx.chain(np.ones((99, 99))), TypeError, "got an array of shape (99, 99)."),
    bad(lambda: gx.chain(transforms=()), TypeError, "chain: unexpected argument", "chain(a, b)"),
    bad(
        lambda: gx.named_chain(SGD), TypeError, "named_chain: argument 0 must be a pair (name, tra"
    ),
    bad(lambda: gx.named_chain(("a", 3)), TypeError, "named_chain: 'a' must have init and update"),
    bad(lambda: gx.named_chain(("a", SGD), ("a", SGD)), ValueError, "two transforms are named 'a'"),
    bad(lambda: gx.masked(gx.trace, True), TypeError, "masked: inner is the class trace"),
    bad(lambda: gx.masked(SGD, None), TypeError, "masked: mask must be a mask such as", "got None"),
    bad(lambda: gx.masked(SGD, MATRICES.__class__), TypeError, "got the class ndim_at_least."),
    bad(
        lambda: gx.masked(SGD, {"dense": 1}), TypeError, "mask's entries must be True or", "got 1."
    ),
    bad(lambda: gx.masked(SGD, np.ones(3)), TypeError, "masked: mask", "an array of shape (3,)"),
    bad(
        lambda: gx.add_decayed_weights(0.1, "kernel"), TypeError, "add_decayed_weights: the mask's"
    ),
    bad(lambda: gx.adamw(1e-3, mask={"w": 0}), TypeError, "adamw: the mask", "True or False"),
    bad(lambda: gx.partition([SGD], "a"), TypeError, "partition: transforms must be a dict"),
    bad(
        lambda: gx.partition({"a": gx.sgd}, "a"), TypeError, "transform of 'a' is the function sgd"
    ),
    bad(lambda: gx.partition({"a": SGD}, None), TypeError, "partition: param_labels", "got None."),
    bad(lambda: gx.partition({"a": SGD}, MATRICES), TypeError, "param_labels", "got ndim_at_least"),
    bad(
        lambda: gx.partition({"head": SGD}, {"dense": "haed"}),
        ValueError,
        "partition: the label 'haed' of param_labels does not have a transform; there are 'head'.",
    ),
    bad(
        lambda: gx.partition({"a": SGD}, lambda p: jax.tree.map(lambda _: "b", p)).init(PARAMS),
        ValueError,
        f"partition: the parameter {BIAS} has the label 'b', which does not have a transform",
    ),
    bad(
        lambda: gx.partition({"a": SGD}, gx.label_by(("a", MATRICES))).init(PARAMS),
        ValueError,
        f"label_by: no mask selects the parameter {BIAS}; end with (label, True).",
    ),
    bad(
        lambda: gx.masked(SGD, {"dense": {"kernel": True, "bias": True, "b": True}}).init(PARAMS),
        ValueError,
        "masked: the entry ['dense']['b']: True matches no parameter.",
    ),
    bad(
        lambda: gx.masked(SGD, {"dense": {"kernel": True}}).init(PARAMS),
        ValueError,
        f"masked: no entry for the parameter {BIAS}.",
    ),
    bad(
        lambda: gx.masked(SGD, lambda p: jax.tree.map(jnp.ndim, p)).init(PARAMS),
        TypeError,
        f"masked: the mask's entry at {BIAS} must be True or False, got 1.",
    ),
    bad(lambda: gx.GradientTransformation(SGD.init, 3), TypeError, "update_fn must be a function"),
    bad(
        lambda: step(gx.chain(gx.GradientTransformation(lambda p: (), lambda g, s, p: None))),
        TypeError,
        "GradientTransformation: update must return (updates, state), got None.",
    ),
    bad(
        lambda: gx.MultiSteps(SGD, 2, should_skip_update_fn=gx.skip_large_updates),
        TypeError,
        "MultiSteps: should_skip_update_fn is called with (updates, gradient_step, params)",
        "functools.partial",
    ),
    bad(
        lambda: gx.MultiSteps(SGD, 2, should_skip_update_fn=lambda u, n, p: None).init(PARAMS),
        TypeError,
        "MultiSteps: should_skip_update_fn must return (skip, skip_state), got None.",
    ),
    bad(
        lambda: gx.MultiSteps(SGD, 2, should_skip_update_fn=lambda u, n, p: (1, ())).init(PARAMS),
        TypeError,
        "must return a boolean scalar first, got dtype int32",
    ),
    *(
        bad(
            lambda skip=skip: gx.MultiSteps(
                SGD, 2, should_skip_update_fn=lambda u, n, p: (skip, ())
            ).init(PARAMS),
            ValueError,
            "must return a boolean scalar first, got dtype",
        )
        for skip in (jnp.ones(()), jnp.ones(2, bool), np.ones(1, bool))
    ),
    *(
        bad(lambda make=make, wrong=wrong: make(wrong), ValueError, words, f"got {wrong!r}.")
        for wrong in (3, None, True, 0.5, ["linear"])
        for make, words in (
            (
                lambda kind: gx.piecewise_interpolate_schedule(kind, 1.0, {1: 0.5}),
                "interpolate_type must be one of 'linear', 'cosine'",
            ),
            (lambda mode: gx.scale_by_lion(mode=mode), "scale_by_lion: mode must be one of 'hard'"),
            (lambda kind: gx.scale_by_polyak(variant=kind), "scale_by_polyak: variant must be one"),
            (lambda kind: gx.muon(0.1, preconditioning=kind), "preconditioning must be one of"),
            (
                lambda kind: gx.sparse_semantics(SGD, kind),
                "semantics must be one of 'rows'",
            ),
        )
    ),
    *(
        bad(lambda tx=tx: step(tx), TypeError, "a schedule's value must be one real number", got)
        for value, got in ((jnp.ones(3), "shape (3,)."), (1j, "got 1j."), (None, "got None."))
        for tx in (
            gx.sgd(lambda n, value=value: value),
            gx.adamw(0.1, weight_decay=lambda n, value=value: value),
            gx.inject_hyperparams(gx.sgd)(lambda n, value=value: value),
        )
    ),
    bad(lambda: step(gx.MultiSteps(SGD, lambda n: 0)), ValueError, "at least 1, got 0."),
    bad(lambda: step(gx.MultiSteps(SGD, lambda n: 2.5)), ValueError, "an integer", "got 2.5."),
    bad(lambda: step(gx.MultiSteps(SGD, lambda n: None)), ValueError, "an integer", "got None."),
]

# -------------------------------------------------------------------- parameters, gradients, states

INJECTED = gx.inject_hyperparams(gx.adam)(0.1)


def with_rate(**hyperparams):
    """A step after somebody wrote to `state.hyperparams`."""
    state = INJECTED.init(PARAMS)
    return step(INJECTED, state=state._replace(hyperparams=state.hyperparams | hyperparams))


PAIR = gx.LookaheadParams.init_synced(PARAMS)
LOOKAHEAD = gx.lookahead(SGD, 2, 0.5)
NAMED = gx.named_chain(("a", gx.scale_by_adam()))
TREES = [
    bad(
        lambda: step(ADAM, dense(jnp.ones((3, 2)))),
        ValueError,
        f"scale_by_adam: gradient of {KERNEL} has shape (3, 2), the parameter has (2, 3).",
    ),
    bad(lambda: step(SGD, dense(jnp.ones((1, 3)))), ValueError, f"gradient of {KERNEL}", "(1, 3)"),
    bad(lambda: step(SGD, dense(1.0)), ValueError, f"gradient of {KERNEL} has shape ()"),
    bad(
        lambda: step(SGD, dense(jnp.ones((2, 3), jnp.int32))),
        TypeError,
        f"gradient of {KERNEL} has dtype int32; only floating",
        "masked(...)",
    ),
    bad(lambda: step(SGD, dense("float32")), TypeError, f"gradient of {KERNEL} has dtype <U7"),
    bad(
        lambda: ADAM.init(dense("float32")),
        TypeError,
        f"adam: parameter {KERNEL} is 'float32', which is not an array",
        "eqx.filter(model, eqx.is_array)",
    ),
    bad(
        lambda: step(SGD, {"dense": {"kernel": jnp.ones((2, 3))}}),
        ValueError,
        f"the parameters have a leaf {BIAS}, the updates none. A gradient of None in its place",
    ),
    bad(
        lambda: step(SGD, dense(jnp.ones((2, 3)), gain=jnp.ones(3))),
        ValueError,
        "the updates have a leaf ['dense']['gain'], the parameters have none.",
    ),
    bad(lambda: step(ADAM, [jnp.ones((2, 3))]), ValueError, "updates have a leaf ['0'], the state"),
    bad(lambda: step(gx.adamw(0.1), params=None), ValueError, "add_decayed_weights: needs the par"),
    bad(lambda: step(gx.lamb(0.1), params=None), ValueError, "call update(updates, state, params)"),
    bad(lambda: step(LOOKAHEAD, params=None), ValueError, "lookahead: needs the parameters"),
    bad(lambda: step(LOOKAHEAD, params=PAIR), ValueError, "lookahead: init and update must both"),
    bad(lambda: step(SGD, state=()), ValueError, "chain: 2 transforms but 0 states.", "another ch"),
    bad(lambda: step(SGD, state=gx.adamw(0.1).init(PARAMS)), ValueError, "2 tr", "3 states"),
    bad(lambda: step(SGD, state=gx.trace(0.9).init(PARAMS)), TypeError, "got TraceState"),
    bad(
        lambda: SGD.update(GRADS, None, PARAMS), TypeError, "chain: the state must be a tuple of 2"
    ),
    bad(
        lambda: step(gx.sgd(0.1, 0.9), state=SGD.init(PARAMS)),
        TypeError,
        "trace: the state must be of kind TraceState, got EmptyState.",
        "Was this state made by another transform's init?",
    ),
    bad(
        lambda: step(ADAM, state=gx.adam(0.1).init(dense(jnp.ones((3, 2))))),
        ValueError,
        f"scale_by_adam: the state's mu of {KERNEL} has shape (3, 2), this parameter needs (2, 3).",
    ),
    bad(
        lambda: step(ADAM, state=ADAM.init({"dense": {"kernel": jnp.ones((2, 3))}})),
        ValueError,
        f"the updates have a leaf {BIAS}, the state's mu has none.",
        "for other parameters?",
    ),
    bad(lambda: NAMED.update(GRADS, {}, PARAMS), ValueError, "named_chain: no state for 'a'."),
    bad(lambda: NAMED.update(GRADS, (), PARAMS), TypeError, "must be a dict of 1 state, got tuple"),
    bad(lambda: NAMED.update(GRADS, {"a": (), "b": ()}), ValueError, "a state named 'b' but no"),
    bad(
        lambda: step(REPLACED, state=gx.partition({"a": SGD}, "a").init(PARAMS)),
        ValueError,
        "partition: the transforms are ['a', 'b'], the state has ['a'].",
    ),
    *(
        bad(
            lambda tx=tx: tx.update(GRADS, gx.EmptyState(), PARAMS),
            TypeError,
            f"{type(tx).__name__ if tx is not INJECTED else 'inject_hyperparams'}: the state must",
            f"of kind {kind}, got EmptyState.",
        )
        for tx, kind in [
            (gx.scale_by_lion(), "ScaleByLionState"),
            (gx.zero_nans(), "ZeroNansState"),
            (gx.masked(SGD, True), "MaskedState"),
            (REPLACED, "PartitionState"),
            (gx.MultiSteps(SGD, 2), "MultiStepsState"),
            (gx.apply_if_finite(SGD, 2), "ApplyIfFiniteState"),
            (LOOKAHEAD, "LookaheadWithSlowState"),
            (INJECTED, "InjectStatefulHyperparamsState"),
        ]
    ),
    bad(lambda: gx.inject_hyperparams(SGD), TypeError, "inner_factory must be a function, got cha"),
    bad(
        lambda: gx.inject_hyperparams(gx.adam, "b3"), ValueError, "adam has no argument 'b3'", "b1"
    ),
    bad(lambda: gx.inject_hyperparams(gx.adam)(lr=0.1), TypeError, "adam has no argument 'lr'"),
    bad(lambda: gx.inject_hyperparams(gx.adam)(-1.0), ValueError, "at least 0, got -1.0."),
    bad(lambda: gx.inject_hyperparams(gx.chain)(SGD), TypeError, "chain takes any number of argum"),
    bad(
        lambda: gx.inject_hyperparams(lambda x: x)(3),
        TypeError,
        "what the factory returns must have",
    ),
    bad(lambda: with_rate(lr=jnp.ones(())), ValueError, "adam has no hyperparameter 'lr', only"),
    bad(
        lambda: with_rate(b1=jnp.ones(3)), TypeError, "hyperparameter 'b1' must be a scalar", "(3,)"
    ),
    bad(
        lambda: step(INJECTED, state=INJECTED.init(PARAMS)._replace(hyperparams={"b1": 0.9})),
        ValueError,
        "the state has no hyperparameter 'learning_rate', only b1.",
    ),
    bad(lambda: gx.apply_updates(PARAMS, dense(jnp.ones((1, 3)))), ValueError, "(1, 3)", KERNEL),
    bad(lambda: gx.apply_updates(PARAMS, {"dense": {}}), ValueError, "apply_updates", BIAS),
    bad(lambda: gx.apply_updates(PARAMS, [1.0]), ValueError, "apply_updates: the updates have a"),
    bad(
        lambda: gx.apply_updates({"n": jnp.ones(3, jnp.int32)}, {"n": jnp.ones(3)}),
        TypeError,
        "apply_updates: the update of ['n'] has dtype float32, which a parameter of dtype int32",
    ),
    bad(lambda: gx.apply_updates(1.0, jnp.ones((), jnp.complex64)), TypeError, "complex64"),
    bad(lambda: gx.incremental_update(PARAMS, PARAMS, 1.5), ValueError, "step_size must be in [0"),
    bad(lambda: gx.incremental_update(1.0, jnp.ones(3), 0.5), ValueError, "the average has (3,)."),
    bad(lambda: gx.incremental_update(PARAMS, {}, 0.5), ValueError, BIAS, "the average has none."),
    bad(lambda: gx.safe_increment(jnp.ones((), bool)), ValueError, "safe_increment", "dtype bool"),
    bad(lambda: gx.safe_increment(jnp.asarray(1j)), ValueError, "must be a number, got dtype com"),
    bad(lambda: gx.as_optax(gx.scale), TypeError, "as_optax: tx is the class scale", "call it"),
]

# ------------------------------------------------------------------------------- rules of the user


class OneSlot(NamedTuple):
    mu: gx.Slot


def one_slot(**methods):
    """A user's rule with one slot, some of its methods wrong."""
    good = {
        "init": lambda self, params: OneSlot(jax.tree.map(jnp.zeros_like, params)),
        "rule": lambda self, g, m, p: (g, m),
    }
    return gx.transform(type("mine", (gx.ArrayRule,), good | methods))()


def not_a_transform():
    pass


WRITTEN = [
    bad(
        lambda: step(one_slot(rule=lambda self, g, m, p: g)),
        ValueError,
        "mine: rule returned 0 new slots, the state has 1.",
        "the update and then every slot",
    ),
    bad(lambda: step(one_slot(rule=lambda self, g, m, p: (g, m, m))), ValueError, "returned 2 new"),
    bad(
        lambda: step(one_slot(rule=lambda self, g, m, p: (jnp.sum(g), m))),
        ValueError,
        "mine: rule made an update of shape () from a gradient of shape",
    ),
    bad(
        lambda: step(one_slot(rule=lambda self, g, m, p: (g, jnp.sum(m)))),
        ValueError,
        "mine: rule made slot 0 of shape (), the state has",
    ),
    bad(
        lambda: one_slot(init=lambda self, params: params).init(PARAMS),
        TypeError,
        "mine: init must return a NamedTuple, whose fields with one array per parameter are ann",
    ),
    bad(
        lambda: step(one_slot(prepare=lambda self, updates, state, params: state)),
        TypeError,
        "mine: prepare must return (state, *scalars), with the new state first; got a OneSlot",
    ),
    bad(
        lambda: step(one_slot(prepare=lambda self, updates, state, params, *, value: (state,))),
        TypeError,
        "mine: needs the extra argument 'value'; call update(updates, state, params, value=...).",
    ),
    bad(
        lambda: one_slot(locality="leaf"), ValueError, "mine: locality must be one of 'entry', 'row"
    ),
    bad(lambda: one_slot(locality=1), ValueError, "mine: locality must be one of", "got 1."),
    bad(lambda: gx.transform(int), TypeError, "int: a transform subclasses ArrayRule or Transform"),
    bad(
        lambda: gx.transform(not_a_transform), TypeError, "not_a_transform: a transform subclasses"
    ),
    bad(
        lambda: gx.value(type("named", (gx.Mask,), {"__annotations__": {"name": str}})),
        TypeError,
        "named: a field must not be called 'name', which is a key of its own in configs",
    ),
    bad(lambda: gx.value(int), TypeError, "value: the class int is not a subclass of Transform, S"),
    bad(
        lambda: gx.transform(type("mine", (gx.ArrayRule,), {}), name="mine"),
        ValueError,
        "mine: the name 'mine' needs a package; register under 'package:mine'.",
    ),
    bad(
        lambda: gx.transform(type("mine", (gx.ArrayRule,), {}), name=3), TypeError, "must be a str"
    ),
    bad(lambda: gx.register("mine", not_a_transform), ValueError, "'package:not_a_transform'"),
    bad(lambda: gx.register("mine:", not_a_transform), ValueError, "needs a package"),
    bad(
        lambda: gx.register("their:thing", 3),
        TypeError,
        "register: needs a class or a function",
        "3.",
    ),
    bad(
        lambda: [gx.register("their:taken", f) for f in (not_a_transform, step)],
        ValueError,
        "'their:taken' is already registered, by",
        "not_a_transform; choose another name.",
    ),
]


ROWS = HYPERPARAMETERS + COMPOSITION + TREES + WRITTEN + [Row(*row) for row in catalogue.REFUSED]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.words[0][:70]}" for row in ROWS])
def test_wrong_input_is_refused_in_one_sentence(row):
    with pytest.raises(row.error) as caught:
        row.call()
    message = str(caught.value)
    assert caught.type is row.error
    for words in row.words:
        assert words in message, message
    # For a human reader: one line, a sentence, no addresses and no dumps.
    assert "\n" not in message and " at 0x" not in message and "PyTreeDef" not in message
    assert message.endswith((".", "?")) and len(message) < 400


# -------------------------------------------------------------------- nothing wrong passes silently


def values_in(x: Any):
    """The values of the library that `x` is made of, `x` first."""
    if isinstance(x, gx.Value):
        yield x
        for name in x.__dataclass_fields__:
            yield from values_in(getattr(x, name))
    elif isinstance(x, tuple) and not hasattr(x, "_fields"):
        for item in x:
            yield from values_in(item)


FOUND = {type(v): v for case in CASES.values() for v in values_in(case.tx)}
NUMBERS = [
    pytest.param(v, name, id=f"{type(v).__name__}.{name}")
    for v in FOUND.values()
    for name in v.__dataclass_fields__
    if type(getattr(v, name)) in (int, float, bool)
]


@pytest.mark.parametrize("part, name", NUMBERS)
def test_every_number_and_switch_of_every_part_is_checked(part, name):
    """A field with a number refuses NaN, text, arrays, lists, classes and masks, in every part."""
    for wrong in (NAN, "0.1", np.ones(3), jnp.ones(1), [0.5], 1j, gx.scale, MATRICES, b"1"):
        if wrong is MATRICES and name == "mask":
            continue
        with pytest.raises((TypeError, ValueError), match=rf"^{type(part).__name__}: .*{name}"):
            gx.replace(part, **{name: wrong})


# The library does not check gradients for functions of the user or of Optax, or in an empty chain.
NOT_OURS = {"stateless", "GradientTransformation", "chain/empty", "chain/optax inside"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_OURS])
def test_every_part_refuses_a_gradient_that_merely_broadcasts(name):
    tx, params = CASES[name].bound, catalogue.params()
    leaves, treedef = jax.tree.flatten(params)
    wide = max(range(len(leaves)), key=lambda i: jnp.ndim(leaves[i]))
    leaves[wide] = leaves[wide][:1]
    state = jax.eval_shape(tx.init, params)
    with pytest.raises(ValueError, match=r"gradient of .* has shape \(1, .*, the parameter has"):
        grads = CASES[name].like(jax.tree.unflatten(treedef, leaves))
        jax.eval_shape(tx.update, grads, state, params)


def test_a_bad_gradient_is_not_hidden():
    """NaN in, NaN out, unless the part says otherwise."""
    grads = dense(jnp.full((2, 3), NAN))
    for tx in (SGD, ADAM, gx.clip(1.0), gx.clip_by_global_norm(1.0), gx.lion(0.1)):
        updates, _ = step(tx, grads)
        assert jnp.isnan(updates["dense"]["kernel"]).all(), tx


def test_a_skipped_batch_is_not_multiplied_by_zero():
    grads = dense(jnp.full((2, 3), NAN))
    for tx in (gx.apply_if_finite(ADAM, 3), gx.MultiSteps(SGD, 1, True, gx.skip_not_finite)):
        updates, _ = step(tx, grads)
        jax.tree.map(lambda u: np.testing.assert_array_equal(u, 0), updates)


# ------------------------------------------------------------------------------------ nothing lost

HOLES = {
    "sgd": gx.sgd(0.1, momentum=0.9),
    "adamw": gx.adamw(0.1),
    "rmsprop": gx.rmsprop(0.1, centered=True, momentum=0.9),
    "lion": gx.lion(0.1),
    "clipped": gx.chain(gx.clip_by_global_norm(1.0), gx.zero_nans(), ADAM),
    "named": gx.named_chain(("a", gx.scale_by_amsgrad()), ("b", gx.scale(-0.1))),
    "masked": gx.masked(ADAM, gx.path_matches("bias")),
    "partition": REPLACED,
    "MultiSteps": gx.MultiSteps(ADAM, 1),
    "accumulating": gx.MultiSteps(ADAM, 3),
    "guard": gx.apply_if_finite(ADAM, 2),
    "lookahead": gx.lookahead(ADAM, 1, 0.5),
    "injected": INJECTED,
}


@pytest.mark.parametrize("tx", HOLES.values(), ids=HOLES)
@pytest.mark.parametrize("hole", [None, gx.MaskedNode()], ids=["None", "MaskedNode"])
def test_a_missing_gradient_changes_neither_its_parameter_nor_its_slots(tx, hole):
    params = jax.tree.map(lambda p: p + 0.5, PARAMS)
    _, state = step(tx, state=tx.init(params), params=params)
    grads = {"dense": {"kernel": jnp.ones((2, 3)), "bias": hole}}
    updates, new_state = step(tx, grads, state, params)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    new_params = gx.apply_updates(params, updates)
    assert jax.tree.structure(new_params) == jax.tree.structure(params)
    np.testing.assert_array_equal(new_params["dense"]["bias"], params["dense"]["bias"])
    old = jax.tree_util.tree_leaves_with_path(state)
    for (path, was), now in zip(old, jax.tree.leaves(new_state), strict=True):
        if "bias" in jax.tree_util.keystr(path):
            np.testing.assert_array_equal(now, was, err_msg=jax.tree_util.keystr(path))


def test_an_incremental_update_keeps_the_average_of_a_missing_leaf():
    new = gx.incremental_update(
        {"a": None, "b": jnp.ones(2)}, {"a": jnp.ones(3), "b": jnp.zeros(2)}, 0.5
    )
    np.testing.assert_array_equal(new["a"], np.ones(3))
    np.testing.assert_array_equal(new["b"], np.full(2, 0.5))
