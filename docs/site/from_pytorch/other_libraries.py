"""Rows of timm, bitsandbytes and HeavyBall."""

from docs.site.from_pytorch.row import Row

TIMM = [
    Row(
        "Adopt(lr)",
        "gx.adopt(lr, clip_value_fn=lambda n: n**0.333)",
        1e-12,
        "timm.Adopt",
        "the bound is the cube root of the step there, the fourth root in the paper. The first "
        "step does not decay with `decoupled=True`: `lambda n: w * (n > 0)`",
    ),
    Row("AdaBelief(lr, rectify=False)", "gx.adabelief(lr)", None),
    Row("AdaBelief(lr)", "gx.adabelief(lr, threshold=5.0)", None),
    Row(
        "AdafactorBigVision(lr)",
        "gx.adafactor(lr)",
        None,
        notes="with momentum and another decay of its averages; see the arguments",
    ),
    Row("Adan(lr)", "gx.adan(lr, eps_root=0.0, change_weight=0.92)", None),
    Row("Kron(lr)", "gx.psgd_kron(lr)", None, notes="each draws its own probes"),
    Row(
        "Lamb(lr, always_adapt=True, max_grad_norm=None)",
        "gx.lamb(lr, weight_decay=0.01)",
        1e-12,
        "timm.Lamb",
        "`max_grad_norm` is `gx.clip_by_global_norm` before it, `trust_clip` is `max_ratio=1.0`; "
        "`decoupled_decay` is `gx.decoupled_weight_decay(..., decay_first=True)`",
    ),
    Row(
        "LaProp(lr)",
        "gx.laprop(lr)",
        1e-12,
        "timm.LaProp",
        "a decay follows the step there, as in pytorch_optimizer",
    ),
    Row(
        "Lars(lr, always_adapt=True)",
        "gx.lars(lr, momentum=0.0, eps=1e-8, sum_norms=True)",
        1e-12,
        "timm.Lars",
        "`trust_clip` (LARC) is `gx.lars(1.0, ..., max_ratio=lr)`. Without `always_adapt`, groups "
        "that do not decay have plain steps, and those of Adam in `Lamb`",
    ),
    Row("Lion(lr)", "gx.lion(lr, weight_decay=0.0)", None),
    Row(
        "Lookahead(base)",
        "gx.lookahead(tx, 6, 0.5)",
        None,
        notes="the slow parameters start at the sixth step there, which is the first one here to "
        "go back",
    ),
    Row("MADGRAD(lr)", "gx.madgrad(lr)", None, notes="without `decoupled_decay`"),
    Row(
        "Mars(lr)",
        "gx.chain(gx.masked(gx.scale_by_mars(0.9), gx.ndim_at_least(2)), gx.adam(lr, 0.9, 0.99))",
        1e-12,
        "timm.Mars",
        "vectors are not corrected there",
    ),
    Row(
        "Muon(lr)",
        "gx.muon(lr, quintic, debias=False, nesterov=False, consistent_rms=0.2)",
        None,
        notes="`quintic` are the five triples of the preset of this name there, and "
        '`gx.muon(lr, debias=False)` is `adjust_lr_fn="original", ns_coefficients="original", '
        "nesterov=True`. `AdaMuon` is `gx.adamuon`, and `nmuon` has NAdamW for vectors: "
        "`adam_nesterov=True`",
    ),
    Row(
        "NAdamW(lr)",
        "gx.nadamw(lr, weight_decay=1e-2)",
        None,
        notes="b1 m / (1 - b1^(t+1)) is Dozat's look ahead, and ours; timm divides it by 1 - b1^t. "
        "Its first step is 1.29 times as long, and later ones become the same",
    ),
    Row(
        "NvNovoGrad(lr)",
        "gx.novograd(lr, 0.95, 0.98, eps=1e-8)",
        None,
        notes="with `grad_averaging`, a rate of `(1 - b1) * lr`; `amsgrad` is not here",
    ),
    Row(
        "RMSpropTF(lr)",
        "gx.rmsprop(lr, eps=1e-10, initial_scale=1.0)",
        None,
        notes="eps is inside the root, and averages begin at 1, as in TensorFlow",
    ),
    Row("SGDW(lr, momentum=0.9)", "gx.sgdw(lr, momentum=0.9)", None),
    Row(
        "cadamw, clion, ...",
        "gx.cautious(tx, xi=0.0)",
        None,
        notes="`caution=True`, where 1 is not added to the number of entries that agree; "
        "`gx.cautious_adamw` and `gx.cautious_lion` are recipes",
    ),
    Row(
        "adamc, sgdc, ...",
        "gx.decoupled_weight_decay(tx, w, learning_rate=lambda n: schedule(n) ** 2 / lr)",
        None,
        notes="`corrected_weight_decay=True`",
    ),
]

# The factor between the step of bitsandbytes' LAMB before Adam's corrections and after them.
_UNCORRECTED = "(1 - 0.9 ** (n + 1)) / (1 - 0.999 ** (n + 1)) ** 0.5"

BITSANDBYTES = [
    Row(
        "Adam(lr)",
        "gx.adam(lr)",
        1e-4,
        "bitsandbytes.Adam",
        "Adam32bit and PagedAdam are the same, and so for all; but AdEMAMix32bit stops with an "
        "error. A decay is decoupled, as that of AdamW; `amsgrad` does nothing there",
    ),
    Row("AdamW(lr)", "gx.adamw(lr, weight_decay=1e-2)", 1e-4, "bitsandbytes.AdamW"),
    Row(
        "AdEMAMix(lr)",
        "gx.ademamix(lr, weight_decay=1e-2)",
        2e-4,
        "bitsandbytes.AdEMAMix",
        "`t_alpha` and `t_beta3` are schedules of `alpha` and `b3`",
    ),
    Row(
        "Adagrad(lr)",
        "gx.adagrad(lr, 0.0, eps=1e-10, eps_in_sqrt=False)",
        2e-5,
        "bitsandbytes.Adagrad",
        "a decay is L2, as for LARS, RMSprop and SGD",
    ),
    Row(
        "LAMB(lr)",
        "gx.chain(gx.scale_by_adam(), gx.scale_by_trust_ratio(max_ratio=1.0), "
        "gx.scale_by_learning_rate(lr))",
        1e-4,
        "bitsandbytes.LAMB.gpu",
        "not the paper's: Adam's step, no longer than the parameter (`max_unorm` is "
        "`trust_coefficient`); `gx.lamb(lr)` differs by 7. A decay is decoupled. Parameters of "
        "zeros never move there. Recorded from its code for devices that have no kernels of their "
        "own",
    ),
    Row(
        "LAMB(lr)",
        f"gx.chain(gx.scale_by_adam(), gx.scale_by_schedule(lambda n: {_UNCORRECTED}), "
        "gx.scale_by_trust_ratio(max_ratio=1.0), "
        f"gx.scale_by_schedule(lambda n: 1 / ({_UNCORRECTED})), gx.scale_by_learning_rate(lr))",
        2e-3,
        "bitsandbytes.LAMB",
        "on a CPU, where the length is that of the step before Adam's corrections",
    ),
    Row(
        "LARS(lr, momentum)",
        "gx.chain(gx.trace(momentum), gx.scale_by_trust_ratio(trust_coefficient=0.02, "
        "max_ratio=1.0), gx.scale_by_learning_rate(lr))",
        5e-4,
        "bitsandbytes.LARS",
        "not the paper's: a step of SGD, no longer than 0.02 (`max_unorm`) times the parameter. "
        "Parameters of zeros never move there. Otherwise as SGD",
    ),
    Row("Lion(lr)", "gx.lion(lr, weight_decay=0.0)", 1e-3, "bitsandbytes.Lion"),
    Row(
        "RMSprop(lr)",
        "gx.rmsprop(lr, decay=0.99, eps_in_sqrt=False)",
        1e-5,
        "bitsandbytes.RMSprop",
        "`momentum` does nothing there",
    ),
    Row(
        "SGD(lr, momentum)",
        "gx.sgd(lr, momentum)",
        2e-4,
        "bitsandbytes.SGD",
        "`dampening` and `nesterov` do nothing there",
    ),
    Row(
        "Adam8bit(lr)",
        'gx.quantize_state(gx.adam(lr), code="dynamic")',
        6e-2,
        "bitsandbytes.Adam8bit",
        "both have the dynamic code, with steps of its own each: what was recorded differs by 0.05 "
        "from `gx.adam(lr)` too. Without `code`, by 0.1. Blocks of 256 entries lie along the last "
        "axis here. See [Low precision](low_precision.md)",
    ),
    Row(
        "AdamW8bit(lr)",
        'gx.quantize_state(gx.adamw(lr, weight_decay=1e-2), code="dynamic")',
        6e-2,
        "bitsandbytes.AdamW8bit",
    ),
    Row(
        "AdEMAMix8bit(lr)",
        'gx.quantize_state(gx.ademamix(lr, weight_decay=1e-2), code="dynamic")',
        6e-2,
        "bitsandbytes.AdEMAMix8bit",
    ),
    Row(
        "Adagrad8bit(lr)",
        'gx.quantize_state(gx.adagrad(lr, 0.0, eps=1e-10, eps_in_sqrt=False), code="dynamic")',
        4e-2,
        "bitsandbytes.Adagrad8bit",
    ),
    Row(
        "LAMB8bit(lr)",
        'gx.quantize_state(gx.adam(lr), code="dynamic")',
        6e-2,
        "bitsandbytes.LAMB8bit",
        "what is in 8 bits has no trust ratio there: it is Adam8bit, to the bit",
    ),
    Row(
        "LARS8bit(lr, momentum)",
        'gx.quantize_state(gx.sgd(lr, momentum), code="dynamic")',
        4e-2,
        "bitsandbytes.LARS8bit",
        "likewise it is SGD8bit, to the bit",
    ),
    Row(
        "Lion8bit(lr)",
        'gx.quantize_state(gx.lion(lr, weight_decay=0.0), code="dynamic")',
        4e-1,
        "bitsandbytes.Lion8bit",
        "where averages are near 0, rounding decides on a sign, which is two steps",
    ),
    Row(
        "RMSprop8bit(lr)",
        'gx.quantize_state(gx.rmsprop(lr, decay=0.99, eps_in_sqrt=False), code="dynamic")',
        4e-2,
        "bitsandbytes.RMSprop8bit",
    ),
    Row(
        "SGD8bit(lr, momentum)",
        'gx.quantize_state(gx.sgd(lr, momentum), code="dynamic")',
        4e-2,
        "bitsandbytes.SGD8bit",
        "without `code`, by 0.09",
    ),
    Row(
        "PagedAdamW8bit(lr)",
        'gx.offload_state(gx.quantize_state(gx.adamw(lr, weight_decay=1e-2), code="dynamic"))',
        None,
        notes="computes what AdamW8bit does, with slots in the host's memory, which come in "
        "tiles; so for all that begin with Paged",
    ),
    Row(
        "GlobalOptimManager",
        "",
        None,
        notes="`gx.quantize_state(tx, which=...)` chooses parameters; small ones are not quantized",
    ),
]

_MUON = (
    "gx.chain(gx.masked(gx.sum_of(gx.identity(), gx.ema(0.9, debias=False)), matrices), "
    "gx.muon(lr, quintic, beta=0.0, nesterov=False, debias=False, adam_b2=0.99, "
    "muon_weight_dimension_numbers=kernels))"
)

HEAVYBALL = [
    Row(
        "AdamW(lr)",
        "gx.adamw(lr, b2=0.99, weight_decay=0.0)",
        1e-5,
        "heavyball.AdamW",
        "eps is the smallest root there, and added to it here; so for most classes",
    ),
    Row(
        "AdamW(lr, weight_decay=w)",
        "gx.adamw(lr, b2=0.99, weight_decay=weight_decay)",
        1e-5,
        "heavyball.AdamW.w",
    ),
    Row("AdEMAMix(lr)", "gx.ademamix(lr, alpha=2.0)", 1e-5, "heavyball.AdEMAMix"),
    Row(
        "ADOPT(lr)",
        "gx.adopt(lr, b2=0.99, eps=1e-8, use_clipping=False)",
        1e-4,
        "heavyball.ADOPT",
        "both averages have Adam's corrections there. Where the first gradient of an entry is 0, "
        "the second is divided by eps: the matrix and the vector moved by more than 1e5 there",
        leaves=("kernel", "scalar"),
    ),
    Row(
        "HyperBallAdamW(lr)",
        "gx.chain(gx.scale_by_rms(0.99, eps_in_sqrt=False, bias_correction=True), "
        "gx.masked(gx.scale_by_trust_ratio(), matrices), gx.scale_by_learning_rate(lr), "
        "gx.masked(gx.keep_matrix_norms(weight_dimension_numbers=kernels), matrices))",
        1e-6,
        "heavyball.HyperBallAdamW",
        "without a momentum, whatever its name says. Steps of matrices are lr times their norm, "
        "which they keep",
    ),
    Row("LaProp(lr)", "gx.laprop(lr, b2=0.99)", 1e-6, "heavyball.LaProp"),
    Row(
        "Muon(lr)",
        _MUON,
        1e-7,
        "heavyball.Muon",
        "`nesterov` is the sum of the gradient and its average. What is not a matrix takes that "
        "sum as its step there",
        leaves=("matrix", "kernel"),
    ),
    Row("MuonAdamW(lr)", _MUON, 1e-5, "heavyball.MuonAdamW"),
    Row("NAdam(lr)", "gx.nadam(lr, schedule_decay=0.004)", 1e-5, "heavyball.NAdam"),
    Row(
        "OrthoLaProp(lr)",
        "gx.chain(gx.orthograd(), gx.laprop(lr, b2=0.99))",
        1e-7,
        "heavyball.OrthoLaProp",
        "gradients are made orthogonal to their parameters, and matrices are not orthogonalized: "
        "of one entry, nothing is left. LaPropOrtho, SignLaProp and MuonLaProp are not compared",
        leaves=("matrix", "vector", "kernel"),
    ),
    Row(
        "PSGDKron(lr)",
        "gx.psgd_kron(lr)",
        None,
        notes="not compared: each draws its own probes. PSGDLRA, PSGDPRO, LATHER are not here",
    ),
    Row(
        "RMSprop(lr)",
        "gx.rmsprop(lr, decay=0.99, eps_in_sqrt=False, bias_correction=True)",
        1e-5,
        "heavyball.RMSprop",
    ),
    Row(
        "SAMWrapper(tx, ball=0.1)",
        "",
        None,
        notes="it climbs by 0.1 p^2 g, without a norm; `gx.asam` divides by the norm of p g",
    ),
    Row(
        "Scion(lr)",
        "gx.scion(lr)",
        None,
        notes="not compared: the first step there makes the parameters anew, orthogonal ones, and "
        "zeros for vectors",
    ),
    Row(
        "SFAdamW(lr)",
        "gx.schedule_free_adamw(lr, b2=0.99)",
        1e-4,
        "heavyball.SFAdamW",
        "MSAMLaProp is not here",
    ),
    Row("SGD(lr, beta=0.9)", "gx.sgd(lr, momentum=beta)", 1e-12, "heavyball.SGD"),
    Row(
        "SOAP(lr)",
        "gx.soap(lr)",
        None,
        notes="not compared: bases are renewed by a schedule of their own there, one for every "
        "axis of a kernel. SOAPNAdam, SOAPAdEMAMix and SOLP are not here: put `gx.soap` in their "
        "place",
    ),
    Row(
        "AdamW(lr, caution=True)",
        "gx.cautious(gx.adamw(lr, b2=0.99, weight_decay=0.0), xi=0.0)",
        1e-5,
        "heavyball.caution",
        "an option of every class there. A gradient of 0 counts as one with the sign + there, and "
        "as one that disagrees here: arrays with such entries differ by 0.2",
        leaves=("scalar",),
    ),
    Row(
        "AdamW(lr, mars=True)",
        'gx.chain(gx.scale_by_mars(0.9, 0.0025, max_norm=float("inf")), '
        "gx.adamw(lr, b2=0.99, weight_decay=0.0))",
        1e-1,
        "heavyball.mars",
        "an option of every class there, with the beta of the class. The first gradient is "
        "corrected there by one of zeros, which is the difference",
    ),
    Row(
        'storage_dtype="bfloat16"',
        'gx.state_dtype(tx, "bfloat16")',
        None,
        notes="not compared: what is stored is rounded. `ecc=` stores a slot in fewer bits: "
        "`gx.quantize_state`",
    ),
]
