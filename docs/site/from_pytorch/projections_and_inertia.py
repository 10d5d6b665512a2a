"""Rows of optimizers that project gradients, filter them, or look at how they turn."""

from docs.site.from_pytorch.row import Row

EPS_FIRST = "PyTorch's adds eps before it corrects v."

TURNS = "The paper has one cosine per array: without the arguments beside lr."

ROWS = [
    Row(
        "AdamP(lr)",
        "gx.chain(gx.remove_radial(gx.scale_by_tf_adam()), gx.scale_by_learning_rate(lr))",
        1e-12,
        "AdamP",
        "`adamp(lr)` is the authors', which adds eps after it corrects v. A decay is that of "
        "`gx.remove_radial`, with `fixed_decay` w / lr. `cautious=True` and `adanorm=True` are "
        "inside: `gx.cautious(gx.scale_by_tf_adam(), descent=False)` and "
        "`gx.scale_by_adanorm(eps_before_correction=True)`.",
    ),
    Row(
        "SGDP(lr)",
        "gx.sgdp(lr, 0.0)",
        1e-12,
        "SGDP",
        "`momentum`, `nesterov` and `weight_decay` are arguments of it. `weight_decay` is its "
        "argument, with `fixed_decay` w / lr; without `weight_decouple`, it "
        "does nothing there. With `dampening=d`, `gx.scale(1 - d)` after it, without `nesterov`.",
    ),
    Row(
        "GrokFastAdamW(lr)",
        "gx.grokfast_adamw(lr / 3, b2=0.99, eps=0.0)",
        1e-12,
        "GrokFast",
        "PyTorch's divides the rate by 1 + lamb, unless `normalize_lr=False`, and takes the larger "
        "of root and eps.",
    ),
    Row(
        "GrokFastAdamW(lr, grokfast_after_step=4)",
        "gx.chain(gx.sum_of(gx.identity(), gx.chain(first, gx.ema(0.98, debias=False), later)), "
        "gx.adam(lr / 3, b2=0.99, eps=0.0))",
        1e-12,
        "GrokFast.after",
        "PyTorch's average waits at the very first gradient; with `start=4` it begins at the first "
        "one that it filters, and steps differ by 2.",
    ),
    Row(
        "OrthoGrad(SGD(lr=0.05))",
        "gx.chain(gx.orthograd(), gx.sgd(0.05))",
        1e-12,
        "OrthoGrad",
    ),
    Row("PNM(lr)", "gx.pnm(lr)", 1e-12, "PNM"),
    Row(
        "AdaPNM(lr)",
        "gx.adapnm(lr, eps_root=1e-15, eps_before_correction=True)",
        1e-12,
        "AdaPNM",
        EPS_FIRST,
    ),
    Row("Adai(lr)", "gx.adai(lr)", 1e-12, "Adai"),
    Row(
        "Adai(lr, weight_decay)",
        "gx.chain(gx.add_decayed_weights(weight_decay), gx.adai(lr))",
        1e-12,
        "Adai.w",
        "With `weight_decouple=True`, `gx.adai(lr, weight_decay=w)`, and then "
        "`stable_weight_decay` changes nothing there.",
    ),
    Row(
        "Adai(lr, weight_decay, stable_weight_decay=True)",
        "gx.adai(lr, weight_decay=weight_decay)",
        5e-3,
        "Adai.stable",
        "The decay is in the average of gradients there, but not in the second moments; the paper "
        "decouples it, as the call here.",
    ),
    Row(
        "AdaNorm(lr)",
        "gx.adanorm(lr, b2=0.99, eps_root=1e-15, eps_before_correction=True)",
        1e-12,
        "AdaNorm",
        EPS_FIRST,
    ),
    Row("ScheduleFreeRAdam(lr)", "gx.schedule_free_radam(lr)", 3e-11, "ScheduleFreeRAdam"),
    Row(
        "Ranger(lr)",
        "gx.lookahead(gx.chain(gx.centralize(axis=-1),"
        " gx.scale_by_torch_radam(0.95, eps=1e-5), early,"
        " gx.scale_by_learning_rate(lr)), 6, 0.5)",
        4e-11,
        "Ranger",
        "`gx.ranger(lr)` but for `early`, which is -1 for 5 steps and then 1: PyTorch's takes the "
        "steps before RAdam divides uphill. A decay that is not decoupled stands behind "
        "`gx.centralize`.",
    ),
    Row(
        "Ranger21(num_iterations, lr, disable_lr_scheduler=True)",
        "gx.ranger21(lr, renormalize=True)",
        4e-8,
        "Ranger21",
        "Two decays are added here, multiplied there. Give `num_iterations` as `total_steps`, "
        "unless the "
        "schedule is disabled; other warm-ups are a schedule in the place of `lr`, as is "
        "`adam_debias`. `use_softplus=False` is `beta_softplus=None`.",
    ),
    Row(
        "Ranger21(num_iterations, lr, disable_lr_scheduler=True, normalize_gradients=False)",
        "gx.lookahead(gx.chain(gx.adaptive_grad_clip(0.01), gx.centralize(axis=-1), "
        "gx.scale_by_ranger21(), gx.add_norm_loss(1e-4), "
        "gx.scale_by_learning_rate(lr)), 5, 0.5)",
        1e-6,
        "Ranger21.plain",
    ),
    Row(
        "Amos(lr)",
        "gx.amos(lr)",
        1e-12,
        "Amos",
        "The scale of weights that the paper leaves to the user follows from their shape. "
        "`extra_l2`, which lets weights grow there, is not here.",
    ),
    Row("AdaTAM(lr)", "gx.adatam(lr, axis=-1)", 1e-12, "AdaTAM", TURNS),
    Row(
        "TAM(lr)",
        "gx.tam(lr, axis=-1, first_gradient=True)",
        1e-12,
        "TAM",
        f"{TURNS} Without `weight_decouple`, a decay does nothing there.",
    ),
]
