"""Wrong input is refused, with a message that says what is wrong, where, and what to do."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest
from jax.sharding import PartitionSpec

import gradxform as gx
import gradxform.distributed as gd
from gradxform._names.optax import NoSuchName
from gradxform.values import fields_of
from tests import catalogue
from tests.catalogue import CASES, case as shared

NAN, INF = float("nan"), float("inf")
PARAMS = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}
GRADS = jax.tree.map(jnp.ones_like, PARAMS)
KERNEL, BIAS = "['dense']['kernel']", "['dense']['bias']"
SGD, ADAM = gx.sgd(0.1), gx.adam(0.1)
MATRICES = gx.ndim_at_least(2)


# What a row may name besides the names of its own file: the whole library, what the files of the
# catalogue share, and what a user imports.
NAMES = (
    {name: getattr(gx, name) for name in gx.__all__}
    | vars(shared)
    | {"gd": gd, "jax": jax, "jnp": jnp, "np": np, "math": math, "optax": optax, "P": PartitionSpec}
)


class Row(NamedTuple):
    call: Callable[[], Any]
    error: type[Exception]
    words: list[str]


def rows(table, own):
    """Compile rows (text of a call, error, *words of its message) of a file with these names."""
    names = NAMES | own
    return [
        Row(functools.partial(eval, compile(text, text, "eval"), names), error, words)
        for text, error, *words in table
    ]


def dense(kernel: Any, **others: Any):
    """A tree like PARAMS with another kernel."""
    return {"dense": {"kernel": kernel, "bias": jnp.ones(3), **others}}


def step(tx, grads=GRADS, state=None, params: Any = PARAMS, **extra):
    """One update; of a new state unless one is given."""
    return tx.update(grads, tx.init(PARAMS) if state is None else state, params, **extra)


# ------------------------------------------------------------------------- hyperparameters, masks

HYPERPARAMETERS = [
    ("scale_by_learning_rate(None)",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got None."),
    ("scale_by_learning_rate(NAN)",
     ValueError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got nan."),
    ("scale_by_learning_rate(INF)",
     ValueError, "scale_by_learning_rate: learning_rate must be finite, got inf."),
    ("scale_by_learning_rate(-0.1)",
     ValueError, "scale_by_learning_rate: learning_rate must be at least 0, got -0.1."),
    ("scale_by_learning_rate('0.1')",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got '0.1'."),
    ("scale_by_learning_rate(True)",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got True."),
    ("scale_by_learning_rate(1j)",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got 1j."),
    ("scale_by_learning_rate([0.1])",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got [0.1]."),
    ("scale_by_learning_rate(np.ones(3))",
     TypeError,
     "scale_by_learning_rate: learning_rate must be a number or a schedule, got an array of "
     "shape (3,). Arrays belong in the state"),
    ("scale_by_learning_rate(jnp.ones((1, 1)))",
     TypeError,
     "scale_by_learning_rate: learning_rate must be a number or a schedule, got an array of "
     "shape (1, 1)."),
    ("scale_by_learning_rate(np.float32(-1))",
     ValueError, "scale_by_learning_rate: learning_rate must be at least 0, got -1.0."),
    ("scale_by_learning_rate(MATRICES)",
     TypeError, "scale_by_learning_rate: learning_rate must be a number or a schedule, got "
     "ndim_at_least(n=2)."),
    ("scale_by_learning_rate(scale_by_adam)",
     TypeError,
     "scale_by_learning_rate: learning_rate must be a number or a schedule, got the class "
     "scale_by_adam."),
    ("scale_by_learning_rate(label_by(('a', True)))", TypeError,
     "scale_by_learning_rate: learning_rate must be a number or a schedule, got label_by("),
    ("adamw(None)", TypeError, "scale_by_learning_rate: learning_rate", "got None."),
    ("sgd(-1.0)", ValueError, "learning_rate must be at least 0, got -1.0."),
    ("adamw(1e-3, b1=1.0)", ValueError, "scale_by_adam: b1 must be in [0, 1), got 1.0"),
    ("adamw(1e-3, weight_decay=-1)", ValueError, "add_decayed_weights: weight_decay"),
    ("lamb(1e-3, weight_decay=NAN)", ValueError, "weight_decay", "got nan."),
    ("lars(1e-3, momentum=2.0)", ValueError, "lars: momentum must be in [0, 1], got 2.0"),
    ("signum(1e-3, beta=-0.5)", ValueError, "signum: beta must be in [0, 1), got -0.5"),
    ("scale(step_size=INF)", ValueError, "scale: step_size must be finite, got inf."),
    ("scale(step_size=lambda n: 0.1)",
     TypeError, "scale: step_size must be a number, got the function <lambda>."),
    ("scale(step_size=jax.random.key(0))",
     TypeError, "scale: step_size must be a number, got a PRNG key."),
    ("scale_by_schedule(step_size_fn=0.1)",
     TypeError, "scale_by_schedule: step_size_fn must be a function, got 0.1."),
    ("scale_by_schedule(step_size_fn=MATRICES)",
     TypeError, "scale_by_schedule: step_size_fn must be a function, got ndim_at_"),
    ("clip(max_delta=-1)", ValueError, "clip: max_delta must be at least 0, got -1.0."),
    ("clip(max_delta=NAN)", ValueError, "clip: max_delta must be a number, got nan."),
    ("clip_by_block_rms(threshold=0)",
     ValueError, "clip_by_block_rms: threshold must be greater than 0, got 0.0."),
    ("clip_by_global_norm(max_norm=0.0)",
     ValueError, "clip_by_global_norm: max_norm must be greater than 0, got 0.0."),
    ("clip_by_global_norm(max_norm=lambda n: 1)",
     TypeError, "clip_by_global_norm: max_norm must be a number, got the function"),
    ("adaptive_grad_clip(clipping=-1)",
     ValueError, "adaptive_grad_clip: clipping must be greater than 0, got -1.0."),
    ("adaptive_grad_clip(eps=INF, clipping=1)",
     ValueError, "adaptive_grad_clip: eps must be finite, got inf."),
    ("adaptive_grad_clip(axis=(0.5,), clipping=1)",
     TypeError, "adaptive_grad_clip: axis must be an integer or a tuple or None, got (0.5,)."),
    ("trace(decay=1.5)", ValueError, "trace: decay must be in [0, 1], got 1.5."),
    ("trace(nesterov=1, decay=0.9)", TypeError, "trace: nesterov must be True or False, got 1."),
    ("trace(accumulator_dtype=bool, decay=0.9)",
     ValueError, "trace: accumulator_dtype must be a floating dtype, got 'bool'"),
    ("ema(decay=1)", ValueError, "ema: decay must be in [0, 1), got 1.0."),
    ("ema(debias=None, decay=0.9)", TypeError, "ema: debias must be True or False, got None."),
    ("add_noise(eta=-1, gamma=0, key=0)",
     ValueError, "add_noise: eta must be at least 0, got -1.0."),
    ("add_noise(gamma=INF, eta=0, key=0)", ValueError, "add_noise: gamma must be finite, got inf."),
    ("add_noise(key=0.5, eta=0, gamma=0)",
     TypeError, "add_noise: key must be an integer or one PRNG key, got 0.5."),
    ("add_noise(key=np.ones(2), eta=0, gamma=0)",
     TypeError, "add_noise: key must be an integer or one PRNG key, got an array"),
    ("scale_by_adam(b2=-0.1)", ValueError, "scale_by_adam: b2 must be in [0, 1), got -0.1."),
    ("scale_by_adam(b1='0.9')", TypeError, "scale_by_adam: b1 must be a number, got '0.9'."),
    ("scale_by_adam(b1=True)", TypeError, "scale_by_adam: b1 must be a number, got True."),
    ("scale_by_adam(eps=-1e-8)", ValueError, "scale_by_adam: eps must be at least 0, got -1e-08."),
    ("scale_by_adam(eps=INF)", ValueError, "scale_by_adam: eps must be finite, got inf."),
    ("scale_by_adam(eps_root=None)",
     TypeError, "scale_by_adam: eps_root must be a number, got None."),
    ("scale_by_adam(mu_dtype='int32')",
     ValueError, "scale_by_adam: mu_dtype must be a floating dtype, got 'int32'."),
    ("scale_by_adam(mu_dtype='f31')",
     TypeError, "scale_by_adam: mu_dtype must be a dtype or None, got 'f31'."),
    ("scale_by_adam(mu_dtype=jnp.ones(2))",
     TypeError, "scale_by_adam: mu_dtype must be a dtype or None, got an array"),
    ("scale_by_amsgrad(b1=2.0)", ValueError, "scale_by_amsgrad: b1 must be in [0, 1), got 2.0."),
    ("scale_by_rms(decay=1.0)", ValueError, "scale_by_rms: decay must be in [0, 1), got 1.0."),
    ("scale_by_rms(initial_scale=-1)",
     ValueError, "scale_by_rms: initial_scale must be at least 0, got -1.0."),
    ("scale_by_stddev(eps=NAN)", ValueError, "scale_by_stddev: eps must be a number, got nan."),
    ("scale_by_rss(initial_accumulator_value=-1)",
     ValueError, "scale_by_rss: initial_accumulator_value must be at least 0, got -1.0."),
    ("scale_by_lion(smooth_beta=0)",
     ValueError, "scale_by_lion: smooth_beta must be greater than 0, got 0.0."),
    ("normalize_by_update_norm(eps=-1)",
     ValueError, "normalize_by_update_norm: eps must be at least 0, got -1.0."),
    ("scale_by_trust_ratio(min_norm=-1)",
     ValueError, "scale_by_trust_ratio: min_norm must be at least 0, got -1.0."),
    ("scale_by_trust_ratio(trust_coefficient=INF)",
     ValueError, "scale_by_trust_ratio: trust_coefficient must be finite, got inf."),
    ("scale_by_lion(mode='smoth')",
     ValueError, "scale_by_lion: mode must be one of 'hard', 'smooth', 'refined', got 'smoth'",
     "Did you mean 'smooth'?"),
    ("MultiSteps(opt=SGD, every_k_schedule=0)",
     ValueError, "MultiSteps: every_k_schedule must be at least 1, got 0."),
    ("MultiSteps(opt=SGD, every_k_schedule=2.5)",
     TypeError, "MultiSteps: every_k_schedule must be an integer or a function, got 2.5."),
    ("MultiSteps(opt=SGD, every_k_schedule=True)",
     TypeError, "MultiSteps: every_k_schedule must be an integer or a function, got True."),
    ("apply_if_finite(SGD, -1)", ValueError, "max_consecutive_errors must be at least"),
    ("lookahead(SGD, 0, 0.5)", ValueError, "lookahead: sync_period must be at least 1"),
    ("lookahead(SGD, 5, 1.5)", ValueError, "slow_step_size must be in [0, 1], got 1.5"),
    ("lookahead(SGD, 2.0, 0.5)", TypeError, "sync_period must be an integer, got 2.0"),
    ("ndim_at_least(n=-1)", ValueError, "ndim_at_least: n must be at least 0, got -1."),
    ("ndim_at_least(n=2.0)", TypeError, "ndim_at_least: n must be an integer, got 2.0."),
    ("path_matches(pattern='(')",
     ValueError, "path_matches: pattern must be a regular expression, got '('"),
    ("path_matches(pattern=None)", TypeError, "path_matches: pattern must be a string, got None."),
    ("MATRICES & True", TypeError, "all_of: masks are combined with masks", "got True."),
    ("any_of('kernel')", TypeError, "any_of", "ndim_at_least(2)", "got 'kernel'."),
    ("label_by('a')", TypeError, "label_by: argument 0 must be a pair", "got 'a'."),
    ("label_by(('a', 'kernel$'))", TypeError, "label_by", "(label, mask)"),
    ("replace(ADAM, b1=0.5)", TypeError, "chain: no field named 'b1', it has transf"),
    ("replace(ema(0.9), decya=0)", TypeError, "ema", "Did you mean 'decay'?"),
    ("replace(ema(0.9), decay=3)", ValueError, "ema: decay must be in [0, 1)"),
    ("replace(3, decay=3)", TypeError, "replace", "got 3."),
]  # fmt: skip


def wrong_values(x):
    """Values of another kind than `x`, a number, a flag or numbers."""
    if isinstance(x, bool):
        return ["x", 0.5, NAN]
    if isinstance(x, int | float):
        return ["0", True, NAN, (0.5, True)]
    if isinstance(x, tuple) and x and all(type(v) in (int, float) for v in x):
        return [(*x[:-1], True), (*x[:-1], "0"), (*x[:-1], NAN), "x", True]
    return []


def test_every_field_of_the_catalogue_refuses_another_kind():
    """In words that name the field."""
    seen = set()
    for case in CASES.values():
        if case.foreign or not isinstance(case.tx, gx.Transform) or type(case.tx) in seen:
            continue
        seen.add(type(case.tx))
        for name, x in fields_of(case.tx).items():
            for wrong in wrong_values(x):
                with pytest.raises((TypeError, ValueError), match=name):
                    gx.replace(case.tx, **{name: wrong})
    assert len(seen) > 100


# --------------------------------------------------------------------------------------- structure

REPLACED = gx.partition({"a": SGD, "b": ADAM}, gx.label_by(("a", MATRICES), ("b", True)))
COMPOSITION = [
    ("chain(scale_by_adam)", TypeError, "chain: argument 0 is the class", "call it:"),
    ("chain(SGD, adam)", TypeError, "argument 1 is the function adam", "adam(...)"),
    ("chain(SGD, 3)", TypeError, "chain: argument 1 must have init and update", "got 3"),
    ("chain([SGD, SGD])", TypeError, "chain: argument 0", "Unpack it with a star."),
    ("chain(np.ones((99, 99)))", TypeError, "got an array of shape (99, 99)."),
    ("chain(transforms=())", TypeError, "chain: unexpected argument", "chain(a, b)"),
    ("named_chain(SGD)", TypeError, "named_chain: argument 0 must be a pair (name, tra"),
    ("named_chain(('a', 3))", TypeError, "named_chain: 'a' must have init and update"),
    ("named_chain(('a', SGD), ('a', SGD))", ValueError, "two transforms are named 'a'"),
    ("masked(trace, True)", TypeError, "masked: inner is the class trace"),
    ("masked(SGD, None)", TypeError, "masked: mask must be a mask such as", "got None"),
    ("masked(SGD, MATRICES.__class__)", TypeError, "got the class ndim_at_least."),
    ("masked(SGD, {'dense': 1})", TypeError, "mask's entries must be True or", "got 1."),
    ("masked(SGD, np.ones(3))", TypeError, "masked: mask", "an array of shape (3,)"),
    ("add_decayed_weights(0.1, 'kernel')", TypeError, "add_decayed_weights: the mask's"),
    ("adamw(1e-3, mask={'w': 0})",
     TypeError, "adamw: the entries of weight_decay_mask", "True or False"),
    ("partition([SGD], 'a')", TypeError, "partition: transforms must be a dict"),
    ("partition({'a': sgd}, 'a')", TypeError, "transform of 'a' is the function sgd"),
    ("partition({'a': SGD}, None)", TypeError, "partition: param_labels", "got None."),
    ("partition({'a': SGD}, MATRICES)", TypeError, "param_labels", "got ndim_at_least"),
    ("partition({'head': SGD}, {'dense': 'haed'})", ValueError,
     "partition: the label 'haed' of param_labels does not have a transform; there are 'head'."),
    ("partition({'a': SGD}, lambda p: jax.tree.map(lambda _: 'b', p)).init(PARAMS)", ValueError,
     f"partition: the parameter {BIAS} has the label 'b', which does not have a transform"),
    ("partition({'a': SGD}, label_by(('a', MATRICES))).init(PARAMS)",
     ValueError, f"label_by: no mask selects the parameter {BIAS}; end with (label, True)."),
    ("masked(SGD, {'dense': {'kernel': True, 'bias': True, 'b': True}}).init(PARAMS)",
     ValueError, "masked: the entry ['dense']['b']: True matches no parameter."),
    ("masked(SGD, {'dense': {'kernel': True}}).init(PARAMS)",
     ValueError, f"masked: no entry for the parameter {BIAS}."),
    ("masked(SGD, lambda p: jax.tree.map(jnp.ndim, p)).init(PARAMS)",
     TypeError, f"masked: the mask's entry at {BIAS} must be True or False, got 1."),
    ("GradientTransformation(SGD.init, 3)", TypeError, "update_fn must be a function"),
    ("step(chain(GradientTransformation(lambda p: (), lambda g, s, p: None)))",
     TypeError, "GradientTransformation: update must return (updates, state), got None."),
    ("MultiSteps(SGD, 2, should_skip_update_fn=skip_large_updates)",
     TypeError, "MultiSteps: should_skip_update_fn is called with (updates, gradient_step, params)",
     "functools.partial"),
    ("MultiSteps(SGD, 2, should_skip_update_fn=lambda u, n, p: None).init(PARAMS)",
     TypeError, "MultiSteps: should_skip_update_fn must return (skip, skip_state), got None."),
    ("MultiSteps(SGD, 2, should_skip_update_fn=lambda u, n, p: (1, ())).init(PARAMS)",
     TypeError, "must return a boolean scalar first, got dtype int32"),
    *((f"MultiSteps(SGD, 2, should_skip_update_fn=lambda u, n, p: ({skip}, ())).init(PARAMS)",
       ValueError, "must return a boolean scalar first, got dtype")
      for skip in ("jnp.ones(())", "jnp.ones(2, bool)", "np.ones(1, bool)")),
    *((call.format(repr(kind)), ValueError, words, f"got {kind!r}.")
      for kind in (3, None, True, 0.5, ["linear"])
      for call, words in (
          ("piecewise_interpolate_schedule({}, 1.0, {{1: 0.5}})",
           "interpolate_type must be one of 'linear', 'cosine'"),
          ("scale_by_lion(mode={})", "scale_by_lion: mode must be one of 'hard'"),
          ("scale_by_polyak(variant={})", "scale_by_polyak: variant must be one"),
          ("muon(0.1, preconditioning={})", "preconditioning must be one of"),
          ("sparse_semantics(SGD, {})", "semantics must be one of 'rows'"))),
    *((f"step({tx.format(value)})", TypeError, "a schedule's value must be one real number", got)
      for value, got in (("jnp.ones(3)", "shape (3,)."), ("1j", "got 1j."), ("None", "got None."))
      for tx in ("sgd(lambda n: {})", "adamw(0.1, weight_decay=lambda n: {})",
                 "inject_hyperparams(sgd)(lambda n: {})")),
    ("step(MultiSteps(SGD, lambda n: 0))", ValueError, "at least 1, got 0."),
    ("step(MultiSteps(SGD, lambda n: 2.5))", ValueError, "an integer", "got 2.5."),
    ("step(MultiSteps(SGD, lambda n: None))", ValueError, "an integer", "got None."),
]  # fmt: skip

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
    ("step(ADAM, dense(jnp.ones((3, 2))))", ValueError,
     f"scale_by_adam: gradient of {KERNEL} has shape (3, 2), the parameter has (2, 3)."),
    ("step(SGD, dense(jnp.ones((1, 3))))", ValueError, f"gradient of {KERNEL}", "(1, 3)"),
    ("step(SGD, dense(1.0))", ValueError, f"gradient of {KERNEL} has shape ()"),
    ("step(SGD, dense(jnp.ones((2, 3), jnp.int32)))",
     TypeError, f"gradient of {KERNEL} has dtype int32; only floating", "masked(...)"),
    ("step(SGD, dense('float32'))", TypeError, f"gradient of {KERNEL} has dtype <U7"),
    ("ADAM.init(dense('float32'))",
     TypeError, f"adam: parameter {KERNEL} is 'float32', which is not an array",
     "eqx.filter(model, eqx.is_array)"),
    ("step(SGD, {'dense': {'kernel': jnp.ones((2, 3))}})", ValueError,
     f"the parameters have a leaf {BIAS}, the updates none. A gradient of None in its place"),
    ("step(SGD, dense(jnp.ones((2, 3)), gain=jnp.ones(3)))",
     ValueError, "the updates have a leaf ['dense']['gain'], the parameters have none."),
    ("step(ADAM, [jnp.ones((2, 3))])", ValueError, "updates have a leaf ['0'], the state"),
    ("step(adamw(0.1), params=None)", ValueError, "add_decayed_weights: needs the par"),
    ("step(lamb(0.1), params=None)", ValueError, "call update(updates, state, params)"),
    ("step(LOOKAHEAD, params=None)", ValueError, "lookahead: needs the parameters"),
    ("step(LOOKAHEAD, params=PAIR)", ValueError, "lookahead: init and update must both"),
    ("step(SGD, state=())", ValueError, "chain: 2 transforms but 0 states.", "another ch"),
    ("step(SGD, state=adamw(0.1).init(PARAMS))", ValueError, "2 tr", "3 states"),
    ("step(SGD, state=trace(0.9).init(PARAMS))", TypeError, "got TraceState"),
    ("SGD.update(GRADS, None, PARAMS)", TypeError, "chain: the state must be a tuple of 2"),
    ("step(sgd(0.1, 0.9), state=SGD.init(PARAMS))",
     TypeError, "trace: the state must be of kind TraceState, got EmptyState.",
     "Was this state made by another transform's init?"),
    ("step(ADAM, state=adam(0.1).init(dense(jnp.ones((3, 2)))))", ValueError,
     f"scale_by_adam: the state's mu of {KERNEL} has shape (3, 2), this parameter needs (2, 3)."),
    ("step(ADAM, state=ADAM.init({'dense': {'kernel': jnp.ones((2, 3))}}))", ValueError,
     f"the updates have a leaf {BIAS}, the state's mu has none.", "for other parameters?"),
    ("NAMED.update(GRADS, {}, PARAMS)", ValueError, "named_chain: no state for 'a'."),
    ("NAMED.update(GRADS, (), PARAMS)", TypeError, "must be a dict of 1 state, got tuple"),
    ("NAMED.update(GRADS, {'a': (), 'b': ()})", ValueError, "a state named 'b' but no"),
    ("step(REPLACED, state=partition({'a': SGD}, 'a').init(PARAMS))",
     ValueError, "partition: the transforms are ['a', 'b'], the state has ['a']."),
    *((f"{tx}.update(GRADS, EmptyState(), PARAMS)",
       TypeError, f"{name}: the state must", f"of kind {kind}, got EmptyState.")
      for tx, name, kind in (
          ("scale_by_lion()", "scale_by_lion", "ScaleByLionState"),
          ("zero_nans()", "zero_nans", "ZeroNansState"),
          ("masked(SGD, True)", "masked", "MaskedState"),
          ("REPLACED", "partition", "PartitionState"),
          ("MultiSteps(SGD, 2)", "MultiSteps", "MultiStepsState"),
          ("apply_if_finite(SGD, 2)", "apply_if_finite", "ApplyIfFiniteState"),
          ("LOOKAHEAD", "lookahead", "LookaheadWithSlowState"),
          ("INJECTED", "inject_hyperparams", "InjectStatefulHyperparamsState"))),
    ("inject_hyperparams(SGD)", TypeError, "inner_factory must be a function, got cha"),
    ("inject_hyperparams(adam, 'b3')", ValueError, "adam has no argument 'b3'", "b1"),
    ("inject_hyperparams(adam)(lr=0.1)", TypeError, "adam has no argument 'lr'"),
    ("inject_hyperparams(adam)(-1.0)", ValueError, "at least 0, got -1.0."),
    ("inject_hyperparams(chain)(SGD)", TypeError, "chain takes any number of argum"),
    ("inject_hyperparams(lambda x: x)(3)", TypeError, "what the factory returns must have"),
    ("with_rate(lr=jnp.ones(()))", ValueError, "adam has no hyperparameter 'lr', only"),
    ("with_rate(b1=jnp.ones(3))", TypeError, "hyperparameter 'b1' must be a scalar", "(3,)"),
    ("step(INJECTED, state=INJECTED.init(PARAMS)._replace(hyperparams={'b1': 0.9}))",
     ValueError, "the state has no hyperparameter 'learning_rate', only b1."),
    ("apply_updates(PARAMS, dense(jnp.ones((1, 3))))", ValueError, "(1, 3)", KERNEL),
    ("apply_updates(PARAMS, {'dense': {}})", ValueError, "apply_updates", BIAS),
    ("apply_updates(PARAMS, [1.0])", ValueError, "apply_updates: the updates have a"),
    ("apply_updates({'n': jnp.ones(3, jnp.int32)}, {'n': jnp.ones(3)})", TypeError,
     "apply_updates: the update of ['n'] has dtype float32, which a parameter of dtype int32"),
    ("apply_updates(1.0, jnp.ones((), jnp.complex64))", TypeError, "complex64"),
    ("incremental_update(PARAMS, PARAMS, 1.5)", ValueError, "step_size must be in [0"),
    ("incremental_update(1.0, jnp.ones(3), 0.5)", ValueError, "the average has (3,)."),
    ("incremental_update(PARAMS, {}, 0.5)", ValueError, BIAS, "the average has none."),
    ("safe_increment(jnp.ones((), bool))", ValueError, "safe_increment", "dtype bool"),
    ("safe_increment(jnp.asarray(1j))", ValueError, "must be a number, got dtype com"),
    ("as_optax(scale)", TypeError, "as_optax: tx is the class scale", "call it"),
]  # fmt: skip

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
    ("step(one_slot(rule=lambda self, g, m, p: g))", ValueError,
     "mine: rule returned 0 new slots, the state has 1.", "the update and then every slot"),
    ("step(one_slot(rule=lambda self, g, m, p: (g, m, m)))", ValueError, "returned 2 new"),
    ("step(one_slot(rule=lambda self, g, m, p: (jnp.sum(g), m)))",
     ValueError, "mine: rule made an update of shape () from a gradient of shape"),
    ("step(one_slot(rule=lambda self, g, m, p: (g, jnp.sum(m))))",
     ValueError, "mine: rule made slot 0 of shape (), the state has"),
    ("one_slot(init=lambda self, params: params).init(PARAMS)", TypeError,
     "mine: init must return a NamedTuple, whose fields with one array per parameter are ann"),
    ("step(one_slot(prepare=lambda self, updates, state, params: state))", TypeError,
     "mine: prepare must return (state, *scalars), with the new state first; got a OneSlot"),
    ("step(one_slot(prepare=lambda self, updates, state, params, *, value: (state,)))", TypeError,
     "mine: needs the extra argument 'value'; call update(updates, state, params, value=...)."),
    ("one_slot(locality='leaf')", ValueError, "mine: locality must be one of 'entry', 'row"),
    ("one_slot(locality=1)", ValueError, "mine: locality must be one of", "got 1."),
    ("transform(int)", TypeError, "int: a transform subclasses ArrayRule or Transform"),
    ("transform(not_a_transform)", TypeError, "not_a_transform: a transform subclasses"),
    ("gx.value(type('named', (Mask,), {'__annotations__': {'name': str}}))",
     TypeError, "named: a field must not be called 'name', which is a key of its own in configs"),
    ("gx.value(int)", TypeError, "value: the class int is not a subclass of Transform, S"),
    ("transform(type('mine', (ArrayRule,), {}), name='mine')",
     ValueError, "mine: the name 'mine' needs a package; register under 'package:mine'."),
    ("transform(type('mine', (ArrayRule,), {}), name=3)", TypeError, "must be a str"),
    ("register('mine', not_a_transform)", ValueError, "'package:not_a_transform'"),
    ("register('mine:', not_a_transform)", ValueError, "needs a package"),
    ("register('their:thing', 3)", TypeError, "register: needs a class or a function", "3."),
    ("[register('their:taken', f) for f in (not_a_transform, step)]", ValueError,
     "'their:taken' is already registered, by", "not_a_transform; choose another name."),
]  # fmt: skip


ROWS = rows(HYPERPARAMETERS + COMPOSITION + TREES + WRITTEN, globals())
ROWS += [row for table, own in catalogue.REFUSED for row in rows(table, own)]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.words[0][:70]}" for row in ROWS])
def test_wrong_input_is_refused_in_one_sentence(row):
    with pytest.raises(row.error) as caught:
        row.call()
    message = str(caught.value)
    # A name that is not there has a class of its own, which shows itself as an AttributeError.
    kind = AttributeError if caught.type is NoSuchName else caught.type
    assert kind is row.error
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
