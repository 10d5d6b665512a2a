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


def minimized(loss=loss_fn, **options):
    return gx.Optimizer(ADAM).minimize(loss, PARAMS, **options)


def applied(grads=PARAMS, params=PARAMS, **options):
    return gx.Optimizer(ADAM).apply_gradients(grads, params, **options)


def with_number(name, value, tx: Any = ADAM, params=PARAMS):
    gx.Optimizer(tx, params).hyperparams[name] = value


def with_weights(change, tx=ADAM, params=PARAMS):
    opt = gx.Optimizer(tx, params)
    return opt.set_weights(change(opt.get_weights()))


def with_state(tx, params=PARAMS):
    gx.Optimizer(ADAM, PARAMS).state = tx.init(params)


def subclassed():
    type("mine", (gx.Optimizer,), {})


def one_other(weights):
    return [*weights[:2], np.ones(7), *weights[3:]]


TF1, B = gx.compat.tf1.Adam(0.1), {"b": jnp.ones(3)}


def _other(i, x):
    weights = gx.Optimizer(TF1, B, "tf1").get_weights()
    return [*weights[:i], x, *weights[i + 1 :]]


REFUSED = [
    ("Optimizer(adam)", TypeError, "Optimizer: tx", "call it: adam(...)"),
    ("Optimizer(0.1)", TypeError, "Optimizer: tx must have init and update", "got 0.1."),
    ("Optimizer(ADAM, name='')", ValueError, "Optimizer: name must not be empty"),
    ("Optimizer(ADAM, name=3)", TypeError, "Optimizer: name must be a string, got 3."),
    ("Optimizer(ADAM, names='gradxfrom')", ValueError,
     "Optimizer: names must be one of 'gradxform', ", "got 'gradxfrom'. Did you mean 'gradxform'?"),
    ("Optimizer(ADAM, names='tf2')", ValueError, "names must be", "Did you mean 'tf1'"),
    ("Optimizer(ADAM, names=1)", ValueError, "names must be", "got 1."),
    ("subclassed()", TypeError, "Optimizer: is final, and mine cannot subclass it."),
    ("minimized(3.0)", TypeAndRuntimeError, "minimize: loss_fn must be a function", "got 3.0."),
    ("minimized(var_list=['enc/v'])", ValueError, "minimize: var_list names no parameter"),
    ("minimized(gate_gradients=7)", ValueError,
     "gate_gradients must be one of GATE_NONE (0), GATE_OP (1), GATE_GRAPH (2), got 7."),
    ("minimized(step=2**40)", ValueError, "minimize: step must be an integer of 32 bits, at most"),
    ("Optimizer(ADAM).apply_gradients(PARAMS, PARAMS, step='x')",
     TypeError, "apply_gradients: step must be an integer, the number of earlier steps, got 'x'."),
    ("minimized(gate_gradients=True)", ValueError, "gate_gradients must be one of", "got True."),
    ("minimized(gate_gradients=None)", ValueError, "gate_gradients must be one of", "got None."),
    ("minimized(aggregation_method=3)", ValueError, "aggregation_method must be None, 0", "got 3."),
    ("minimized(colocate_gradients_with_ops=1)",
     TypeError, "colocate_gradients_with_ops must be True or False, got 1."),
    ("minimized(name='')", ValueError, "name must not be empty"),
    ("jax.jit(lambda p: Optimizer(ADAM).minimize(loss_fn, p))(PARAMS)",
     TypeAndRuntimeError, "Optimizer: keeps its state between calls", "make_step"),
    ("applied(params=None)", TypeError, "apply_gradients: needs params"),
    ("applied(jax.tree.map(lambda x: None, PARAMS))", ValueError,
     "apply_gradients: no gradients for any of the parameters 'enc/b', 'enc/w', 'out'."),
    ("applied(grads_and_vars=[(PARAMS['out'], 'out')])",
     TypeError, "apply_gradients: takes grads or grads_and_vars, got both."),
    ("applied(experimental_aggregate_gradients=None)",
     TypeError, "experimental_aggregate_gradients must be True or False, got None."),
    ("applied(name=2)", TypeError, "name must be a string, got 2."),
    ("Optimizer(ADAM).compute_gradients(loss_fn, PARAMS, gate_gradients=-1)",
     ValueError, "gate_gradients must be one of", "got -1."),
    ("with_number('lr', 0.1)",
     UnknownHyperparam, "Optimizer: no number is called 'lr'", "'learning_rate'"),
    ("Optimizer(ADAM).hyperparams['b3']",
     UnknownHyperparam, "no number is called 'b3'; there are 'b1', 'b2', 'eps'"),
    ("Optimizer(INJECTED(0.1)).hyperparams['learning_rate']", UnknownHyperparam,
     "no number is called 'learning_rate'; there are none.", "Optimizer(tx, params)."),
    ("with_number('learning_rate', -1.0)", ValueError, "scale_by_learning_rate: learning_rate"),
    ("with_number('b1', 1.5)", ValueError, "scale_by_adam: b1 must be in [0, 1), got 1.5."),
    ("with_number('b1', '0.9')", TypeError, "scale_by_adam: b1 must be a number, got '0.9'."),
    ("with_number('learning_rate', constant_schedule(0.1))",
     TypeError, "hyperparameter 'learning_rate' of scale_by_learning_rate must stay a number"),
    ("with_number('factor', 0.5, branching())",
     ValueError, "hyperparameter 'factor' of branching decides what is computed", "migrate_state"),
    ("with_number('learning_rate', -1.0, INJECTED(0.1))",
     ValueError, "learning_rate must be at least 0, got -1.0."),
    ("with_number('learning_rate', 'fast', INJECTED(0.1))",
     TypeError, "hyperparameter 'learning_rate' must be a finite number, got 'fast'."),
    ("with_number('learning_rate', 0.1, INJECTED(linear_schedule(1.0, 0.0, 9)))",
     ValueError, "hyperparameter 'learning_rate' follows a schedule"),
    ("Optimizer(ADAM).hyperparams.pop('b1')",
     TypeError, "the hyperparameter 'b1' can be set, but not deleted."),
    ("setattr(Optimizer(scale_by_adam()), 'learning_rate', 0.1)",
     AttributeError, "Optimizer", "'learning_rate'", "hyperparams"),
    ("Optimizer(ADAM, PARAMS).get_slot('enc/v', 'mu')",
     ValueError, "Optimizer.get_slot: path names no parameter, got 'enc/v'", "'enc/w'"),
    *((f"with_weights(lambda w: {x!r})",
       TypeError, f"Optimizer: weights must be a list of arrays, got {x!r}.")
      for x in (None, 3, "adam", {"mu": 1})),
    # in the order b/Adam, b/Adam_1, beta1_power
    *((f"Optimizer(TF1, B, 'tf1').set_weights(_other({i}, {x!r}))", kind, words)
      for i, x, kind, words in (
          (2, "x", ValueError, "set_slots: beta1_power must be a number, got array('x'"),
          (2, [1, [2]], ValueError, "set_slots: beta1_power must be a number"),
          (2, True, ValueError, "set_slots: beta1_power must be a number, got array(True)."),
          (0, [1, [2]], ValueError, "from_checkpoint: 'b/Adam' has shape (), the slot 'm'"),
          (0, ["a"] * 3, TypeError, "set_slots: m at ['b'] has dtype <U1, the state's"))),
    ("with_weights(lambda w: w[:-1])", ValueError, "set_weights needs 8 arrays", "got 7."),
    ("with_weights(lambda w: Optimizer(sgd(0.1), PARAMS).get_weights())", ValueError,
     "set_weights needs 8 arrays ('iterations', 'count', 'mu/enc/b'", "another optimizer?"),
    ("with_weights(one_other)", ValueError, "the weight 'mu/enc/b' has shape (2,), got (7,)."),
    ("with_weights(lambda w: [0.5, *w[1:]])", TypeError, "the weight 'iterations' has dtype int32"),
    ("with_weights(lambda w: [*w[:-1], ['a', 'b']])", TypeError, "the weight 'nu/out' has dtype"),
    ("Optimizer(ADAM).set_weights([0])",
     ValueError, "set_weights needs the parameters; pass them as Optimizer(tx, params)."),
    ("with_state(sgd(0.1))",
     TypeError, "the state must have the structure of chain's init", "another transform's init?"),
    ("with_state(ADAM, PARAMS | {'out': jnp.ones(3)})",
     ValueError, "the state's", "must have shape (2,), got (3,).", "other parameters?"),
]  # fmt: skip
