"""Rows of optimizers that use curvature, look at sharpness, or take steps of a fixed norm."""

from typing import Any

import jax

from docs.site.from_pytorch.row import Drawn, Row, drawing
from tests.interop.recordings import STEPS, Recording, hessians, losses


def with_their_probes(recorded: Recording, t: int) -> Any:
    """Return a context whose probe of the matrix is the one that was drawn at update t."""
    drawn = recorded.arrays["aux/draws"].reshape(STEPS, -1)[t, :24].reshape(6, 4).T
    return drawing(jax.random, "normal", drawn)


_SPLUS: dict[str, Any] = {
    "theirs": "SPlus(lr, inverse_steps=1)",
    "ours": "gx.decoupled_weight_decay(gx.chain(gx.splus(lr, weight_decay=0.0, "
    "precondition_frequency=1), gx.scale(1 - lr / n * 0.01)), 0.01, learning_rate=lr / n)",
    "difference": 1e-12,
    "recorded": "SPlusSquare",
}

ROWS = [
    Row(
        "AdaHessian(lr)",
        "gx.adahessian(lr, eps=1e-16, hessian_diagonal_fn=given, spatial_averaging=False)",
        1e-12,
        "AdaHessian",
        "`given` are the recorded estimates; leave it out for estimates of its own. The authors "
        "average over the windows of kernels and have eps=1e-4, which are the "
        "defaults. With `update_period`, the correction there counts all steps, "
        "here those with an estimate",
        inputs=hessians,
    ),
    Row(
        **_SPLUS,
        notes="for matrices of n rows and n columns: they decay after the step there, with its "
        "rate; in `gx.splus(lr)`, in the step",
    ),
    Row(
        **{**_SPLUS, "difference": 1e-2},
        notes="what is averaged is the parameter before its decay there, and after it here",
        evaluated="aux/eval",
    ),
    Row(
        "AdaGO(groups)",
        "gx.adago(root=False, by_shape=True, eps=0.0, weight_dimension_numbers=kernels)",
        1e-12,
        "AdaGO",
        "it divides by V itself; the paper and `gx.adago` by its root. Decays are decoupled ones, "
        "with masks: those of matrices have `lr`, those of others `adamw_lr`; so in `AdaMuon`, "
        "`Muon` and `NorMuon`",
    ),
    Row(
        "GSAM(SGD(lr=0.05), rho)",
        "gx.gsam(gx.sgd(0.05), rho, opaque_mode=True)",
        1e-12,
        "GSAM",
        inputs=losses,
    ),
    Row(
        "WSAM(SGD, lr)",
        "gx.wsam(gx.sgd(lr), lr, opaque_mode=True)",
        1e-12,
        "WSAM",
        "`decouple=False` is None in the place of the second `lr`; `max_norm` is not here",
        inputs=losses,
    ),
    Row(
        "Kron(lr, balance_prob=0.0)",
        "gx.psgd_kron(lr)",
        1e-12,
        "Kron",
        "the one there fits a factor to every "
        "axis of every array, vectors included; here arrays are matrices, and vectors have AdamW. "
        "`smart_one_diag` is `one_diag`, and nothing for square matrices",
        drawn=Drawn("the probes of the matrix are those that were drawn there", with_their_probes),
        leaves=("matrix",),
    ),
    Row(
        "LookSAM(SGD, lr, k=k)",
        "gx.looksam(gx.sgd(lr), 0.1, 0.7, k, opaque_mode=True)",
        1e-6,
        "LookSAM",
        "for one array: there, each has norms and a projection of its own; here, as in the paper, "
        "those of the tree count. 1e-8 is added to a norm there. `use_gc` is not here",
        inputs=losses,
    ),
    Row(
        "SpectralSphere(lr)",
        "gx.spectral_sphere(lr, ns_coeffs=rounded, eps=0.0)",
        1e-12,
        "SpectralSphere",
        "the coefficients of the orthogonalization there have four digits, and no eps is added; "
        "`gx.spectral_sphere(lr)` differs by 5e-4",
    ),
]
