"""What the functions of a training loop refuse."""

from typing import Any

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.errors import TypeAndRuntimeError, TypeAndValueError

PARAMS = {"enc": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, "out": jnp.ones(2)}
SGD = gx.sgd(0.1)


def loss_fn(p):
    return sum(jnp.sum(x) for x in jax.tree.leaves(p))


def gradients(loss=loss_fn, params=PARAMS, **options):
    return gx.compute_gradients(loss, params, **options)


def applied(grads=None, tx: Any = SGD, params=PARAMS, **options):
    return gx.apply_gradients(tx, grads, SGD.init(PARAMS), params, **options)


def pairs(*pairs):
    return applied(grads_and_vars=pairs)


NONE = jax.tree.map(lambda p: None, PARAMS)
G = jnp.ones(2)
PATHS = "'enc/b', 'enc/w', 'out'"
LIVE = gx.compat.keras.SGD(lambda: 0.1)


REFUSED = [
    ("gradients(jnp.ones(()))",
     TypeAndRuntimeError, "compute_gradients: loss_fn must be a function of the parameters"),
    ("gradients(3.0)",
     TypeAndRuntimeError, "compute_gradients: loss_fn must be a function", "got 3.0."),
    ("gradients(lambda p: p['out'])",
     TypeError, "compute_gradients: the loss must be a real scalar, got an array of shape (2,)"),
    ("gradients(lambda p: 'x')", TypeError, "the loss must be a real scalar, got 'x'."),
    ("gradients(has_aux=True)", TypeError, "has_aux=True", "must return a pair (loss, aux)"),
    ("gradients(var_list=['enc/v'])",
     ValueError, "compute_gradients: var_list names no parameter, got 'enc/v'", PATHS, "'enc/w'"),
    ("gradients(var_list=['en'])", ValueError, "got 'en'", "Did you mean 'enc'?"),
    ("gradients(var_list=[''])", ValueError, "var_list names no parameter, got ''"),
    ("gradients(var_list='enc/w')", TypeError, "got the string 'enc/w'; write ['enc/w']."),
    ("gradients(var_list=['out', 'out'])", ValueError, "var_list names 'out' twice."),
    ("gradients(var_list=[])", TypeError, "var_list must be a list of paths", "got []."),
    ("gradients(var_list=3)", TypeError, "var_list must be a list of paths", "got 3."),
    ("gradients(var_list=['out', 3])", TypeError, "must be a list of paths", "got ['out', 3]."),
    ("gradients(var_list={'enc': True})", ValueError, "no entry for the parameter ['out']."),
    ("gradients(var_list=path_matches('kernel'))", ValueError, "'kernel'", "matches none"),
    ("gradients(var_list=ndim_at_least(3))",
     ValueError, f"compute_gradients: var_list selects none of the parameters {PATHS}."),
    ("gradients(params=PARAMS | {'n': jnp.arange(2)}, var_list=['n'])",
     TypeAndValueError, "parameter ['n'] has dtype int32", "Leave it out with var_list."),
    ("gradients(grad_loss=jnp.ones(2))", ValueError, "grad_loss has shape (2,), the loss has ()."),
    ("gradients(grad_loss='1')", TypeError, "grad_loss must be a real number or array, got '1'."),
    ("gradients(grad_loss=True)", TypeError, "grad_loss must be a real number", "got True."),
    ("gradients(sparse=['tables'])", ValueError, "sparse names no parameter, got 'tables'"),
    ("gradients(sparse=ndim_at_least(3))", ValueError, "sparse selects none of the parameters"),
    ("gradients(sparse=['enc/w'])",
     ValueError, "compute_gradients: the table ['enc']['w'] is used by reduce_sum", "out of where"),
    ("make_step(SGD, 3.0)", TypeAndRuntimeError, "make_step: loss_fn must be a function"),
    ("make_step(sgd, loss_fn)", TypeError, "make_step: tx", "call it: sgd(...)"),
    *((f"make_step(SGD, loss_fn)(PARAMS, SGD.init(PARAMS), step={step})",
       kind, f"make_step: step must be an integer{words}")
      for step, kind, words in (
          ("2**40", ValueError, " of 32 bits, at most 2**31 - 1, got 1099511627776."),
          ("np.asarray(2**40)", ValueError, " of 32 bits, at most 2**31 - 1, got 1099511627776."),
          ("1.5", TypeError, ", the number of earlier steps, got 1.5."),
          ("'x'", TypeError, ", the number of earlier steps, got 'x'."),
          ("True", TypeError, ", the number of earlier steps, got True."))),
    ("make_step(SGD, loss_fn, var_list=['v'])(PARAMS, SGD.init(PARAMS))",
     ValueError, "make_step: var_list names no parameter, got 'v'"),
    ("applied(NONE)",
     ValueError, f"apply_gradients: no gradients for any of the parameters {PATHS}.", "var_list"),
    ("applied()", ValueError, "apply_gradients: no gradients for any of the parameters"),
    ("applied(PARAMS, params=None)", TypeError, "apply_gradients: needs params"),
    ("applied(PARAMS, adam)", TypeError, "apply_gradients: tx", "call it: adam(...)"),
    ("applied(PARAMS, external_step(scale_by_adam()), stpe=3)",
     TypeError, "no part takes the extra argument 'stpe'", "'step'"),
    ("pairs()", ValueError, f"grads_and_vars is empty; the parameters are {PATHS}."),
    ("pairs(G)", TypeError, "grads_and_vars must be pairs (gradient, path), got an array"),
    ("pairs((G, 'b'))", ValueError, "grads_and_vars names no parameter, got 'b'", "'enc/b'"),
    ("pairs((G, 0))", TypeError, "grads_and_vars must be the path of a parameter", "got 0."),
    ("pairs((G, 'out'), (G, 'out'))", ValueError, "two gradients of ['out']."),
    ("pairs((None, 'out'))", ValueError, "no gradients for any of the parameters"),
    ("pairs((jnp.ones(3), 'out'))", ValueError, "gradient of ['out'] has shape (3,)"),
    ("applied(PARAMS, grads_and_vars=[(G, 'out')])",
     TypeError, "apply_gradients: takes grads or grads_and_vars, got both."),
    ("jax.jit(LIVE.update)(PARAMS, LIVE.init(PARAMS), PARAMS)", TypeError,
     "scale_by_learning_rate: learning_rate: the function", "jax.jit", "inject_hyperparams"),
    ("jax.jit(make_step(LIVE, loss_fn))(PARAMS, LIVE.init(PARAMS))",
     TypeError, "the function", "without arguments", "inject_hyperparams"),
    ("compat.keras.SGD(lambda: 'x').update(PARAMS, LIVE.init(PARAMS))",
     TypeError, "scale_by_learning_rate: learning_rate:", "a schedule's value"),
    ("to_config(LIVE)", TypeError, "learning_rate", "<lambda>"),
]  # fmt: skip
