"""Rows of optimizers that project gradients, filter them, or look at how they turn."""

from docs.site.from_pytorch.row import Row

EPS_FIRST = "PyTorch's adds eps before it corrects v."

ROWS = [
    Row(
        "AdamP(p, lr)",
        "gx.chain(gx.remove_radial(gx.scale_by_tf_adam()), gx.scale_by_learning_rate(lr))",
        1e-12,
        "AdamP",
        "`adamp(lr)` is the authors', which adds eps after it corrects v.",
    ),
    Row("SGDP(p, lr)", "gx.sgdp(lr, 0.0)", 1e-12, "SGDP"),
    Row(
        "GrokFastAdamW(p, lr)",
        "gx.grokfast_adamw(lr / 3, b2=0.99, eps=0.0)",
        1e-12,
        "GrokFast",
        "PyTorch's divides the rate by 1 + lamb, and takes the larger of root and eps.",
    ),
    Row(
        "OrthoGrad(SGD(p, lr))",
        "gx.chain(gx.orthograd(), gx.sgd(lr))",
        1e-12,
        "OrthoGrad",
        names={"lr": 0.05},
    ),
    Row("PNM(p, lr)", "gx.pnm(lr)", 1e-12, "PNM"),
    Row(
        "AdaPNM(p, lr)",
        "gx.adapnm(lr, eps_root=1e-15, eps_before_correction=True)",
        1e-12,
        "AdaPNM",
        EPS_FIRST,
    ),
    Row("Adai(p, lr)", "gx.adai(lr)", 1e-12, "Adai"),
    Row(
        "AdaNorm(p, lr)",
        "gx.adanorm(lr, b2=0.99, eps_root=1e-15, eps_before_correction=True)",
        1e-12,
        "AdaNorm",
        EPS_FIRST,
    ),
]
