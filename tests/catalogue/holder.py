"""What the holder of a state refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.errors import TypeAndRuntimeError
from gradxform.training.hyperparams import UnknownHyperparam

PARAMS = {"enc": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, "out": jnp.ones(2)}
INJECTED = gx.inject_hyperparams(gx.adam)
ADAM = gx.adam(0.1)


def loss_fn(p):
    return sum(jnp.sum(x) for x in jax.tree.leaves(p))


@gx.transform
class branching(gx.ArrayRule):
    """Multiply, if the factor is not 0; a rule that decides in Python.

    Args:
      factor: any number.
    """

    factor: float = 1.0

    locality = "entry"

    def rule(self, g, p):
        return self.factor * g if self.factor else g


def wrong(x: Any) -> Any:
    """Hide from type checkers that an argument is wrong."""
    return x


def minimized(loss=loss_fn, **options):
    return lambda: gx.Optimizer(ADAM).minimize(loss, PARAMS, **options)


def applied(grads=PARAMS, params=PARAMS, **options):
    return lambda: gx.Optimizer(ADAM).apply_gradients(grads, params, **options)


def with_number(name, value, tx: Any = ADAM, params=PARAMS):
    return lambda: gx.Optimizer(tx, params).hyperparams.__setitem__(name, value)


def with_weights(change, tx=ADAM, params=PARAMS):
    opt = gx.Optimizer(tx, params)
    return lambda: opt.set_weights(change(opt.get_weights()))


def with_state(tx, params=PARAMS):
    def call():
        gx.Optimizer(ADAM, PARAMS).state = tx.init(params)

    return call


def subclassed():
    type("mine", (gx.Optimizer,), {})


def one_other(weights):
    return [*weights[:2], np.ones(7), *weights[3:]]


REFUSED = [
    (lambda: gx.Optimizer(gx.adam), TypeError, ("Optimizer: tx", "call it: adam(...)")),
    (lambda: gx.Optimizer(0.1), TypeError, ("Optimizer: tx must have init and update", "got 0.1.")),
    (lambda: gx.Optimizer(ADAM, name=""), ValueError, ("Optimizer: name must not be empty",)),
    (lambda: gx.Optimizer(ADAM, name=3), TypeError, ("Optimizer: name must be a string, got 3.",)),
    (
        lambda: gx.Optimizer(ADAM, names="gradxfrom"),
        ValueError,
        (
            "Optimizer: names must be one of 'gradxform', ",
            "got 'gradxfrom'. Did you mean 'gradxform'?",
        ),
    ),
    (lambda: gx.Optimizer(ADAM, names="tf2"), ValueError, ("names must be", "Did you mean 'tf1'")),
    (lambda: gx.Optimizer(ADAM, names=wrong(1)), ValueError, ("names must be", "got 1.")),
    (subclassed, TypeError, ("Optimizer: is final, and mine cannot subclass it.",)),
    (minimized(3.0), TypeAndRuntimeError, ("minimize: loss_fn must be a function", "got 3.0.")),
    (minimized(var_list=["enc/v"]), ValueError, ("minimize: var_list names no parameter",)),
    (
        minimized(gate_gradients=7),
        ValueError,
        ("gate_gradients must be one of GATE_NONE (0), GATE_OP (1), GATE_GRAPH (2), got 7.",),
    ),
    (minimized(gate_gradients=True), ValueError, ("gate_gradients must be one of", "got True.")),
    (minimized(gate_gradients=None), ValueError, ("gate_gradients must be one of", "got None.")),
    (minimized(aggregation_method=3), ValueError, ("aggregation_method must be None, 0", "got 3.")),
    (
        minimized(colocate_gradients_with_ops=1),
        TypeError,
        ("colocate_gradients_with_ops must be True or False, got 1.",),
    ),
    (minimized(name=""), ValueError, ("name must not be empty",)),
    (
        lambda: jax.jit(lambda p: gx.Optimizer(ADAM).minimize(loss_fn, p))(PARAMS),
        TypeError,
        ("Optimizer: keeps its state between calls", "make_step"),
    ),
    (applied(params=None), TypeError, ("apply_gradients: needs params",)),
    (
        applied(jax.tree.map(lambda x: None, PARAMS)),
        ValueError,
        ("apply_gradients: no gradients for any of the parameters 'enc/b', 'enc/w', 'out'.",),
    ),
    (
        applied(grads_and_vars=[(PARAMS["out"], "out")]),
        TypeError,
        ("apply_gradients: takes grads or grads_and_vars, got both.",),
    ),
    (
        applied(experimental_aggregate_gradients=None),
        TypeError,
        ("experimental_aggregate_gradients must be True or False, got None.",),
    ),
    (applied(name=2), TypeError, ("name must be a string, got 2.",)),
    (
        lambda: gx.Optimizer(ADAM).compute_gradients(loss_fn, PARAMS, gate_gradients=-1),
        ValueError,
        ("gate_gradients must be one of", "got -1."),
    ),
    (
        with_number("lr", 0.1),
        UnknownHyperparam,
        ("Optimizer: no number is called 'lr'", "'learning_rate'"),
    ),
    (
        lambda: gx.Optimizer(ADAM).hyperparams["b3"],
        UnknownHyperparam,
        ("no number is called 'b3'; there are 'b1', 'b2', 'eps'",),
    ),
    (
        lambda: gx.Optimizer(INJECTED(0.1)).hyperparams["learning_rate"],
        UnknownHyperparam,
        ("no number is called 'learning_rate'; there are none.", "Optimizer(tx, params)."),
    ),
    (with_number("learning_rate", -1.0), ValueError, ("scale_by_learning_rate: learning_rate",)),
    (with_number("b1", 1.5), ValueError, ("scale_by_adam: b1 must be in [0, 1), got 1.5.",)),
    (with_number("b1", "0.9"), TypeError, ("scale_by_adam: b1 must be a number, got '0.9'.",)),
    (
        with_number("learning_rate", gx.constant_schedule(0.1)),
        TypeError,
        ("hyperparameter 'learning_rate' of scale_by_learning_rate must stay a number",),
    ),
    (
        with_number("factor", 0.5, branching()),
        ValueError,
        ("hyperparameter 'factor' of branching decides what is computed", "migrate_state"),
    ),
    (
        with_number("learning_rate", -1.0, INJECTED(0.1)),
        ValueError,
        ("learning_rate must be at least 0, got -1.0.",),
    ),
    (
        with_number("learning_rate", "fast", INJECTED(0.1)),
        TypeError,
        ("hyperparameter 'learning_rate' must be a finite number, got 'fast'.",),
    ),
    (
        with_number("learning_rate", 0.1, INJECTED(gx.linear_schedule(1.0, 0.0, 9))),
        ValueError,
        ("hyperparameter 'learning_rate' follows a schedule",),
    ),
    (
        lambda: gx.Optimizer(ADAM).hyperparams.pop("b1"),
        TypeError,
        ("the hyperparameter 'b1' can be set, but not deleted.",),
    ),
    (
        lambda: setattr(gx.Optimizer(ADAM), "learning_rate", 0.1),
        AttributeError,
        ("Optimizer", "'learning_rate'", "hyperparams"),
    ),
    (
        lambda: gx.Optimizer(ADAM, PARAMS).get_slot("enc/v", "mu"),
        ValueError,
        ("Optimizer.get_slot: path names no parameter, got 'enc/v'", "'enc/w'"),
    ),
    (with_weights(lambda w: w[:-1]), ValueError, ("set_weights needs 8 arrays", "got 7.")),
    (
        with_weights(lambda w: gx.Optimizer(gx.sgd(0.1), PARAMS).get_weights()),
        ValueError,
        ("set_weights needs 8 arrays ('iterations', 'count', 'mu/enc/b'", "another optimizer?"),
    ),
    (with_weights(one_other), ValueError, ("the weight 'mu/enc/b' has shape (2,), got (7,).",)),
    (
        with_weights(lambda w: [0.5, *w[1:]]),
        TypeError,
        ("the weight 'iterations' has dtype int32",),
    ),
    (with_weights(lambda w: [*w[:-1], ["a", "b"]]), TypeError, ("the weight 'nu/out' has dtype",)),
    (
        lambda: gx.Optimizer(ADAM).set_weights([0]),
        ValueError,
        ("set_weights needs the parameters; pass them as Optimizer(tx, params).",),
    ),
    (
        with_state(gx.sgd(0.1)),
        TypeError,
        ("the state must have the structure of chain's init", "another transform's init?"),
    ),
    (
        with_state(ADAM, PARAMS | {"out": jnp.ones(3)}),
        ValueError,
        ("the state's", "must have shape (2,), got (3,).", "other parameters?"),
    ),
]
