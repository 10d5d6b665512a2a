"""Rows for `gradxform/wrappers/`."""

import jax.numpy as jnp
import optax

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import (
    ADAM,
    FALLING,
    FALLING_LR,
    SGD,
    Case,
    matrix,
    with_lr,
)
from tests.catalogue.tf_adam import HAT

BY_SIZE = gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", True))


def _times(factor, result):
    u, slots = result
    return factor * u, slots


TABLES = gx.label_by((4, gx.path_matches("no such parameter", optional=True)), (0, True))

WRAPPERS: dict[str, Case] = {
    "chain": Case(
        gx.chain(gx.trace(0.9), gx.clip_by_global_norm(1.0), gx.chain(gx.scale(-0.1))),
        ref.sequence(ref.trace(0.9), ref.clip_by_global_norm(1.0), SGD),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "chain/empty": Case(gx.chain(), ref.identity),
    "chain/optax inside": Case(
        gx.chain(optax.trace(0.9), gx.scale(-0.1)),
        ref.sequence(ref.trace(0.9), SGD),
        pickles=False,
        rows=False,
    ),
    "named_chain": Case(
        gx.named_chain(("momentum", gx.trace(0.9)), ("lr", gx.scale(-0.1))),
        ref.sequence(ref.trace(0.9), SGD),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "masked": Case(
        gx.masked(gx.adam(0.1), gx.ndim_at_least(2)),
        ref.only(matrix, ref.Reference(ADAM.start, lambda *a: _times(-0.1, ADAM.step(*a)))),
    ),
    "masked/tree": Case(
        gx.masked(gx.trace(0.9), {"w": True, "b": False, "s": False, "deep": True}),
        ref.only(matrix, ref.trace(0.9)),
    ),
    "partition": Case(
        gx.partition({"matrix": gx.trace(0.9), "rest": gx.scale_by_adam()}, BY_SIZE),
        ref.sequence(ref.only(matrix, ref.trace(0.9)), ref.only(lambda x: not matrix(x), ADAM)),
        names=("multi_transform",),
    ),
    "inject_hyperparams": Case(
        gx.inject_hyperparams(gx.adamw)(FALLING, weight_decay=0.1),
        ref.sequence(ADAM, ref.decay(0.1), FALLING_LR),
        names=("injected",),
    ),
    "MultiSteps": Case(
        gx.MultiSteps(gx.adam(0.1), 3),
        ref.every(with_lr(0.1, ADAM), 3),
        rows=False,
    ),
    "MultiSteps/sum": Case(
        gx.MultiSteps(gx.trace(0.9), 2, use_grad_mean=False),
        ref.every(ref.trace(0.9), 2, False),
        rows=False,
    ),
    "MultiSteps/skip": Case(
        gx.MultiSteps(gx.adam(0.1), 2, should_skip_update_fn=gx.skip_not_finite),
        ref.every(with_lr(0.1, ADAM), 2),
        rows=False,
    ),
    "apply_if_finite": Case(gx.apply_if_finite(gx.adam(0.1), 3), with_lr(0.1, ADAM)),
    "lookahead": Case(
        gx.lookahead(gx.adam(0.1), 3, 0.5), ref.lookahead(with_lr(0.1, ADAM), 3, 0.5), rows=False
    ),
    "external_step": Case(
        gx.external_step(gx.chain(gx.scale_by_tf_adam(eps=1e-3), gx.scale(-0.1))),
        ref.sequence(ref.shifted(HAT, 6), ref.scale(-0.1)),
        extra={"step": jnp.asarray(6, jnp.int32)},
    ),
    "external_step/at": Case(
        gx.external_step(gx.chain(gx.scale_by_tf_adam(eps=1e-3), gx.scale(-0.1)), at=2),
        ref.sequence(ref.shifted(HAT, 2), ref.scale(-0.1)),
        extra={"step": jnp.asarray(6, jnp.int32)},
    ),
    "external_step/counting": Case(
        gx.external_step(gx.scale_by_learning_rate(FALLING)), FALLING_LR
    ),
    "sparse_semantics": Case(gx.sparse_semantics(gx.adam(0.1), "dense"), with_lr(0.1, ADAM)),
    "only_dense": Case(gx.only_dense(gx.adam(0.1)), with_lr(0.1, ADAM)),
    "only_rows": Case(
        gx.only_rows(gx.adam(0.1)),
        ref.identity,
        holds_optimizer=False,  # dense gradients pass beside it
    ),
    "variable_names": Case(gx.variable_names(gx.adam(0.1), "Mine"), with_lr(0.1, ADAM)),
    "sum_of": Case(gx.sum_of(gx.scale(-0.1)), SGD),
    "accumulate_rows": Case(
        gx.accumulate_rows(gx.adam(0.1), 3, TABLES),
        ref.every(with_lr(0.1, ADAM), 3),
        rows=False,
    ),
}


REFUSED = [
    ("lookahead(ftrl(0.1), 2, 0.5)", ValueError,
     "lookahead: it moves the parameters, and step_by_ftrl goes on from a place of its own"),
    ("external_step(scale(-0.1)).init({'w': jnp.ones(2)})",
     ValueError, "external_step: scale has no count in its state; leave it outside."),
    ("one_step(external_step(adam(0.1)), step=0.5)",
     TypeError, "external_step: step must be an integer, got 0.5."),
    ("sparse_semantics(adam(0.1), 'lazy')", ValueError, "semantics", "'lazy'"),
    ("variable_names(adam, 'Mine')", TypeError, "variable_names: inner", "call it"),
    ("variable_names(adam(0.1), linear_name='/')",
     ValueError, "variable_names: linear_name must be the last part of a variable's name, got '/'"),
    ("sum_of()", ValueError, "sum_of", "at least one"),
    ("only_rows(0.1)", TypeError, "only_rows", "inner"),
    ("accumulate_rows(adam(0.1), 0, 4)", ValueError, "every_k_schedule", "at least 1"),
    ("accumulate_rows(adam(0.1), FALLING, 4)", TypeError, "every_k_schedule", "int"),
]  # fmt: skip
