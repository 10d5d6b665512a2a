"""Compositions for matrices: Muon, SOAP and what holds or changes their steps."""

from gradxform.commands.finding.composition import REFERENCE, Composition

HYPERBALL = (
    "Wen et al., Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball "
    "Optimization, 2026"
)
HYPERBALL_LINK = "https://arxiv.org/abs/2606.16899"
RECORDS = "https://github.com/KellerJordan/modded-nanogpt/tree/master/records/track_3_optimization"

ROWS = [
    Composition(
        ("MuonH", "Muon Hyperball", "Hyperball"),
        "Muon whose matrices keep the norms that they begin with: each step turns them by lr.",
        "gx.chain(gx.muon(adam_lr, debias=False), hyperball)",
        HYPERBALL,
        HYPERBALL_LINK,
        REFERENCE,
        "`gx.keep_matrix_norms` is the part that keeps norms. A weight decay would do nothing, and "
        "a matrix that begins as zeros stays so.",
    ),
    Composition(
        ("AdamH", "Adam Hyperball", "AdamW Hyperball", "Hyperball", "HyperballAdam"),
        "Adam whose matrices keep the norms that they begin with.",
        "gx.chain(gx.adam(adam_lr, b2=0.95), hyperball)",
        HYPERBALL,
        HYPERBALL_LINK,
        REFERENCE,
        "HeavyBall's `HyperBallAdamW` does not have a momentum: see [its "
        "row](from_pytorch_optimizer.md#heavyball), which was compared with a recording.",
    ),
    Composition(
        ("NorMuonH", "NorMuon Hyperball"),
        "NorMuon whose matrices keep the norms that they begin with.",
        "gx.chain(gx.normuon(adam_lr, rms=None, nesterov=True), hyperball)",
        "Modded-NanoGPT, result 8 of the optimization benchmark, 2026",
        RECORDS,
        REFERENCE,
        "The second moments are NorMuon's, one for each output. That result has them along the "
        "shorter side of a matrix, which is the same for layers with more outputs than inputs.",
    ),
    Composition(
        ("SOAP-H", "SOAP Hyperball"),
        "SOAP whose matrices keep the norms that they begin with.",
        "gx.chain(gx.soap(adam_lr, weight_decay=0.0, adam_weight_decay=0.0), hyperball)",
        "Modded-NanoGPT, result 27 of the optimization benchmark, 2026",
        RECORDS,
        REFERENCE,
        "The reference has SOAP's defaults. That result renews the bases at every step, which is "
        "`precondition_frequency=1`; its other numbers differ too.",
    ),
    Composition(
        ("KL-SOAP-H", "KL-SOAP Hyperball"),
        "KL-SOAP whose matrices keep the norms that they begin with.",
        "gx.chain(\n"
        "    gx.soap(adam_lr, weight_decay=0.0, adam_weight_decay=0.0, kl_start=0.1),\n"
        "    hyperball,\n"
        ")",
        "Modded-NanoGPT, result 19 of the optimization benchmark, 2026",
        RECORDS,
        REFERENCE,
        "That result has other numbers: b2 and `shampoo_beta` of 0.9, `precondition_frequency=1`.",
    ),
    Composition(
        ("KL-SOAP",),
        "SOAP whose two bases take each other into account.",
        "gx.soap(lr, kl_start=0.1)",
        "Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler "
        "Minimization, 2025",
        "https://arxiv.org/abs/2509.03378",
        REFERENCE,
        "An option of `gx.soap`; `gx.kl_shampoo` is KL-Shampoo.",
    ),
    Composition(
        ("SOAP-Muon", "SOAP Muon", "Muon-SOAP"),
        "SOAP's step, orthogonalized as Muon's.",
        "gx.partition(\n"
        "    {\n"
        '        "matrices": gx.chain(\n'
        "            gx.scale_by_soap(),\n"
        "            gx.orthogonalize_updates(),\n"
        "            gx.scale_by_shape(),\n"
        "            gx.scale_by_learning_rate(lr),\n"
        "        ),\n"
        '        "others": gx.adamw(adam_lr),\n'
        "    },\n"
        "    labels,\n"
        ")",
        "Vyas et al., Improving SOAP using Iterative Whitening and Muon, 2025",
        "https://nikhilvyas.github.io/SOAP_Muon.pdf",
        REFERENCE,
        "Of the authors' two codes, one gives each step the root mean square 1, and one changes "
        "the entries after the orthogonalization; here it has Muon's factor of the shape.",
    ),
    Composition(
        ("Muon²", "MuonSq", "Muon squared"),
        "Adam's step, orthogonalized as Muon's.",
        "gx.partition(\n"
        "    {\n"
        '        "matrices": gx.chain(\n'
        "            gx.scale_by_tf_adam(0.95, 0.95, 1e-10, nesterov=True),\n"
        "            gx.orthogonalize_updates(),\n"
        "            gx.scale_by_shape(),\n"
        "            gx.scale_by_learning_rate(lr),\n"
        "        ),\n"
        '        "others": gx.adamw(adam_lr),\n'
        "    },\n"
        "    labels,\n"
        ")",
        "Liu et al., Muon²: Boosting Muon via Adaptive Second-Moment Preconditioning, 2026",
        "https://arxiv.org/abs/2604.09967",
        REFERENCE,
        "The reference is the form of result 7 of [a benchmark](" + RECORDS + "), without "
        "corrections, whose size an orthogonalization does not see. The factorized form of the "
        "paper, Muon²-F, is not here.",
    ),
    Composition(
        ("MARS-M", "MARS-Muon", "MARS with Muon", "MARS-Moonlight"),
        "Muon of gradients that MARS has corrected by their change.",
        "gx.chain(\n"
        "    gx.masked(gx.scale_by_mars(), matrices),\n"
        "    gx.muon(\n"
        "        lr,\n"
        "        debias=False,\n"
        "        nesterov=False,\n"
        "        consistent_rms=0.2,\n"
        "        weight_decay=w,\n"
        "        adam_b2=0.95,\n"
        "        adam_weight_decay=w,\n"
        "    ),\n"
        ")",
        "Liu et al., MARS-M: When Variance Reduction Meets Matrices, 2025",
        "https://arxiv.org/abs/2510.21800",
        REFERENCE,
        "The approximate form, which needs one gradient for each step. The authors' code corrects "
        "the first gradient by one of zeros; here, as in the paper, it has nothing to correct it.",
    ),
    Composition(
        ("HybridMuon", "DeePMD Muon", "DeepSeek-V4 Muon"),
        "Muon by eight fast turns and two exact ones, with the root mean square of Adam's steps.",
        "gx.muon(\n"
        "    lr,\n"
        "    ((3.4445, -4.775, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2,\n"
        "    10,\n"
        "    debias=False,\n"
        "    consistent_rms=0.18,\n"
        "    adam_learning_rate=adam_lr,\n"
        ")",
        "DeePMD-kit, HybridMuon, 2026",
        "https://github.com/deepmodeling/deepmd-kit/blob/master/deepmd/pt/optimizer/hybrid_muon.py",
        REFERENCE,
        "DeePMD-kit has no factor of the nuclear norm; `gx.polar_grad` is Muon with it. Its "
        "Magma-lite, a factor from how well momentum and gradient agree, is not here: `gx.magma` "
        "is the paper's.",
    ),
    Composition(
        ("u/w floor", "Skylight", "update floor"),
        "Muon whose steps have at least a share of the norm of their matrix, before lr.",
        "gx.partition(\n"
        "    {\n"
        '        "matrices": gx.chain(\n'
        "            gx.scale_by_muon(debias=False),\n"
        "            gx.scale_by_shape(),\n"
        "            gx.floor_update_norm(0.35),\n"
        "            gx.scale_by_learning_rate(lr),\n"
        "        ),\n"
        '        "others": gx.adamw(adam_lr),\n'
        "    },\n"
        "    labels,\n"
        ")",
        "Modded-NanoGPT, result 9 of the optimization benchmark, 2026",
        RECORDS,
        REFERENCE,
        "It takes the place of weight decay. `gx.contra_muon` has it.",
    ),
    Composition(
        ("Moonlight Muon", "Muon with RMS matching", "Muon match_rms_adamw", "D-Muon", "Kimi Muon"),
        "Muon with weight decay and steps of AdamW's size, at AdamW's learning rate.",
        "gx.muon(\n"
        "    lr, debias=False, consistent_rms=0.2, weight_decay=w, adam_weight_decay=w\n"
        ")",
        "Liu et al., Muon is Scalable for LLM Training, 2025",
        "https://arxiv.org/abs/2502.16982",
        REFERENCE,
        "The distributed Muon of the same paper is this in `gd.shard_matrices`, see [On several "
        "devices](../distributed.md).",
    ),
    Composition(
        ("Muon with AdamW for embeddings", "Muon + AdamW", "hybrid Muon", "Muon with aux Adam"),
        "Muon for hidden matrices; embeddings, heads and vectors are for AdamW.",
        "gx.partition(\n"
        '    {"matrices": gx.muon(lr, debias=False), "others": gx.adamw(adam_lr)},\n'
        '    gx.label_by(("others", gx.path_matches("embed|head")), ("matrices", True)),\n'
        ")",
        "Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024",
        "https://kellerjordan.github.io/posts/muon/",
        REFERENCE,
        "`gx.muon` takes every parameter of two dimensions for a hidden matrix, and has AdamW for "
        "what has others. The pattern is for paths of parameters.",
    ),
    Composition(
        ("8-bit Muon", "Muon8bit", "quantized Muon"),
        "Muon with an average in 8 bits.",
        "gx.quantize_state(gx.muon(lr, debias=False, weight_decay=w))",
        "Gupta et al., Effective Quantization of Muon Optimizer States, 2025",
        "https://arxiv.org/abs/2509.23106",
        notes="Blocks of 256 entries, in a code of floating-point numbers; the paper has a linear "
        'code, and the dynamic one, `code="dynamic"`. The moments of its AdamW are in 8 bits too.',
    ),
    Composition(
        ("Cautious Muon", "C-Muon"),
        "Muon that leaves out the entries of its step that go uphill.",
        "gx.cautious(gx.muon(lr, debias=False))",
        "Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024",
        "https://arxiv.org/abs/2411.16085",
        REFERENCE,
        "This is the paper's algorithm around Muon. The authors' code now masks before it "
        "orthogonalizes: see the next one.",
    ),
    Composition(
        ("C-Muon, masked before", "C-Muon", "Cautious Muon"),
        "Muon of an average from which the entries that disagree with the gradient are left out.",
        "gx.partition(\n"
        "    {\n"
        '        "matrices": gx.chain(\n'
        "            gx.cautious(gx.ema(0.95, debias=False), descent=False),\n"
        "            gx.orthogonalize_updates(),\n"
        "            gx.scale_by_shape(),\n"
        "            gx.scale_by_learning_rate(lr),\n"
        "        ),\n"
        '        "others": gx.cautious_adamw(adam_lr),\n'
        "    },\n"
        "    labels,\n"
        ")",
        "C-Optim, `c_muon.py`, 2025",
        "https://github.com/kyleliang919/C-Optim",
        REFERENCE,
        "Without Nesterov's momentum, `nesterov=False` there. By default, the code there masks "
        "the look ahead by the average, which these parts do not do.",
    ),
    Composition(
        ("SF-NorMuon", "schedule-free NorMuon"),
        "NorMuon whose averaged parameters need no decay of the rate.",
        "gx.schedule_free(gx.normuon(lr, adam_b1=0.0), lr, weights_ahead=False)",
        "Apte et al., Anytime Training with Schedule-Free Spectral Optimization, 2026",
        "https://arxiv.org/abs/2605.23061",
        REFERENCE,
        "Evaluate `gx.eval_params(state, params)`. Without a weight decay: the paper's is of z, "
        "`weight_decay` here is of the parameters, which are y. With a decay they differ.",
    ),
    Composition(
        ("schedule-free Muon", "SF-Muon"),
        "Muon whose averaged parameters need no decay of the rate.",
        "gx.schedule_free(gx.muon(lr, debias=False, adam_b1=0.0), lr)",
        "Defazio et al., The Road Less Scheduled, 2024, around Muon",
        "https://arxiv.org/abs/2405.15682",
        REFERENCE,
        "Muon keeps its momentum, as in SF-NorMuon, and AdamW does without. Evaluate "
        "`gx.eval_params(state, params)`.",
    ),
    Composition(
        ("MuLoCo", "DiLoCo with Muon"),
        "DiLoCo whose workers step by Muon.",
        'gd.diloco(gx.muon(lr, debias=False, weight_decay=w), "replicas", period=30)',
        "Thérien et al., MuLoCo: Muon is a practical inner optimizer for DiLoCo, 2025",
        "https://arxiv.org/abs/2505.23725",
        notes="On an axis of replicas, see [On several devices](../distributed.md). The outer rate "
        "and momentum are DiLoCo's; the paper tunes them for each number of workers.",
    ),
]
