"""Rows for `gradxform/transforms/psgd.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, matrix
from tests.catalogue.muon import NUMBERS, flat


def rule(*args, **kwargs):
    """The rule for all arrays of at least two dimensions."""
    tx = gx.scale_by_psgd_kron(*args, **kwargs, weight_dimension_numbers=NUMBERS(0, -1))
    return gx.masked(tx, gx.ndim_at_least(2))


TRANSFORMS: dict[str, Case] = {
    "scale_by_psgd_kron": Case(
        rule(),
        ref.only(matrix, ref.psgd_kron(columns=-1)),
        rtol=1e-4,
        rows=False,
    ),
    "scale_by_psgd_kron/deterministic": Case(
        rule(
            0.5,
            0.4,
            memory_save_mode="one_diag",
            momentum_into_precond_update=False,
            precond_lr=0.3,
            precond_init_scale=2.0,
            deterministic=True,
            key=3,
        ),
        ref.only(
            matrix,
            ref.psgd_kron(0.5, lambda t: t in (3, 5, 8), (1,), False, 0.3, 2.0, columns=-1, seed=3),
        ),
        rtol=1e-4,
        rows=False,
    ),
    "scale_by_psgd_kron/skew": Case(
        rule(max_skew_triangular=1.2),
        ref.only(matrix, ref.psgd_kron(skew=1.2, columns=-1)),
        rtol=1e-4,
        rows=False,
    ),
    "scale_by_psgd_kron/diagonal": Case(
        rule(memory_save_mode="all_diag"),
        ref.only(matrix, ref.psgd_kron(diagonal=(0, 1), columns=-1)),
        rtol=1e-4,
        rows=False,
        derivatives=None,  # JAX compares a maximum with what XLA may have rounded otherwise
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "psgd_kron": Case(
        gx.psgd_kron(0.1, weight_decay=0.3),
        ref.sequence(
            ref.only(flat, ref.psgd_kron()),
            ref.only(flat, ref.decay(0.3)),
            ref.only(lambda p: not flat(p), ADAM),
            ref.scale(-0.1),
        ),
        rtol=1e-4,
    ),
}


REFUSED = [
    ("psgd_kron(preconditioner_update_probability=1.5)",
     ValueError, "preconditioner_update_probability must be in [0, 1], got 1.5."),
    ("psgd_kron(memory_save_mode='one_daig')",
     ValueError, "memory_save_mode must be one of", "got 'one_daig'. Did you mean 'one_diag'?"),
    ("other_state(scale_by_psgd_kron(), (4, 8), made_for=(4, 4))",
     ValueError, "scale_by_psgd_kron: the state's mu of ['w'] has shape (1, 4, 4); a gradient of",
     "shape (4, 8) needs (1, 4, 8). Was this state made for other parameters, or"),
    ("scale_by_psgd_kron().init(WEIGHTS)",
     ValueError, "scale_by_psgd_kron: parameter ['k'] of shape (2, 3, 2) is not a matrix."),
    ("scale_by_psgd_kron().init(COMPLEX)",
     TypeError, "scale_by_psgd_kron: parameter ['w'] has dtype complex64, for which"),
]  # fmt: skip
