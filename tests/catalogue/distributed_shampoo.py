"""Rows for `gradxform/transforms/shampoo/distributed_shampoo.py` and its recipes."""

import math

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, matrix
from tests.catalogue.muon import NUMBERS, flat


def rule(*args, **kwargs):
    """The rule for all arrays of at least two dimensions."""
    numbers = NUMBERS(0, -1)
    tx = gx.scale_by_distributed_shampoo(*args, **kwargs, weight_dimension_numbers=numbers)
    return gx.masked(tx, gx.ndim_at_least(2))


TRANSFORMS: dict[str, Case] = {
    "scale_by_distributed_shampoo": Case(
        rule(2, 0.9, 1e-6, 0.1, 2, 2, 2, "rmsprop", inverse_root="eigh"),
        ref.only(
            matrix,
            ref.distributed_shampoo(2, 0.9, 1e-6, 0.1, 2, 2, 2, "rmsprop", columns=-1),
        ),
        rtol=1e-4,
        rows=False,
        derivatives=None,  # a root of a matrix of zeros has no derivative
    ),
    "scale_by_distributed_shampoo/products fail": Case(
        rule(4, start_preconditioning_step=0, matrix_epsilon=0.01, inverse_failure_threshold=0.0),
        ref.only(
            matrix,
            ref.distributed_shampoo(4, matrix_epsilon=0.01, start_step=0, columns=-1),
        ),
        rtol=1e-4,
        rows=False,
        derivatives=None,
    ),
    "scale_by_distributed_shampoo/newton": Case(
        rule(4, 0.9, 1e-6, 0.01, 0, 3, 1, "adam", 2, inverse_root="newton"),
        ref.only(
            matrix,
            ref.distributed_shampoo(4, 0.9, 1e-6, 0.01, 0, 3, 1, "adam", 2, columns=-1),
        ),
        rtol=2e-3,  # the largest eigenvalue is an estimate
        rows=False,
    ),
    "scale_by_distributed_shampoo/failed roots": Case(
        rule(
            4,
            start_preconditioning_step=0,
            graft_type="rmsprop",
            inverse_root="newton",
            inverse_failure_threshold=0.0,
        ),
        ref.only(
            matrix,
            ref.distributed_shampoo(
                4, start_step=0, graft="rmsprop", exponent=math.inf, columns=-1
            ),
        ),
        rows=False,
    ),
    "scale_by_distributed_shampoo/sums": Case(
        rule(3, 1.0, 0.5, 0.1, 1, graft_type="adagrad"),
        ref.only(
            matrix,
            ref.distributed_shampoo(3, 1.0, 0.5, 0.1, 1, graft="adagrad", columns=-1),
        ),
        rtol=1e-4,
        rows=False,
        derivatives=None,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "distributed_shampoo": Case(
        gx.distributed_shampoo(
            0.1,
            matrix_epsilon=0.1,
            weight_decay=0.3,
            start_preconditioning_step=2,
            moving_average_for_momentum=True,
        ),
        ref.sequence(
            ref.only(flat, ref.distributed_shampoo(matrix_epsilon=0.1, start_step=2)),
            ref.only(flat, ref.decay(0.3)),
            ref.only(flat, ref.scale(0.1)),
            ref.only(flat, ref.trace(0.9, True)),
            ref.only(lambda p: not flat(p), ADAM),
            ref.scale(-0.1),
        ),
        rtol=1e-4,
    ),
}


REFUSED = [
    ("distributed_shampoo(0.1, 0)",
     ValueError, "scale_by_distributed_shampoo: block_size must be at least 1, got 0."),
    ("distributed_shampoo(0.1, preconditioning_compute_steps=0)",
     ValueError, "preconditioning_compute_steps must be at least 1, got 0."),
    ("distributed_shampoo(0.1, graft_type='adagard')",
     ValueError, "graft_type must be one of", "got 'adagard'. Did you mean 'adagrad'?"),
    ("distributed_shampoo(0.1, beta2=1.0, graft_type='adam')",
     ValueError, "graft_type 'adam' needs a beta2 below 1, got 1.0. For sums use 'adagrad'."),
    ("other_state(scale_by_distributed_shampoo(8), (8, 16), scale_by_distributed_shampoo(4))",
     ValueError,
     "scale_by_distributed_shampoo: the state's left of ['w'] has shape (1, 8, 4, 4); a "
     "gradient of shape (8, 16) needs (1, 2, 8, 8). Was this state made for other parameters, "
     "or by another init?"),
    ("other_state(scale_by_distributed_shampoo(8), (8, 16), scale_by_distributed_shampoo(8, "
     "graft_type='rmsprop'))",
     ValueError,
     "scale_by_distributed_shampoo: the state has arrays in nu, which this transform does not "
     "keep. Was this state made by the same call?"),
    ("scale_by_distributed_shampoo().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix."),
    ("scale_by_distributed_shampoo().init(COMPLEX)",
     TypeError, "scale_by_distributed_shampoo: parameter ['w'] has dtype complex64, for which"),
]  # fmt: skip
