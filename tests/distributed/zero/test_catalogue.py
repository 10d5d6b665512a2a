"""Every row of the catalogue under `zero1`: it runs with the undivided numbers, or is refused.

Rules that look at single entries, or at rows, are tested in `test_zero.py`. Here is
what looks further, and the list of what is refused.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.shares.reach import sees_pieces
from gradxform.testing.promise import settings
from tests.catalogue import CASES
from tests.distributed.zero.test_zero import divided, local_grads, mesh_of, start
from tests.telling import with_new_parts

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

STEPS = 2

# The rows that are refused, by the part that the message names.
REFUSED = {
    "scale_by_lbfgs": (
        "scale_by_lbfgs",
        "scale_by_lbfgs/two pairs, unscaled",
        "lbfgs",
        "lbfgs/no search",
    ),
    "step_by_lbfgs": (
        "step_by_lbfgs",
        "step_by_lbfgs/two pairs",
        "step_by_lbfgs/tol",
        "lbfgs_steps",
    ),
    "step_by_lbfgsb": (
        "step_by_lbfgsb",
        "step_by_lbfgsb/from its bounds",
        "step_by_lbfgsb/two pairs, one bound",
        "step_by_lbfgsb/tol",
        "lbfgsb",
    ),
    "scale_by_backtracking_linesearch": (
        "scale_by_backtracking_linesearch",
        "scale_by_backtracking_linesearch/numbers",
    ),
    "add_noise": ("add_noise", "add_noise/complex", "noisy_sgd/seed"),
    "differentially_private_aggregate": (
        "differentially_private_aggregate",
        "differentially_private_aggregate/quiet",
        "dpsgd/momentum",
    ),
    "add_truncated_noise": ("add_truncated_noise",),
    "hutchinson_estimator_diag_hessian": ("hutchinson_estimator_diag_hessian",),
    "scale_by_adahessian": ("scale_by_adahessian", "scale_by_adahessian/rarely", "adahessian"),
    "estimate_diagonal": ("estimate_diagonal",),
    "scale_by_curvature_diagonal": (
        "scale_by_curvature_diagonal",
        "scale_by_curvature_diagonal/power",
    ),
    "scale_by_newton_cg": (
        "scale_by_newton_cg",
        "scale_by_newton_cg/numbers",
        "scale_by_newton_cg/tolerance",
        "scale_by_newton_cg/fixed",
        "scale_by_newton_cg/gauss_newton",
        "newton_cg",
        "newton_cg/numbers",
    ),
    "scale_by_sophia": (
        "scale_by_sophia",
        "scale_by_sophia/often",
        "scale_by_sophia/paper",
        "sophia",
        "sophia/paper",
    ),
    "scale_by_zoom_linesearch": (
        "scale_by_zoom_linesearch",
        "scale_by_zoom_linesearch/one, bounded",
        "scale_by_zoom_linesearch/steep",
        "scale_by_zoom_linesearch/tolerant",
        "scale_by_zoom_linesearch/approximate",
        "scale_by_zoom_linesearch/coarse",
    ),
    "model_average": ("model_average", "model_average/center"),
    "elastic_average": ("elastic_average", "elastic_average/sequential"),
    "agn": ("agn",),
    "outer": ("outer", "outer/delay"),
    "tower": ("tower",),
    "sync_replicas": ("sync_replicas",),
    "zero1": ("zero1",),
    "drop_stale": ("drop_stale",),
    "processed": ("processed",),
    "processed_per_element": ("processed_per_element",),
    "flatten": ("flatten", "flatten/norm"),
    "stacked": ("stacked", "stacked/axis", "stacked/mean"),
    "snapshot": ("snapshot",),
    "monitor": ("monitor",),
    "project": ("project", "project/each"),
    "tests:length_as_loss": ("skip_loss_spikes/deviations", "skip_loss_spikes/factor"),
    "MultiSteps": ("MultiSteps/skip",),
    "grokfast_ma": ("grokfast_ma", "grokfast_ma/no warmup"),
}
# Rows that see pieces, and refuse those of the parameters of the catalogue when they run.
OF_PIECES = {
    "scale_by_dion2": "Give groups=2, or cut the other side",
    "keep_matrix_norms/spectral": "the spectral norm needs whole matrices",
    # `sam` inside of `zero1` gives them pieces of the first gradients, too.
    "mix_gradients": "its first gradient has",
    "subtract_surrogate_gap": "its first gradient has",
    "reuse_sharpness": "its first gradient has",
}
NAMES = {row for rows in REFUSED.values() for row in rows}
RUNNING = [name for name in CASES if name not in NAMES]
FAR = [name for name in RUNNING if sees_pieces(CASES[name].tx) and name not in OF_PIECES]
# Parts that ask for sums over whole arrays.
SUMMED = ["clip_by_raw_norm", "zero_above_raw_norm", "raw_gradient_norms/tag", "mechanize"]


@pytest.mark.parametrize("part", REFUSED)
def test_a_row_is_refused_by_the_name_of_its_part(part):
    for row in REFUSED[part]:
        with pytest.raises(ValueError, match=rf"^zero1: {re.escape(part)} (looks|does)"):
            gd.zero1(CASES[row].tx, "x")


def test_every_other_row_is_accepted():
    for row in RUNNING:
        gd.zero1(CASES[row].tx, "x")


@functools.cache
def two_devices():
    devices = jax.devices()[:2]
    return jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=devices)


def check_on_two_devices(case):
    """Both take the parameters of the undivided transform: errors do not add up."""
    tx, tree = gd.zero1(case.tx, "x"), case.params()
    specs = tx.state_specs(tree, two_devices())
    smap = functools.partial(jax.shard_map, mesh=two_devices())
    state = jax.jit(smap(tx.init, in_specs=P(), out_specs=specs))(tree)
    params, inner = tree, case.tx.init(tree)

    def one(g, state, params):
        # Gradients that differ, with the mean g.
        weight = 0.5 + jax.lax.axis_index("x").astype(jnp.float32)
        local = jax.tree.map(lambda x: x * weight.astype(x.dtype), g)
        return tx.update(local, state, params, **case.extra_of(g, params))

    run = jax.jit(smap(one, in_specs=(P(), specs, P()), out_specs=(P(), specs)))
    for g in case.gradients(tree, STEPS):
        ours, state = run(g, state, params)
        theirs, inner = case.compiled(g, inner, params)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            b = np.asarray(b)
            atol = 3e-5 * max(np.max(np.abs(b), initial=0), 1e-12)
            np.testing.assert_allclose(np.asarray(a), b, rtol=3e-4, atol=atol)
        params = gx.apply_updates(params, theirs)
    assert jax.tree.structure(state.inner) == jax.tree.structure(inner)
    shapes = [[x.shape for x in jax.tree.leaves(tree)] for tree in (state.inner, inner)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", [*with_new_parts({name: CASES[name] for name in FAR}), *SUMMED])
def test_a_row_that_looks_far_has_the_numbers_of_the_undivided(name):
    with settings(CASES[name]):
        check_on_two_devices(CASES[name])


@pytest.mark.parametrize("name", OF_PIECES)
def test_a_row_that_refuses_pieces_says_what_to_do(name):
    with settings(CASES[name]), pytest.raises(ValueError, match=OF_PIECES[name]):
        check_on_two_devices(CASES[name])


# ------------------------------------------------------------------------------------- figures


def transformer(layers=2, d=64):
    shapes = {"embed": (16 * d, d)}
    for i in range(layers):
        square = {k: (d, d) for k in "qkvo"}
        shapes[f"layer{i}"] = {**square, "up": (d, 4 * d), "down": (4 * d, d), "norm": (d,)}
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape)


def program(tx, params, kind="8"):
    """The compiled step; and the bytes of the state that a device gets."""
    mesh, axes = mesh_of(kind), {"8": "x", "2x4": ("x", "y")}[kind]
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh)
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=specs), params)
    grads = jax.tree.map(lambda p: jax.ShapeDtypeStruct((8, *p.shape), p.dtype), params)

    def step(g, s, p):
        return tx.step(jax.tree.map(lambda x: x[0], g), s, p)

    run = smap(step, in_specs=(P(axes), specs, P()), out_specs=(P(), specs))
    compiled = jax.jit(run, donate_argnums=1).lower(grads, state, params).compile()
    held = compiled.memory_analysis().argument_size_in_bytes
    return compiled, held - 2 * gd.hlo.copy_bytes(params)


@pytest.mark.parametrize("kind", ["8", "2x4"])
@pytest.mark.parametrize("inner", [gx.lamb(0.1), gx.lars(0.1, 0.1), gx.novograd(0.1)], ids=str)
def test_norms_of_all_arrays_are_one_collective(inner, kind):
    params = transformer()
    compiled, held = program(gd.zero1(inner, {"8": "x", "2x4": ("x", "y")}[kind]), params, kind)
    counted = [c.kind for c in gd.hlo.collectives(compiled)]
    assert counted.count("all-reduce") == 1
    assert set(counted) == {"all-reduce", "reduce-scatter", "all-gather"}
    assert gd.hlo.wire_bytes(compiled).per_step <= 1.76 * gd.hlo.copy_bytes(params)
    whole = gd.hlo.copy_bytes(jax.eval_shape(inner.init, params))
    assert held <= 1.1 * whole / 8


ACCUMULATING = {
    "MultiSteps": lambda k: gx.MultiSteps(gx.lamb(0.1), k),
    "accumulate": lambda k: gx.accumulate(gx.lamb(0.1), k),
}


@pytest.mark.parametrize("name", ACCUMULATING)
def test_an_accumulator_inside_is_divided_and_its_steps_alone_are_gathered(name):
    params, k = transformer(), 4
    inner = ACCUMULATING[name](k)
    compiled, held = program(gd.zero1(inner, "x"), params)
    p = gd.hlo.copy_bytes(params)
    whole = gd.hlo.copy_bytes(jax.eval_shape(inner.init, params))
    assert held <= 1.1 * whole / 8
    # Every micro-batch is scattered, and one step in k is gathered.
    sent = gd.hlo.wire_bytes(compiled, period=k)
    assert sent.per_step <= 1.01 * 0.875 * (1 + 1 / k) * p


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_parameters_stay_until_the_accumulated_step(check_vma, form):
    params, grads = start(), local_grads(steps=2)
    tx = gd.zero1(gx.accumulate(gx.lamb(0.1), 2), "x")
    first = {k: g[:1] for k, g in grads.items()}
    kept, _ = divided(tx, "8", params, first, check_vma, form)
    moved, _ = divided(tx, "8", params, grads, check_vma, form)
    for k, p in params.items():
        np.testing.assert_array_equal(kept[k], p)
        assert np.any(np.asarray(moved[k]) != np.asarray(p)), k
