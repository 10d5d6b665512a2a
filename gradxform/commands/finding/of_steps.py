"""Compositions that change gradients or steps of an optimizer."""

from gradxform.commands.finding.composition import REFERENCE, Composition

ROWS = [
    Composition(
        ("MARS-Lion",),
        "Lion of gradients that MARS has corrected by their change.",
        "gx.mars(gx.lion(lr, b1=0.95, b2=0.95, weight_decay=w), b1=0.95)",
        "Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large Models, "
        "2024",
        "https://arxiv.org/abs/2411.10438",
        REFERENCE,
        "The paper's step is the sign of one average, of decay b1, so that both decays of Lion "
        "are the same here. `gx.mars_adamw` is MARS-AdamW.",
    ),
    Composition(
        ("Grokfast", "Grokfast-EMA", "Grokfast with any optimizer"),
        "Any optimizer, of gradients to which a multiple of their average is added.",
        "gx.chain(gx.grokfast_ema(0.98, 2.0), gx.lion(lr))",
        "Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024",
        "https://arxiv.org/abs/2405.20233",
        REFERENCE,
        "`gx.grokfast_adamw` is Grokfast-AdamW, and `gx.grokfast_ma` the filter of a window.",
    ),
    Composition(
        ("AdamW with gradient centralization", "AdamW with GC", "AdamGC", "AdamWGC", "SGDGC"),
        "AdamW of centralized gradients.",
        "gx.chain(gx.centralize(), gx.adamw(lr, weight_decay=w))",
        "Yong et al., Gradient Centralization: A New Optimization Technique for Deep Neural "
        "Networks, 2020",
        "https://arxiv.org/abs/2004.01461",
        REFERENCE,
        "The mean is over all axes but the last, which has the outputs in Flax. Before `gx.sgd`, "
        "it is SGD with GC.",
    ),
    Composition(
        ("AdamW with gradient clipping", "clipped AdamW", "AdamW with clip_grad_norm"),
        "AdamW of gradients that are scaled down together.",
        "gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(lr, weight_decay=w))",
        "Pascanu et al., On the difficulty of training Recurrent Neural Networks, 2013",
        "https://arxiv.org/abs/1211.5063",
        REFERENCE,
    ),
    Composition(
        ("normalized SGD with momentum", "NSGDM", "NSGD-M"),
        "Steps of one length along an average of the gradient.",
        'gx.chain(gx.ema(0.9, debias=False), gx.normalized_sgd(lr, norm_of="tree"))',
        "Cutkosky and Mehta, Momentum Improves Normalized SGD, 2020",
        "https://arxiv.org/abs/2002.03305",
        REFERENCE,
    ),
    Composition(
        ("SAM with AdamW", "SAM-AdamW", "AdamW with SAM"),
        "AdamW of the gradient at a worse place nearby.",
        "gx.sam(gx.adamw(lr, weight_decay=w), gx.chain(gx.normalize(), gx.sgd(0.05)))",
        "Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, 2020",
        "https://arxiv.org/abs/2010.01412",
        REFERENCE,
        "Every second call steps; `opaque_mode=True` does both in one call. `gx.gsam`, `gx.wsam` "
        "and `gx.looksam` are its kin.",
    ),
    Composition(
        ("ASAM with AdamW", "ASAM-AdamW", "Adaptive SAM"),
        "AdamW of the gradient at a worse place, near in the scale of each parameter.",
        "gx.asam(gx.adamw(lr, weight_decay=w), rho=0.5, eta=0.01)",
        "Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of "
        "Deep Neural Networks, 2021",
        "https://arxiv.org/abs/2102.11600",
    ),
    Composition(
        ("SAM with Muon", "SAM-Muon", "Muon with SAM"),
        "Muon of the gradient at a worse place nearby.",
        "gx.sam(gx.muon(lr, debias=False), gx.chain(gx.normalize(), gx.sgd(0.05)))",
        "Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, "
        "2020, around Muon",
        "https://arxiv.org/abs/2010.01412",
        REFERENCE,
        "The climb is SAM's, along the gradient, and not along an orthogonalized one.",
    ),
    Composition(
        ("K-FAC", "KFAC", "kfac_jax", "kfac-jax", "natural gradient"),
        "The natural gradient with Kronecker factors, which kfac_jax estimates, in a chain.",
        "gx.chain(preconditioner.as_gradient_transform(), gx.sgd(lr, momentum=0.9))",
        "Martens and Grosse, Optimizing Neural Networks with Kronecker-factored Approximate "
        "Curvature, 2015",
        "https://arxiv.org/abs/1503.05671",
        "the chain, with a curvature from elsewhere and a NumPy reference; not kfac_jax's numbers",
        "K-FAC must know the layers of the model, and is not here: kfac_jax has it. [Curvature]"
        "(../curvature.md#the-natural-gradient-k-fac-with-kfac_jax) shows the loop. Of what is "
        "here, `gx.soap` and `gx.shampoo` have factors of gradients, and `gx.newton_cg` products "
        "by a Gauss-Newton matrix.",
        needs="kfac_jax",
    ),
]
