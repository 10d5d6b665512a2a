"""Adam's relatives, momentum and signs, in pytorch_optimizer and here."""

from docs.site.from_pytorch.row import Row

ROWS = [
    Row(
        "StableAdamW(lr)",
        "gx.stable_adamw(lr)",
        1e-12,
        "StableAdamW",
    ),
    Row(
        "QHAdam(lr)",
        "gx.qhadam(lr, 0.9, 0.999, 1.0, 1.0)",
        1e-12,
        "QHAdam",
        "both weights are 1 there, which is Adam; here they are the paper's by default",
    ),
    Row(
        "QHM(lr)",
        "gx.qhm(lr, 0.0, 1.0)",
        1e-12,
        "QHM",
        "plain descent there; here the paper's numbers are the default",
    ),
    Row(
        "Prodigy(d0=d0, eps=None, bias_correction=True)",
        "gx.prodigy(eps=None, estim_lr0=d0)",
        1e-12,
        "AdamAtan2",
        "`adam_atan2` is AdamW with the same arctangent",
    ),
    Row("AggMo(lr)", "gx.aggmo(lr)", 1e-12, "AggMo"),
    Row("Tiger(lr)", "gx.tiger(lr)", 1e-12, "Tiger"),
    Row(
        "FOCUS(lr)",
        "gx.focus(lr)",
        2e-2,
        "FOCUS",
        "where a parameter is its average, PyTorch pulls it as a rounding has it; here it stays",
    ),
    Row(
        "PAdam(lr)",
        "gx.padam(lr, partial=0.25, amsgrad=False, bias_correction=True)",
        1e-12,
        "PAdam",
        "the paper divides by the largest second moment, and does not correct",
    ),
    Row(
        "DiffGrad(lr)",
        "gx.diffgrad(lr, eps_root=1e-15, correct_after=True)",
        1e-12,
        "DiffGrad",
        "`ams_bound` is `amsgrad=True`. With `rectify`, the rate is `gx.product_schedule(lr, "
        "gx.rectified_warmup_schedule())`, and `gx.sum_of` adds the steps before: "
        "`gx.chain(gx.ema(0.9), gx.scale_by_learning_rate(gx.join_schedules((lr, 0.0), (5,))))`",
    ),
    Row(
        "AdaBound(lr)",
        "gx.adabound(lr, eps_root=1e-15)",
        1e-12,
        "AdaBound",
        "`ams_bound` is `amsgrad=True`; `adam_debias` is not here",
    ),
    Row("Kate(lr)", "gx.kate(lr)", 1e-12, "Kate"),
]
