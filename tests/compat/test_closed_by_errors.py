"""What the documentation says ends in an error, row by row of its table, with the class of it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, keras3, returnn, tf1, tf_contrib
from gradxform.sparse import RowSparse
from tests.environment import ROOT

PARAMS = {"w": jnp.ones((4, 2))}
SGD = tf1.GradientDescent(0.1)
ROWS = RowSparse(jnp.array([1]), jnp.ones((1, 2)), 4)
DECAY = keras.schedules.ExponentialDecay(0.1, 10, 0.5)


def loss_fn(params):
    return jnp.sum(params["w"] ** 2)


def set_after(opt, name, value):
    opt.apply_gradients(PARAMS, PARAMS)
    setattr(opt, name, value)


def jitted_update(tx):
    return jax.jit(tx.update)(PARAMS, tx.init(PARAMS), PARAMS)


def subclass(base, method):
    return type("Mine", (base,), {method: lambda self: None})


CASES = {
    "`opt.minimize(loss)` of a number": lambda: gx.Optimizer(SGD).minimize(1.0, PARAMS),
    "`opt.minimize(lambda: loss)`": lambda: gx.Optimizer(SGD).minimize(lambda: 1.0, PARAMS),
    "`opt.apply_gradients([(variable, gradient)])`": lambda: gx.Optimizer(SGD).apply_gradients(
        [("w", PARAMS["w"])], PARAMS
    ),
    "`opt.apply_gradients` where no gradient is there": lambda: gx.Optimizer(SGD).apply_gradients(
        {"w": None}, PARAMS
    ),
    "`opt.get_gradients(loss, params)` of a variable that the loss does not use": lambda: (
        gx.Optimizer(SGD).get_gradients(lambda p: 0.0 * jnp.ones(()), PARAMS)
    ),
    "`opt.minimize` of an integer variable": lambda: gx.Optimizer(SGD).minimize(
        lambda p: jnp.sum(p["w"] * 1.0), {"w": jnp.ones(2, jnp.int32)}
    ),
    "a constraint of a variable with `IndexedSlices`": lambda: gx.project(
        SGD, gx.projections.projection_l2_ball
    ).update({"w": ROWS}, gx.project(SGD, gx.projections.projection_l2_ball).init(PARAMS), PARAMS),
    "`Adam(beta_1=lambda: beta)` in a `tf.function`": lambda: jitted_update(
        keras.Adam(beta_1=lambda: 0.9)
    ),
    "`opt.iterations = n` after the first step": lambda: set_after(
        gx.Optimizer(SGD), "iterations", 1
    ),
    "`opt.apply_gradients` where the strategy does not allow it": lambda: jax.vmap(
        lambda params: gx.Optimizer(SGD).apply_gradients(params, params)
    )(PARAMS),
    "`opt.use_ema = True`": lambda: set_after(gx.Optimizer(keras3.SGD()), "use_ema", True),
    "`class Mine(tf.train.Optimizer)`": lambda: subclass(gx.Optimizer, "_apply_dense"),
    "`class Mine(keras.optimizers.Optimizer)` with `_create_slots`, `update_step`, ...": lambda: (
        subclass(keras.Optimizer, "_create_slots")
    ),
    "`Nadam(schedule)` of TensorFlow 2": lambda: keras.Nadam(DECAY),
    "`AdagradDAOptimizer(schedule, global_step=0)`": lambda: tf1.AdagradDA(DECAY, 0),
    "`SyncReplicasOptimizer(...).get_init_tokens_op(num_tokens=1)`": lambda: tf1.SyncReplicas(
        SGD, 1, num_tokens=1
    ),
    "`MovingAverageOptimizer(opt, sequential_update=False)`": lambda: tf_contrib.MovingAverage(
        SGD, sequential_update=False
    ),
    '`TowerOptimizer` with `loss_reduction="none"`': lambda: tf_contrib.Tower(SGD, "none"),
    "`opt.avoid_updating_slots()` of another than `RegAdagrad`": lambda: (
        gx.Optimizer(SGD).avoid_updating_slots().__enter__()
    ),
    "`LossScaleOptimizer(opt, False, 1024)`": lambda: keras.LossScaleOptimizer(SGD, False, 1024),
    "`clipnorm` or another part before a `LossScaleOptimizer`": lambda: gx.chain(
        gx.clip(1.0), keras.LossScaleOptimizer(SGD)
    ),
    "`MultiOptimizer(function)`": lambda: keras3.MultiOptimizer(lambda variable: SGD),
    "`BaseCustomOptimizer(rate)` of RETURNN": lambda: returnn.BaseCustom(0.1),
}


def rows():
    """The rows of the table: what somebody wrote, the class of the error, and the reason."""
    text = (ROOT / "docs" / "doors.md").read_text("utf-8")
    section = text.split("## What ends in an error\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in re.split(r" \| ", line.strip("| "))] for line in lines]


def test_the_table_has_all_of_them():
    assert [row[0] for row in rows()] == list(CASES)
    assert all(len(row) == 3 and row[2] for row in rows())


def test_every_table_of_what_differs_gives_a_reason_for_each_row():
    text = (ROOT / "docs" / "doors.md").read_text("utf-8")
    tables = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            tables[-1].append(re.split(r" \| ", line.strip("| ")))
        elif tables[-1]:
            tables.append([])
    reasoned = [t for t in tables if t and t[0][-1].startswith("Why")]
    assert len(reasoned) == 4  # calls that differ, errors, Keras 3, the originals
    for head, _, *body in reasoned:
        assert all(len(row) == len(head) and row[-1].strip() for row in body), head


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_it_ends_in_an_error_of_this_class(row):
    wrote, kind, _ = row
    with pytest.raises(Exception) as info:
        CASES[wrote]()
    kinds = {"AttributeError", "RuntimeError", "TypeError", "ValueError", "NotImplementedError"}
    names = kinds & {x.__name__ for x in type(info.value).__mro__}
    assert kind.strip("`") in names, info.value
    assert not isinstance(info.value, jax.errors.JAXTypeError)
    assert len(str(info.value)) > 40 and np.size(str(info.value).split()) > 6
