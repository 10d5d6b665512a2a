"""Rows of optimizers that use curvature, look at sharpness, or take steps of a fixed norm."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import gradxform as gx
from docs.site.from_pytorch.row import Row
from tests.interop.recordings import STEPS, Recording, by_gradient, by_hessian, loss_of


def _given(updates: Any, state: Any, params: Any = None, *, hessian_diagonal: Any) -> Any:
    """Return a diagonal that is known as the estimate."""
    return hessian_diagonal, state


GIVEN = gx.GradientTransformationExtraArgs(lambda params: gx.EmptyState(), _given)


def _decayed_after(tx: Any, state: Any, params: Any, recorded: Recording, t: int) -> Any:
    """Take a step of SPlus without decay, and decay the result with the rate of a square matrix."""
    params, state = by_gradient(tx, state, params, recorded, t)
    rate = recorded.kwargs["lr"] * 2 / sum(params["square"].shape)
    return {"square": (1 - 0.01 * rate) * params["square"]}, state


def _by_loss(tx: Any, state: Any, params: Any, recorded: Recording, t: int) -> Any:
    """Take a step with the gradients of the loss, at the parameters and after the climb."""
    gradient = jax.grad(loss_of(recorded))
    extra = {"grad_fn": lambda p, i: gradient(p)}
    updates, state = tx.update(gradient(params), state, params, **extra)
    return gx.apply_updates(params, updates), state


def with_their_probes(tx: Any, state: Any, params: Any, recorded: Recording, t: int) -> Any:
    """Take a step with the probe of the matrix that was drawn; others follow it in each step."""
    drawn = recorded.arrays["aux/draws"].reshape(STEPS, -1)[t, :24].reshape(6, 4).T
    with (
        jax.disable_jit(),
        mock.patch.object(jax.random, "normal", lambda key, shape, dtype: jnp.asarray(drawn)),
    ):
        return by_gradient(tx, state, params, recorded, t)


_SPLUS: dict[str, Any] = {
    "theirs": "SPlus(lr, inverse_steps=1)",
    "ours": "gx.splus(lr, weight_decay=0.0, precondition_frequency=1)",
    "difference": 1e-12,
    "recorded": "SPlusSquare",
    "step": _decayed_after,
}

# The coefficients of "polar_express", as they stand there.
_ROUNDED = (
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
)

# Kernels of convolutions are matrices from all inputs of an output to it.
_MATRICES = {
    "matrix": gx.MuonDimensionNumbers(),
    "kernel": gx.MuonDimensionNumbers((0, 1, 2), 3),
    "vector": None,
    "scalar": None,
}

ROWS = [
    Row(
        "AdaHessian(lr)",
        "gx.adahessian(lr, eps=1e-16, hessian_diagonal_fn=given, spatial_averaging=False)",
        1e-12,
        "AdaHessian",
        "the authors average over the windows of kernels and have eps=1e-4, which are the "
        "defaults. With `update_period`, the correction there counts all steps, "
        "here those with an estimate",
        {"given": GIVEN},
        by_hessian,
        shown="`gx.adahessian(lr, eps=1e-16, spatial_averaging=False)`",
    ),
    Row(**_SPLUS, notes="it decays parameters after the step, `gx.splus` in the step"),
    Row(
        **_SPLUS,
        notes="what is evaluated: `gx.eval_params(state, params)`",
        compared="aux/eval",
        result=lambda params, state: gx.eval_params(state, params),
    ),
    Row(
        "AdaGO(groups)",
        "gx.adago(root=False, by_shape=True, eps=0.0, weight_dimension_numbers=numbers)",
        1e-12,
        "AdaGO",
        "it divides by V itself; the paper and `gx.adago` by its root. Decays are decoupled ones, "
        "with masks: those of matrices have `lr`, those of others `adamw_lr`; so in `AdaMuon`, "
        "`Muon` and `NorMuon`",
        {"numbers": _MATRICES},
    ),
    Row(
        "GSAM(base_optimizer=SGD(lr), rho_scheduler=constant)",
        "gx.gsam(gx.sgd(0.05), rho, opaque_mode=True)",
        1e-12,
        "GSAM",
        step=_by_loss,
    ),
    Row(
        "WSAM(SGD, lr)",
        "gx.wsam(gx.sgd(lr), lr, opaque_mode=True)",
        1e-12,
        "WSAM",
        "`decouple=False` is None in the place of the second `lr`; `max_norm` is not here",
        step=_by_loss,
    ),
    Row(
        "Kron(lr, balance_prob=0.0)",
        "gx.psgd_kron(lr)",
        1e-12,
        "Kron",
        "for a matrix, with the probes that were drawn there. The one there fits a factor to every "
        "axis of every array, vectors included; here arrays are matrices, and vectors have AdamW. "
        "`smart_one_diag` is `one_diag`, and nothing for square matrices",
        step=with_their_probes,
        leaves=("matrix",),
    ),
    Row(
        "LookSAM(SGD, lr, rho=0.1, k=k)",
        "gx.looksam(gx.sgd(lr), 0.1, 0.7, k, opaque_mode=True)",
        1e-6,
        "LookSAM",
        "for one array: there, each has norms and a projection of its own; here, as in the paper, "
        "those of the tree count. 1e-8 is added to a norm there. `use_gc` is not here",
        step=_by_loss,
    ),
    Row(
        "SpectralSphere(lr)",
        "gx.spectral_sphere(lr, ns_coeffs=rounded, eps=0.0)",
        1e-12,
        "SpectralSphere",
        "the coefficients of the orthogonalization there have four digits",
        {"rounded": _ROUNDED},
        shown="`gx.spectral_sphere(lr)`",
    ),
]
