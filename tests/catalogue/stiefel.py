"""Rows for `gradxform/transforms/stiefel.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.muon import flat
from tests.catalogue.normuon import COARSE, masked
from tests.catalogue.orthogonal import NUMBERS

FEW = {"rtol": COARSE, "rows": False}


def _with_polar(*directions):
    """The recipe, with rules in place of its direction."""
    return ref.sequence(
        *(ref.only(flat, part) for part in (*directions, ref.polar_factors())),
        ref.only(lambda p: not flat(p), ref.adam(0.9, 0.95, 1e-8)),
        ref.only(lambda p: not flat(p), ref.decay(0.3)),
        ref.scale(-0.1),
        ref.only(flat, ref.kept_orthogonal()),
    )


TRANSFORMS: dict[str, Case] = {
    "project_to_tangent": Case(
        gx.chain(gx.masked(gx.project_to_tangent(NUMBERS), gx.ndim_at_least(2)), gx.scale(0.01)),
        ref.sequence(ref.only(matrix, ref.tangents()), ref.scale(0.01)),
        rows=False,
        huge_ok=1e-3,  # products with parameters that are not orthogonal
    ),
    "keep_orthogonal": Case(
        masked(gx.keep_orthogonal), ref.only(matrix, ref.kept_orthogonal()), **FEW
    ),
    "keep_orthogonal/coarse": Case(
        masked(gx.keep_orthogonal, ns_coeffs=(3.4445, -4.7750, 2.0315), ns_steps=5, eps=2.0),
        ref.only(matrix, ref.kept_orthogonal(lambda x: ref.newton_schulz(x, eps=2.0))),
        **FEW,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "spel": Case(
        gx.spel(0.1, 0.5, weight_decay=0.3),
        _with_polar(ref.ema(0.5, debias=False), ref.tangents()),
        **FEW,
        huge_ok=1e-3,
    ),
    "spel/plain": Case(
        gx.spel(0.1, 0.5, weight_decay=0.3, tangent=False),
        _with_polar(ref.ema(0.5, debias=False)),
        **FEW,
        huge_ok=1 / 8,  # XLA may add the average and the gradient before it halves them
    ),
}


REFUSED = [
    ("spel(0.1, ns_coeffs='polar')",
     ValueError, "spel: ns_coeffs must be numbers", "got 'polar'."),
    ("keep_orthogonal().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("project_to_tangent().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("one_step(chain(keep_orthogonal(), scale(-0.1)))",
     ValueError, "scale changes the updates of keep_orthogonal before it"),
]  # fmt: skip
