"""Rows for `gradxform/transforms/soap.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.muon import NUMBERS, flat

SOAP = ref.sequence(
    ref.only(flat, ref.soap()),
    ref.only(lambda p: not flat(p), ref.adam(0.95, 0.95, 1e-8)),
    ref.decay(0.01),
    ref.scale(-0.1),
)

TRANSFORMS: dict[str, Case] = {
    "scale_by_soap": Case(
        gx.masked(
            gx.scale_by_soap(
                0.9, 0.8, precondition_frequency=2, weight_dimension_numbers=NUMBERS(0, -1)
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.soap(0.9, 0.8, frequency=2, columns=-1)),
        rtol=1e-4,
        rows=False,
        derivatives=None,  # eigenvectors of equal eigenvalues have no derivative
    ),
    "scale_by_soap/eps first": Case(
        gx.masked(
            gx.scale_by_soap(
                eps=0.1,
                eps_before_correction=True,
                one_sided=True,
                weight_dimension_numbers=NUMBERS(0, -1),
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.soap(eps=0.1, eps_first=True, one_sided=True, columns=-1)),
        rtol=1e-4,
        rows=False,
    ),
    "scale_by_soap/one side": Case(
        gx.masked(
            gx.scale_by_soap(
                b1=0.9,
                shampoo_beta=0.5,
                eps=0.1,
                precondition_frequency=3,
                normalize_grads=True,
                one_sided=True,
                weight_dimension_numbers=NUMBERS(0, -1),
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(
            matrix,
            ref.soap(
                b1=0.9,
                shampoo_beta=0.5,
                eps=0.1,
                frequency=3,
                normalize=True,
                one_sided=True,
                columns=-1,
            ),
        ),
        rtol=1e-4,
        rows=False,
    ),
    "scale_by_soap/kl": Case(
        gx.masked(
            gx.scale_by_soap(
                0.9,
                0.8,
                precondition_frequency=2,
                kl_start=0.5,
                weight_dimension_numbers=NUMBERS(0, -1),
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.soap(0.9, 0.8, frequency=2, columns=-1, kl_start=0.5)),
        rtol=1e-4,
        rows=False,
        derivatives=None,
    ),
    "scale_by_soap/kl, one side": Case(
        gx.masked(
            gx.scale_by_soap(one_sided=True, kl_start=0.1, weight_dimension_numbers=NUMBERS(0, -1)),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.soap(one_sided=True, columns=-1, kl_start=0.1)),
        rtol=1e-4,
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "soap": Case(gx.soap(0.1), SOAP, rtol=1e-4),
}


REFUSED = [
    ("soap(precondition_frequency=0)",
     ValueError, "scale_by_soap: precondition_frequency must be at least 1, got 0."),
    ("soap(max_precond_dim=-1)",
     ValueError, "scale_by_soap: max_precond_dim must be at least 0, got -1."),
    ("scale_by_soap().init({'b': np.ones(3, np.float32)})", ValueError,
     "scale_by_soap: parameter ['b'] of shape (3,) is not a matrix. Give its weight_dim"),
    ("scale_by_soap().init(COMPLEX)", TypeError,
     "parameter ['w'] has dtype complex64, for which this rule is not defined. Optimize its"),
    ("one_step(scale_by_soap(), grads={'w': jnp.ones((2, 3), int)})", TypeError,
     "gradient of ['w'] has dtype int", "only floating gradients", "Leave it out with masked"),
    ("one_step(scale_by_soap(), grads={'w': jnp.ones((2, 2, 3))})",
     ValueError, "scale_by_soap: gradient of ['w'] has shape (2, 2, 3), the parameter has (2, 3)."),
    ("scale_by_soap(weight_dimension_numbers=NUMBERS(0, -1)).update({'k': jnp.ones((2, 4, 2))}, "
     "scale_by_soap(weight_dimension_numbers=NUMBERS(0, -1)).init({'k': WEIGHTS['k']}))",
     ValueError, "scale_by_soap: the state's mu of ['k'] has shape (3, ",
     "Was this state made for"),
]  # fmt: skip
