"""Scion."""

from typing import Any

from gradxform.base import Transform
from gradxform.errors import did_you_mean, shown
from gradxform.leaves.masks import label_by, ndim_at_least
from gradxform.optimizers.muon import muon_coefficients
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers
from gradxform.transforms.momentum import ema
from gradxform.transforms.muon import NS_COEFFS
from gradxform.transforms.orthogonal import orthogonalize_updates, scale_by_fans
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.transforms.scion import scale_by_lmo
from gradxform.types import DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition

# The paper's for a language model: 50 for hidden matrices, 3000 for the last layer.
RADII = {
    "spectral": 50.0,
    "convolution": 50.0,
    "sign": 3000.0,
    "inputs": 50.0,
    "outputs": 3000.0,
    "rms": 50.0,
}


@optimizer
def scion(
    learning_rate: ScalarOrSchedule,
    norms: StaticTree = None,
    radii: StaticTree = None,
    decay: float = 0.9,
    mu_dtype: DType = None,
    *,
    constrained: bool = False,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: Size = 5,
    eps: float = 1e-8,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """Scion: steps of a fixed size in the norm of each layer, also as a Frank-Wolfe method.

    Update rule, with m the average of the gradient and u the step of norm 1 along it, in the norm
    of the parameter:

        p <- p - learning_rate radius u
        p <- (1 - learning_rate) p - learning_rate radius u     (constrained)

    Constrained, no parameter leaves the ball of its radius, if it begins in it and the learning
    rate is at most 1. The norm "spectral" is for hidden matrices, "convolution" for kernels of
    convolutions, where u is the orthogonalized m times sqrt(columns / rows) and, with k x k places,
    times sqrt(outputs / inputs) / k^2. The rows of a kernel are its inputs at all places.
    `scale_by_lmo` has the other norms.

    Args:
      norms: the norm of every parameter, "spectral", "convolution", "sign", "inputs", "outputs" or
        "rms": labels as `label_by(("sign", path_matches("head")), ("convolution",
        ndim_at_least(4)), ("spectral", True))`, a tree of them (a prefix of the parameters will
        do), or a function of the parameters. By default, parameters of two dimensions have
        "spectral", the others "rms".
      radii: a dict from norms to radii, greater than 0. By default, and for norms that it leaves
        out, 3000 for "sign" and "outputs", 50 for the others.
      decay: of m, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's.
      constrained: whether to keep parameters in the balls of the radii.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      weight_dimension_numbers: as in `scale_by_muon`, for all parameters whose norm is not "rms".
        By default kernels have four dimensions: two of places, the inputs, the outputs. Of others,
        the last reduction axis has the inputs: `MuonDimensionNumbers((2, 3, 1), 0)` in PyTorch's
        order.

    See `orthogonalize_updates` and `scale_by_learning_rate` for the other arguments.

    Reference: Pethick et al., Training Deep Learning Models with Norm-Constrained LMOs, 2025,
    Algorithms 1 and 2.
    """
    numbers, sizes = weight_dimension_numbers, _radii(radii)

    def spectral(numbers: StaticTree, convolution: bool) -> Transform:
        return chain(
            orthogonalize_updates(
                ns_coeffs=muon_coefficients("scion", ns_coeffs, ns_steps),
                ns_steps=ns_steps,
                eps=eps,
                preconditioning=preconditioning,
                compute_dtype=compute_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_fans(numbers, convolution=convolution),
        )

    of_kernels = MuonDimensionNumbers((0, 1, 2), 3) if numbers is None else numbers
    steps: dict[str, Transform] = {
        "spectral": spectral(numbers, False),
        "convolution": spectral(of_kernels, True),
    }
    steps |= {norm: scale_by_lmo(norm, numbers) for norm in sizes if norm not in steps}
    # A decay of 1, times the learning rate, makes it the step of Frank and Wolfe.
    towards = (add_decayed_weights(1.0),) if constrained else ()
    rules = {
        norm: chain(
            ema(decay, False, mu_dtype),  # without a debiasing: every step has norm 1 anyway
            step,
            scale(sizes[norm]),
            *towards,
            scale_by_learning_rate(learning_rate),
        )
        for norm, step in steps.items()
    }
    if norms is None:
        norms = label_by(("spectral", ndim_at_least(2) & ~ndim_at_least(3)), ("rms", True))
    try:
        return partition(rules, norms)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"scion: norms: {str(error).removeprefix('partition: ')}") from None


def _radii(radii: Any) -> dict[str, float]:
    """Return the radius for every norm."""
    radii = {} if radii is None else radii
    if not isinstance(radii, dict):
        raise TypeError(
            "scion: radii must be a dict from norms to radii, such as {'spectral': 50.0}, got "
            f"{shown(radii)}."
        )
    for norm, radius in radii.items():
        if norm not in RADII:
            raise ValueError(
                f"scion: radii must be for norms, {', '.join(RADII)}, got one for {norm!r}."
                f"{did_you_mean(norm, RADII)}"
            )
        is_number = isinstance(radius, int | float) and not isinstance(radius, bool)
        if not (is_number and 0 < radius < float("inf")):
            raise ValueError(
                f"scion: the radius for {norm!r} must be a number greater than 0, got "
                f"{shown(radius)}."
            )
    return RADII | radii
