"""Rows for `gradxform/transforms/spectrum.py`, its kin, and their recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix
from tests.catalogue.normuon import for_matrices, masked

# Twelve turns enlarge a rounding, and roots of singular values more. With nesterov, the average is
# 1.5 times the gradient; without, its correction may round up.
FEW = {"rtol": 1e-3, "rows": False, "huge_ok": 1 / 8}
MOST = {**FEW, "rows": True}  # AdamW takes those of arrays that are not matrices
BEST = [
    (8.287212018145622, -23.59588651909882, 17.30038731253092),
    (4.1070591115422, -2.9478499167379097, 0.5448431082926601),
    (3.9486908534822946, -2.9089021159629453, 0.5518191394370127),
    (3.3184196573706015, -2.4884880243148753, 0.5100489401237204),
    (2.300652019954818, -1.668903984574751, 0.41880731195256765),
    (1.8913014077873982, -1.2679958271945875, 0.3768040894852486),
    (1.875001480869559, -1.2500016454321654, 0.3750001645635304),
]
# Amsel et al.: eight turns, with their safety factor in all but the last.
BEST = [*((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in BEST), (1.875, -1.25, 0.375)]


def spectrum(*args, **fields):
    """The rule on the matrices."""
    return masked(lambda **numbers: gx.scale_by_spectrum(*args, **fields, **numbers))


TRANSFORMS: dict[str, Case] = {
    "scale_by_spectrum": Case(
        spectrum(beta=0.5, eps=0.3),
        ref.only(matrix, ref.spectrum(ref.muon_spectrum(), 0.5, eps=0.3)),
        **FEW,
        names=("polynomial_spectrum",),
    ),
    "scale_by_spectrum/contra": Case(
        spectrum(
            gx.contra_spectrum(FALLING),
            nesterov=False,
            keep_norm="schatten",
            preconditioning="schatten",
        ),
        ref.only(
            matrix,
            ref.spectrum(ref.contra(falling), nesterov=False, norm="schatten", keep="schatten"),
        ),
        **FEW,
    ),
    "scale_by_spectrum/soft": Case(
        spectrum(to=gx.soft_spectrum(), share=FALLING, keep_norm="frobenius", debias=False),
        ref.only(
            matrix,
            ref.spectrum(
                ref.muon_spectrum(),
                debias=False,
                keep="frobenius",
                to=ref.soft(),
                share=falling,
            ),
        ),
        **FEW,
    ),
    "scale_by_spectrum/equal": Case(
        spectrum(equilibrate="both", eps=0.1),
        ref.only(matrix, ref.spectrum(ref.muon_spectrum(), eps=0.1, equal="both")),
        **FEW,
    ),
    "scale_by_spectrum/root": Case(
        spectrum(gx.power_spectrum(0.75, 0.01), nesterov=False),
        ref.only(
            matrix,
            ref.spectrum(ref.of_singular_values(lambda s: (s + 0.01) ** 0.75), nesterov=False),
        ),
        **FEW,
        derivatives=None,
        names=("power_spectrum",),
    ),
    "scale_by_spectrum/inverse root": Case(
        spectrum(gx.power_spectrum(-0.25, 0.1), nesterov=False),
        ref.only(
            matrix,
            ref.spectrum(ref.of_singular_values(lambda s: (s + 0.1) ** -0.25), nesterov=False),
        ),
        **FEW,
        derivatives=None,
    ),
    "scale_by_spectrum/clip": Case(
        spectrum(gx.clip_spectrum(0.5), nesterov=False),
        ref.only(
            matrix,
            ref.spectrum(ref.of_singular_values(lambda s: s.clip(max=0.5)), nesterov=False),
        ),
        **FEW,
        names=("clip_spectrum",),
    ),
    "scale_by_neuron_rms": Case(
        masked(gx.scale_by_neuron_rms, beta2=0.6, eps=0.5),
        ref.only(matrix, ref.neuron_rms(0.6, 0.5)),
        rows=False,
    ),
    "scale_by_neuron_rms/schatten": Case(
        masked(gx.scale_by_neuron_rms, norm="schatten"),
        ref.only(matrix, ref.neuron_rms(norm="schatten")),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "contra_muon": Case(
        gx.contra_muon(0.1, FALLING, soft=FALLING),
        for_matrices(
            ref.spectrum(
                ref.contra(falling),
                debias=False,
                norm="schatten",
                keep="schatten",
                to=ref.soft(),
                share=falling,
            ),
            ref.shape_factor(),
            ref.neuron_rms(norm="schatten"),
            ref.norm_floor(0.35),
            decay=0.0,
        ),
        **MOST,
        names=("contra_spectrum",),
    ),
    "soft_muon": Case(
        gx.soft_muon(0.1, ratio=0.0, weight_decay=0.3),
        for_matrices(
            ref.spectrum(
                ref.contra(0.0),
                debias=False,
                norm="schatten",
                keep="schatten",
                to=ref.soft(),
                share=0.8,
            ),
            ref.shape_factor(),
            ref.neuron_rms(norm="schatten"),
        ),
        **MOST,
        names=("soft_spectrum",),
    ),
    "muon_eq": Case(
        gx.muon_eq(0.1, weight_decay=0.3),
        for_matrices(
            ref.spectrum(ref.muon_spectrum(), debias=False, equal="outputs"),
            ref.shape_factor(0.2),
        ),
        **MOST,
    ),
    "polar_grad": Case(
        gx.polar_grad(0.1, weight_decay=0.3),
        for_matrices(
            ref.spectrum(ref.muon_spectrum(BEST), nesterov=False, debias=False, adaptive=True)
        ),
        **MOST,
    ),
}


REFUSED = [
    ("scale_by_spectrum(0.2)", TypeError,
     "scale_by_spectrum: spectrum must be a spectrum, such as polynomial_spectrum()", "got 0.2."),
    ("scale_by_spectrum(equilibrate='rows')",
     ValueError, "scale_by_spectrum: equilibrate must be one of", "'inputs'", "got 'rows'."),
    ("scale_by_spectrum(share=0.5)", ValueError,
     "scale_by_spectrum: share=0.5 does nothing without to."),
    ("scale_by_spectrum(to=gx.soft_spectrum(), share=2.0)", ValueError,
     "scale_by_spectrum: share must be in [0, 1], got 2.0."),
    ("contra_muon(0.1, soft=-1.0)", ValueError, "contra_muon: soft must be in [0, 1], got -1.0."),
    ("scale_by_spectrum(keep_norm='schaten')", ValueError, "Did you mean 'schatten'?"),
    ("scale_by_neuron_rms(norm='fro')", ValueError, "scale_by_neuron_rms: norm must be one of"),
    ("polynomial_spectrum(((1.0, 2.0, 3.0),), 2)", ValueError,
     "polynomial_spectrum: turns must be 1, one for each row of coefficients, got 2."),
    ("polynomial_spectrum(turns=2, iterates=(1.0, 1.0))", ValueError,
     "polynomial_spectrum: iterates must be 3 weights, one more than turns, got 2."),
    ("polynomial_spectrum(turns=1, iterates=(1.0, 'x'))", TypeError,
     "polynomial_spectrum: iterates[1] must be a number or a schedule, got 'x'."),
    ("power_spectrum(0.3)",
     ValueError, "power_spectrum: exponent must be 0.25, 0.5 or 0.75, or one of them negative"),
    ("clip_spectrum(1.5)", ValueError, "clip_spectrum: limit must be in (0, 1), got 1.5."),
    ("muon_eq(0.1, ns_coeffs='dino')", ValueError, "muon_eq: ns_coeffs", "Did you mean 'dion'?"),
]  # fmt: skip
