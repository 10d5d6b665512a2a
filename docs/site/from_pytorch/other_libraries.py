"""Rows of timm, bitsandbytes and HeavyBall."""

from docs.site.from_pytorch.row import Row

# The preset of timm that its Muon has by default.
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)

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
        names={"quintic": QUINTIC},
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

BITSANDBYTES = [
    Row(
        "Adam8bit(lr)",
        "gx.quantize_state(gx.adam(lr))",
        None,
        notes="so for all: AdEMAMix8bit, AdamW8bit, Adagrad8bit, LAMB8bit, LARS8bit, Lion8bit, "
        "RMSprop8bit, SGD8bit. Codes and blocks are ours: see [Low "
        "precision](low_precision.md)",
    ),
    Row("Adam32bit(lr)", "gx.adam(lr)", None, notes="so for all that end in 32bit"),
    Row(
        "PagedAdamW8bit(lr)",
        "gx.offload_state(gx.quantize_state(gx.adamw(lr, weight_decay=1e-2)))",
        None,
        notes="slots in the host's memory, which come in tiles; so for all that begin with Paged",
    ),
    Row(
        "GlobalOptimManager",
        "",
        None,
        notes="`gx.quantize_state(tx, which=...)` chooses parameters; small ones are not quantized",
    ),
]

HEAVYBALL = [
    Row("AdamW(lr)", "gx.adamw(lr, b2=0.99, weight_decay=0.0)", None),
    Row("AdEMAMix(lr)", "gx.ademamix(lr, alpha=2.0)", None),
    Row("ADOPT(lr)", "gx.adopt(lr)", None),
    Row(
        "HyperBallAdamW(lr)",
        "gx.chain(gx.adamw(lr, weight_decay=0.0), gx.keep_matrix_norms())",
        None,
        notes="matrices keep their norms",
    ),
    Row("LaProp(lr)", "gx.laprop(lr)", None),
    Row("Muon(lr)", "gx.muon(lr, debias=False)", None),
    Row(
        "MuonAdamW(lr)",
        "gx.muon(lr, debias=False)",
        None,
        notes="AdamW for what is not a matrix, as everywhere here",
    ),
    Row("NAdam(lr)", "gx.nadam(lr, schedule_decay=0.004)", None),
    Row(
        "OrthoLaProp(lr)",
        "gx.chain(gx.scale_by_laprop(), gx.orthogonalize_updates(), gx.scale_by_learning_rate(lr))",
        None,
        notes="of matrices; LaPropOrtho, SignLaProp and MuonLaProp are such chains too, in another "
        "order",
    ),
    Row("PSGDKron(lr)", "gx.psgd_kron(lr)", None, notes="PSGDLRA, PSGDPRO, LATHER are not here"),
    Row("RMSprop(lr)", "gx.rmsprop(lr, bias_correction=True)", None),
    Row("SAMWrapper(tx, ball=0.1)", "gx.sam(tx, gx.chain(gx.normalize(), gx.sgd(0.1)))", None),
    Row("Scion(lr)", "gx.scion(lr)", None),
    Row("SFAdamW(lr)", "gx.schedule_free_adamw(lr)", None, notes="MSAMLaProp is not here"),
    Row("SGD(lr, beta=0.9)", "gx.sgd(lr, momentum=0.9)", None),
    Row(
        "SOAP(lr)",
        "gx.soap(lr)",
        None,
        notes="SOAPNAdam, SOAPAdEMAMix and SOLP are not here: put `gx.soap` in their place",
    ),
    Row("caution=True", "gx.cautious(tx)", None, notes="an option of every class there"),
    Row("mars=True", "gx.mars(tx)", None, notes="an option of every class there"),
    Row(
        'storage_dtype="bfloat16"',
        'gx.state_dtype(tx, "bfloat16")',
        None,
        notes="`ecc=` stores a slot in fewer bits: `gx.quantize_state`",
    ),
]
