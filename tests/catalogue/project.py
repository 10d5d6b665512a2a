"""Rows for `gradxform/wrappers/project.py`, and refusals of projections."""

import jax.numpy as jnp

import gradxform as gx
from gradxform import projections
from tests import references as ref
from tests.catalogue.case import Case

# A power of two, which 16-bit updates do not round: the projection would enlarge the rounding.
DESCENT, OF_DESCENT = gx.scale(-0.125), ref.scale(-0.125)

WRAPPERS: dict[str, Case] = {
    "project": Case(
        gx.project(DESCENT, projections.projection_l2_ball, arguments={"scale": 2.0}),
        ref.project(OF_DESCENT, ref.l2_ball(2.0)),
        rows=False,
    ),
    "project/each": Case(
        gx.project(
            DESCENT,
            projections.projection_l1_ball,
            gx.ndim_at_least(2),
            arguments={"scale": 3.0},
            each=True,
        ),
        ref.project(OF_DESCENT, ref.l1_ball_of_matrices(3.0)),
        rows=False,
    ),
}

TREE = {"w": jnp.ones(3)}
POSITIVE = gx.project(gx.sgd(0.1), projections.projection_non_negative)


REFUSED = [
    ("project(scale(-0.1), projections.projection_l2_ball, arguments=[2.0])",
     TypeError, "project: arguments must be a dict from the names"),
    ("project(scale(-0.1), projections.projection_l2_ball, arguments={'radius': 2.0})",
     TypeError, "project: projection_l2_ball does not take", "'radius'"),
    ("project(scale(-0.1), projections.projection_box)",
     TypeError, "project: projection_box does not take", "'lower'"),
    ("project(scale(-0.1), 2.0)", TypeError, "project: projection must be a func"),
    ("one_step(project(scale(-0.1), lambda tree: {}), TREE)",
     ValueError, "project: <lambda> must return a tree of the structure and shapes"),
    ("one_step(project(scale(-0.1), lambda tree: {'w': tree['w'][:1]}), TREE)",
     ValueError, "project: <lambda> must return a tree of the structure and shapes"),
    ("project(ftrl(0.1), projections.projection_non_negative)",
     ValueError, "project: it moves the parameters, and step_by_ftrl"),
    ("chain(chain(POSITIVE, snapshot('n', global_norm)), sgd(0.1))", ValueError,
     "chain: scale_by_learning_rate changes the updates of project before it", "or inside."),
    ("named_chain(('a', masked(POSITIVE, True)), ('b', masked(DESCENT, True)))",
     ValueError, "named_chain: scale changes the updates of project before it"),
    ("chain(keep_params_nonnegative(), add_decayed_weights(0.1))", ValueError,
     "chain: add_decayed_weights changes the updates of keep_params_nonnegative before it"),
    ("sum_of(sgd(0.1), POSITIVE)",
     ValueError, "sum_of: it changes the updates of project in it", "put sum_of inside project."),
    ("cautious(variable_clipping(sgd(0.1), {'w': 0}, 1.0))",
     ValueError, "cautious: it changes the updates of variable_clipping in it"),
    ("decoupled_weight_decay(POSITIVE, 0.1)",
     ValueError, "decoupled_weight_decay: it changes the updates of project in it"),
    ("param_groups(POSITIVE, (param_group('w', 0.5),))",
     ValueError, "param_groups: it changes the updates of project in it"),
    ("schedule_free(POSITIVE, 0.1)",
     ValueError, "schedule_free: it changes the updates of project in it"),
    ("mechanize(overwriting_average(sgd(0.1), every=2))",
     ValueError, "mechanize: it changes the updates of overwriting_average in it"),
    ("projections.projection_l1_ball(TREE, -1.0)",
     ValueError, "projection_l1_ball: scale must be at least 0, got -1.0."),
    ("projections.projection_simplex(TREE, float('nan'))",
     ValueError, "projection_simplex: scale must be at least 0, got nan."),
    ("projections.projection_box(TREE, 1, 0)",
     ValueError, "projection_box: lower must be at most upper, got 1 and 0."),
    ("projections.projection_box(TREE, {'b': 0}, 1)",
     ValueError, "projection_box: lower must be a number, or have the structure"),
    ("projections.projection_hyperplane(TREE, {'b': jnp.ones(3)}, 1.0)",
     ValueError, "projection_hyperplane: a must have the structure of x"),
    ("projections.projection_l2_sphere({'w': jnp.ones(3, jnp.int32)})",
     TypeError, "projection_l2_sphere: parameter ['w'] has dtype int32"),
]  # fmt: skip
