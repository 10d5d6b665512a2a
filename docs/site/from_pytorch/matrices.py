"""Rows of the optimizers of `pytorch_optimizer` that orthogonalize or precondition matrices."""

from docs.site.from_pytorch.row import Row
from tests.interop.recordings import logits

MATRICES = ("matrix", "kernel")
KERNEL_NOTE = "`kernels` are those above"

ROWS = [
    Row(
        "AdaMuon(groups)",
        "gx.adamuon(0.02, 0.9, signs=False, eps=0.0, adam_b2=0.999, adam_eps=1e-10, "
        "adam_learning_rate=3e-4, weight_dimension_numbers=kernels)",
        1e-9,
        "AdaMuon",
        "the paper orthogonalizes signs, `signs=True`; eps is 1e-10 there. With "
        "`use_adjusted_lr=False`, `rms` is 1 / sqrt(inputs) of each matrix. " + KERNEL_NOTE,
    ),
    Row(
        "Muon(groups)",
        "gx.muon(0.02, debias=False, eps=1e-10, adam_b2=0.95, adam_learning_rate=3e-4, "
        "muon_weight_dimension_numbers=kernels)",
        1e-9,
        "Muon",
        "the norm of a matrix is at least 1e-7 there. `use_adjusted_lr=True` is "
        "`consistent_rms=0.2`, `adamw_wd` is `adam_weight_decay`, and `ns_method` is "
        '`iteration="gram"`, in 16 bits there. The presets of `ns_coeffs` have other numbers '
        "there: give them as "
        f"`ns_coeffs`. {KERNEL_NOTE}",
    ),
    Row(
        "MuonClip(groups, weight_decay=0.1)",
        'gx.muonclip(0.02, {"attn": gx.query_key("matrix", "kernel", heads=-1)}, '
        "nesterov=False, eps=0.0, weight_dimension_numbers=kernels)",
        1e-12,
        "MuonClip",
        "the matrices: vectors do not decay there, here all parameters do. "
        "`use_adjusted_lr=False` is `rms=None`, and `qk_clip_alpha` is `query_share`",
        inputs=logits,
        leaves=MATRICES,
    ),
    Row(
        "NorMuon(groups)",
        "gx.normuon(0.02, rms=None, nesterov=True, eps=0.0, adam_eps=1e-10, "
        "adam_learning_rate=3e-4, weight_dimension_numbers=kernels)",
        1e-9,
        "NorMuon",
        "with `rms=None`, as in the authors' code, a matrix keeps the norm that orthogonalization "
        "gave it; in the paper its entries have the root mean square 0.2. With "
        "`use_adjusted_lr=True`, that is so there up to the errors of Newton-Schulz: `rms=0.2`, or "
        "exactly a rate that is 0.2 sqrt(inputs) times as large for each matrix. "
        '`update_scale="match_rms"` is `rms=0.2`. '
        f"{KERNEL_NOTE}",
    ),
    Row(
        "ScalableShampoo(lr)",
        "gx.distributed_shampoo(lr, block_size=512, start_preconditioning_step=25, "
        "preconditioning_compute_steps=1000)",
        None,
        notes="by default, matrices precondition from step 5 here and their roots are renewed in "
        "every step, with blocks of 1024. The same preconditioned steps, but their momentum: "
        "there it sums them from the "
        "first step on, here it goes on from the grafted steps before "
        "`start_preconditioning_step`",
    ),
    Row(
        "SCION(lr)",
        'gx.scion(lr, gx.label_by(("convolution", gx.ndim_at_least(4)), '
        '("spectral", gx.ndim_at_least(2)), ("rms", True)), '
        '{"convolution": 1.0, "spectral": 1.0, "rms": 1.0}, eps=0.0)',
        1e-5,
        "SCION",
        "radii are 1 there, or `scale`; a `momentum` of m is a `decay` of 1 - m, `constraint` is "
        '`constrained`, and a `norm_type` from 2 to 7 is "spectral", "convolution", "sign", '
        '"rms", "inputs" or "outputs". 1e-8 is added to the norm of a vector there: one whose '
        "entries are "
        "near 0 moves less, and a scalar is not compared",
        leaves=("matrix", "vector", "kernel"),
    ),
    Row(
        "Shampoo(lr)",
        "gx.shampoo(lr / n ** 0.5, epsilon=1e-6 / n)",
        1e-9,
        "Shampoo.square",
        "both are Algorithm 2 of the paper, and `gx.shampoo` divides the matrix of an axis by its "
        "length, as TensorFlow's does. So for matrices of n rows and n columns; for others, lr is "
        "divided by the product of the lengths to the power 1 / (2 k), for k axes, and eps, by the "
        "length of each axis, is not the same for all. The momentum there is that of what was "
        "preconditioned",
    ),
    Row(
        "SOAP(lr, precondition_frequency=1)",
        "gx.decoupled_weight_decay(gx.chain(gx.soap(lr, weight_decay=0.0, "
        "precondition_frequency=1, eps_before_correction=True), gx.scale(1 - 0.01 * lr)), "
        "lambda n: 0.01 * (n > 0), learning_rate=lr)",
        1e-12,
        "SOAP2d",
        "the decay follows the step there, but not the first one, as in the authors' code; "
        "`gx.soap(lr)` has it in the step. For square matrices: the first basis of others is "
        "arbitrary in part. There, kernels have a basis for every axis, vectors skip their first "
        "step, and all matrices are renewed in the same step. `merge_dims` and `precondition_1d` "
        "are not here",
    ),
]
