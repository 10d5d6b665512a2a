"""Calls of `get_slots`, `set_slots` and what reads weights and checkpoints that must be refused."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.compat import keras, tf1

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
ADAM, SGD = keras.Adam(0.1), keras.SGD(0.1)
MOMENTS = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}


def _get(tx, names="keras", state=None):
    return gx.get_slots(tx, tx.init(PARAMS) if state is None else state, names)


def _set(slots, names="keras", tx=ADAM):
    return gx.set_slots(tx, tx.init(PARAMS), slots, names)


def _weights(tx=ADAM, **options):
    return keras.get_weights(tx, tx.init(PARAMS), PARAMS, **options)


def _load(weights, tx=ADAM, **options):
    return keras.set_weights(tx, PARAMS, weights, **options)


def _checkpoint(tx=None, without=(), changes=None, arrays_of=None, **options):
    tx = tx or tf1.Adam(0.1)
    saved = arrays_of or tx
    arrays = tf1.to_checkpoint(saved, saved.init(PARAMS), PARAMS)
    arrays = {k: x for k, x in arrays.items() if k not in without} | (changes or {})
    return tf1.from_checkpoint(tx, PARAMS, arrays, **options)


REFUSED = [
    ("_get(ADAM, 'tf2')", ValueError, "get_slots: names must be one of", "got 'tf2'", "'tf1'"),
    ("_get(ADAM, None)", ValueError, "get_slots: names must be one of", "got None"),
    ("_get(keras.Adam, state=())", TypeError, "get_slots: tx is", "call it"),
    ("_get(ADAM, state=SGD.init(PARAMS))", ValueError, "chain: 3 transforms but 2 states"),
    ("_get(ADAM, state=adam(0.1).init(PARAMS))", ValueError, "chain: 3 transforms but 2 states"),
    ("_get(scale_by_adam(), state=trace(0.9).init(PARAMS))",
     TypeError, "scale_by_adam: the state must be of kind ScaleByAdamState, got TraceState"),
    ("_set({'vv': MOMENTS})",
     ValueError, "set_slots: chain does not have a slot 'vv'", "'m', 'v'", "Did you mean 'v'"),
    ("_set({'mu': MOMENTS})", ValueError, "not have a slot 'mu' under the names 'keras'"),
    ("_set([MOMENTS])", TypeError, "set_slots: slots must be a dict by name"),
    ("_set({'m': {'w': MOMENTS['w']}})", ValueError, "set_slots: m lacks an array at ['b']."),
    ("_set({'m': MOMENTS | {'c': MOMENTS['b']}})",
     ValueError, "set_slots: m has an array at ['c'], the state none."),
    ("_set({'m': MOMENTS | {'w': np.ones((2, 3), np.float32)}})",
     ValueError, "set_slots: m at ['w'] has shape (2, 3), the state's has (3, 2)."),
    ("_set({'m': MOMENTS | {'b': np.ones(2, np.complex64)}})",
     TypeError, "set_slots: m at ['b'] has dtype complex64, the state's has float32."),
    ("_set({'m': MOMENTS | {'b': 'zeros'}})",
     TypeError, "set_slots: m at ['b'] must be an array of shape (2,), got 'zeros'."),
    ("_set({'iterations': -1})", ValueError, "iterations must be a whole number", "-1"),
    ("_set({'iterations': 1.5})", ValueError, "iterations must be a whole number", "1.5"),
    ("_set({'iterations': np.ones(2)})",
     ValueError, "set_slots: iterations must be a whole number, got an array of shape (2,)."),
    ("_set({'beta1_power': 0.5}, 'tf1', tf1.Adam(0.1))",
     ValueError, "set_slots: beta1_power is 0.5", "not a power of b1 0.9 of scale_by_tf_adam"),
    ("_set({'beta1_power': 0.9**16, 'beta2_power': 0.999**30}, 'tf1', tf1.Adam(0.1))",
     ValueError, "set_slots: beta1_power is that of 15 steps, and beta2_power of 29"),
    ("set_slots(tf1.RMSProp(0.1), tf1.RMSProp(0.1).init(PARAMS), {'moment': MOMENTS}, 'tf1')",
     ValueError, "not have a slot 'moment'", "Did you mean 'momentum'"),
    # weights of Keras
    ("_weights(version=1)", ValueError, "get_weights: version must be 2 or 3, got 1."),
    ("_weights(order='w')",
     ValueError, "get_weights: order must be a list of paths such as 'dense/kernel', got 'w'."),
    ("_weights(order=['w', 'bias'])",
     ValueError, "get_weights: order has 'bias', which is not a parameter."),
    ("_weights(order=['w'])", ValueError, "get_weights: order leaves out 'b'"),
    ("_weights(order=['w', 'b', 'w'])", ValueError, "get_weights: order names a parameter twice"),
    ("_weights(lion(0.1))", ValueError,
     "get_weights: chain has slots 'mu', which are those of none of Keras 2's optimizers"),
    ("_weights(sgd(0.1, 0.9))", ValueError,
     "get_weights: nothing in the state of chain counts the updates", "count_updates()"),
    ("_weights(masked(ADAM, {'w': True, 'b': False}))",
     ValueError, "get_weights: the state has no m of ['b']."),
    ("_load(_weights(SGD))",
     ValueError,
     "set_weights: got a list of 1, expected 5: iterations, then m of each of 2 parameters, "
     "then v of each of 2 parameters. Was"),
    ("_load([0, *[[1.0, [2.0]]] * 4])",
     ValueError, "set_weights: weights[1], the m of ['b'], must be an array of numbers, got "),
    ("_load([None, *_weights()[1:]])",
     ValueError, "set_weights: weights[0], the iterations, must be an array of numbers, got None."),
    ("_load(_weights(version=3))",
     ValueError, "set_weights: got a list of 6, expected 5: ", "Keras 3 (version=3)"),
    ("_load(_weights(order=['w', 'b']))", ValueError,
     "set_weights: weights[1], the m of ['b'], must have shape (2,), got (3, 2).", "order="),
    ("_load(_weights(keras.Adam(0.2), version=3), version=3)", ValueError,
     "set_weights: the learning rate in the list is 0.2, that of chain is 0.1", "inject_"),
    ("_load('weights.npy')",
     ValueError, "set_weights: weights must be a list of arrays, got 'weights.npy'."),
    # checkpoints of TensorFlow 1
    ("_checkpoint(without=['w'])",
     ValueError, "from_checkpoint: the checkpoint lacks the variable 'w'", "'b/Adam_1'"),
    ("_checkpoint(without=['w/Adam_1'])",
     ValueError, "the checkpoint lacks the variable 'w/Adam_1', the slot 'v' of 'w'", "name="),
    ("_checkpoint(without=['beta2_power'])",
     ValueError, "the checkpoint lacks 'beta2_power', which chain needs"),
    ("_checkpoint(changes={'w': np.ones((2, 2))})",
     ValueError, "from_checkpoint: 'w' has shape (2, 2), the parameter (3, 2)."),
    ("_checkpoint(changes={'b/Adam': np.ones(3)})",
     ValueError, "from_checkpoint: 'b/Adam' has shape (3,), the slot 'm' (2,)."),
    ("_checkpoint(name='Adam_3')", ValueError, "the checkpoint lacks the variable 'b/Adam_3'"),
    ("_checkpoint(name='')",
     ValueError, "from_checkpoint: name must be the last part of a variable's name, got ''"),
    ("tf1.Adam(name='')", ValueError, "Adam: name must be the last part", "got ''"),
    ("tf1.Ftrl(0.1, accum_name=3)", TypeError, "Ftrl: accum_name must be a string, got 3."),
    ("_checkpoint(tf1.Adam(0.1, name='Mine'), arrays_of=tf1.Adam(0.1))", ValueError,
     "from_checkpoint: the checkpoint lacks the variable 'b/Mine', the slot 'm'", "name="),
    ("_checkpoint(chain(tf1.Adam(name='A'), tf1.RMSProp(0.1, name='B')))",
     ValueError, "to_checkpoint: parts of chain have different names of variables, 'A' and 'B'"),
    ("_checkpoint(chain(tf1.RMSProp(0.1), tf1.Adam(name='A')))", ValueError,
     "parts of chain have different names of variables, 'RMSProp' and 'A'", "variable_names"),
    ("tf1.from_checkpoint(tf1.Adam(0.1), PARAMS, [np.ones(2)])",
     TypeError, "from_checkpoint: arrays must be a dict by the names of variables"),
    ("tf1.from_checkpoint(tf1.Momentum(0.1, 0.9), {'w': jnp.ones(2)}, {k: np.ones(2) for k in "
     "('w', 'w/A', 'w/B')})",
     ValueError, "from_checkpoint: the slots of several optimizers fit: 'A', 'B'.", "name="),
    ("_set({'count': -1}, 'gradxform', adam(0.1))",
     ValueError, "set_slots: count must be a whole number of at least 0, got -1."),
]  # fmt: skip
