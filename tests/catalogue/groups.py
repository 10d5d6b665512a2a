"""Rows for `gradxform/wrappers/param_groups/groups.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, Case, falling, one_step, params

ADAM_STEP = ref.Reference(
    ADAM.start, lambda g, s, p, t: (-0.1 * (r := ADAM.step(g, s, p, t))[0], r[1])
)
MOMENTUM = ref.Reference(
    ref.trace(0.9).start,
    lambda g, s, p, t: (-0.1 * (r := ref.trace(0.9).step(g, s, p, t))[0], r[1]),
)

WRAPPERS: dict[str, Case] = {
    "param_groups": Case(
        gx.param_groups(
            gx.adam(0.1),
            (
                gx.param_group("^b$", 0.5, 0.25),
                gx.param_group("^deep/", FALLING, inner=gx.sgd(0.1, 0.9)),
                gx.param_group("^s$", freeze=True),
            ),
            weight_decay=0.1,
            learning_rate=0.2,
        ),
        # The leaves: b, deep/k, s, w. A group with its own optimizer does not decay.
        ref.param_groups(
            [(ADAM_STEP, 0.5, 0.25), (MOMENTUM, falling, 0), None, (ADAM_STEP, 1, 1)], 0.1, 0.2
        ),
        tree=params(),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "param_groups/numbers": Case(
        gx.param_groups(
            gx.adam(0.1),
            [
                gx.param_group(gx.ndim_at_least(2), 2.0),
                gx.param_group({"b": True, "w": False, "s": False, "deep": False}, 0.5),
            ],
            weight_decay=0.1,
        ),
        # Without a learning rate here, the multiplier of the rate does not reach the decay.
        ref.param_groups([(ADAM_STEP, a, 1 / a) for a in (0.5, 2, 1, 2)], 0.1),
        tree=params(),
    ),
}

TREE = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def _groups(*rules, **fields):
    return one_step(gx.param_groups(gx.sgd(0.1), rules, **fields), TREE)


REFUSED = [
    ("param_group(None, 0.5)", TypeError, "param_group: which must be a mask", "None"),
    ("_groups(param_group(lambda params: None, 0.5))",
     TypeError, "param_groups: the mask's entry at the root must be True or False, got None."),
    ("_groups(param_group('kernel$', 0.5))",
     ValueError, "param_groups: path_matches('kernel$') matches none", "'w'", "optional=True"),
    ("_groups(param_group(ndim_at_least(3), 0.5))", ValueError,
     "param_groups: rule 0 (ndim_at_least(n=3)) selects no parameter of 2", "optional=True"),
    ("_groups(param_group('w', 0.5), param_group(ndim_at_least(2), 2.0))",
     ValueError, "param_groups: rule 0 ('w') and rule 1", "both select ['w']", "yields=True"),
    ("_groups(param_group('w', 0.5), param_group('^w$', 2.0, yields=True))",
     ValueError, "rule 1 ('^w$') selects no parameter that no earlier rule has"),
    ("_groups(param_group({'w': True, 'c': False}, 0.5))", ValueError, "param_groups", "['b']"),
    ("_groups(param_group('b', weight_decay=0.0))",
     ValueError, "param_groups: rule 0 ('b') multiplies a weight decay, but there is none"),
    ("_groups(learning_rate=0.1)",
     ValueError, "param_groups: learning_rate only multiplies the weight decay"),
    ("_groups(param_group('b'), weight_decay=-0.1)",
     ValueError, "param_groups: weight_decay must be at least 0, got -0.1."),
    ("_groups(('b', 0.5))", TypeError, "param_groups: rules must be", "rule 0 is ('b'"),
    ("param_groups(sgd(0.1), param_group('b'))", TypeError, "rules must be"),
    ("param_groups(sgd, ())", TypeError, "param_groups: inner", "call it"),
    ("_groups(param_group('b', inner=sgd(0.1), label='mine'), param_group('w', inner=sgd(0.1), "
     "label='mine'))",
     ValueError, "two groups with optimizers are labelled 'mine'"),
    ("param_groups(sgd(0.1), [param_group('b')], weight_decay=0.1).update(TREE, "
     "param_groups(sgd(0.1), [param_group('b')]).init(TREE))",
     ValueError, "param_groups: needs the parameters"),
    ("param_groups(sgd(0.1), [param_group('b', inner=sgd(1.0))]).update(TREE, "
     "param_groups(sgd(0.1), [param_group('b')]).init(TREE), TREE)",
     ValueError, "the groups with optimizers are ['b'], the state has []", "other rules"),
    ("param_groups(ftrl(0.1), [param_group('b', 0.5)])",
     ValueError, "param_groups: it moves the parameters, and step_by_ftrl", "would undo the move"),
    ("param_group('b(')", ValueError, "path_matches: pattern must be a regular"),
    ("param_group('b', -0.5)", ValueError, "param_group: learning_rate", "at least 0"),
    ("param_group('b', 0.5, freeze=True)", ValueError, "param_group: a frozen group does not move"),
    ("param_group('b', weight_decay=0.5, inner=sgd(0.1))",
     ValueError, "param_group: weight_decay multiplies the decay of param_groups"),
    ("param_group(ndim_at_least(2), inner=sgd(0.1))",
     ValueError, "param_group: a group with an optimizer of its own needs a label"),
    ("param_group('b', inner=0.1)", TypeError, "param_group: inner"),
    ("param_group(3)", TypeError, "param_group: the entries of which"),
]  # fmt: skip
