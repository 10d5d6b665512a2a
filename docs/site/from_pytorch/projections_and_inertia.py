"""Rows of optimizers that project gradients, filter them, or look at how they turn."""

import gradxform as gx
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
        "`weight_decay` is its argument, with `fixed_decay` w / lr; without `weight_decouple`, it "
        "does nothing there. With `dampening=d`, `gx.scale(1 - d)` after it, without `nesterov`.",
    ),
    Row(
        "GrokFastAdamW(lr)",
        "gx.grokfast_adamw(lr / 3, b2=0.99, eps=0.0)",
        1e-12,
        "GrokFast",
        "PyTorch's divides the rate by 1 + lamb, unless `normalize_lr=False`, and takes the larger "
        "of root and eps. With `grokfast_after_step`, its average begins at the very first "
        "gradient, with `start` at the first that it filters.",
    ),
    Row(
        "OrthoGrad(SGD(lr))",
        "gx.chain(gx.orthograd(), gx.sgd(lr))",
        1e-12,
        "OrthoGrad",
        names={"lr": 0.05},
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
        " gx.scale_by_radam(0.95, eps=1e-5, eps_before_correction=True), early,"
        " gx.scale_by_learning_rate(lr)), 6, 0.5)",
        4e-11,
        "Ranger",
        "`gx.ranger(lr)` but for `early`, which is -1 for 5 steps and then 1: PyTorch's takes the "
        "steps before RAdam divides uphill. A decay that is not decoupled stands behind "
        "`gx.centralize`.",
        names={"early": gx.scale_by_schedule(gx.join_schedules((-1.0, 1.0), (5,)))},
    ),
    Row(
        "Ranger21(num_iterations=n, lr=lr)",
        "gx.ranger21(lr, renormalize=True)",
        4e-8,
        "Ranger21",
        "Two decays are added here, multiplied there. Give `n` as `total_steps`, unless the "
        "schedule is disabled; other warm-ups are a schedule in the place of `lr`, as is "
        "`adam_debias`. `use_softplus=False` is `beta_softplus=None`. Without "
        "`normalize_gradients`, `gx.lookahead(gx.chain(gx.adaptive_grad_clip(0.01), "
        "gx.centralize(axis=-1), gx.scale_by_ranger21(), gx.scale_by_learning_rate(lr)), 5, 0.5)`.",
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
