"""Rows of what authors published themselves: Prodigy, schedule-free learning, NVIDIA's matrices."""

from docs.site.from_pytorch.row import Row
from tests.interop.recordings import values

ROWS = [
    Row(
        "Prodigy(lr, d0=d0, growth_rate=1.02, use_bias_correction=True, safeguard_warmup=True)",
        "gx.prodigy(lr, estim_lr0=d0, growth_rate=1.02, safeguard_warmup=True)",
        1e-10,
        "prodigyopt.Prodigy",
        "of prodigyopt. `use_bias_correction` is off by default there. A rate of 0 stops it there, "
        "counts and averages too. With `decouple=False`, `gx.add_decayed_weights(w)` stands before "
        "it; `slice_p` is not here",
    ),
    Row(
        "AdamWScheduleFree(lr)",
        "gx.schedule_free_adamw(lr)",
        1e-10,
        "schedulefree.AdamWScheduleFree",
        "of schedulefree, as all that follow; with `warmup_steps`, set `warmup_from_zero=False`",
    ),
    Row(
        "AdamWScheduleFree(lr), optimizer.eval()",
        "gx.schedule_free_adamw(lr)",
        1e-10,
        "schedulefree.AdamWScheduleFree",
        evaluated="aux/eval",
    ),
    Row(
        "ScheduleFreeWrapper(Prodigy(lr=1.0, betas=(0.0, 0.9), d0=0.001), momentum=0.9)",
        "gx.schedule_free_prodigy(b2=0.9, estim_lr0=0.001)",
        1e-10,
        "schedulefree.ScheduleFreeWrapper",
        "`weight_decay_at_y` is not multiplied by the estimate there; that of Prodigy is, here "
        "too. ProdigyPlusScheduleFree changes Prodigy in many ways, and is not here",
    ),
    Row(
        "ScheduleFreeWrapper(Prodigy(lr=1.0, betas=(0.0, 0.9), d0=0.001), momentum=0.9), "
        "optimizer.eval()",
        "gx.schedule_free_prodigy(b2=0.9, estim_lr0=0.001)",
        1e-10,
        "schedulefree.ScheduleFreeWrapper",
        evaluated="aux/eval",
    ),
    Row(
        "AdamCScheduleFreePlusPaper(lr, weight_decay=20.0, r=2.0, polyak_beta=0.9, c_warmup=2, "
        "sf_beta1_anneal_steps=6)",
        "gx.schedule_free_plus(lr, weight_decay=20.0, weight_step_power=2.0, norm_decay=0.9, "
        "average_start=2, anneal_steps=6)",
        1e-10,
        "schedulefree.AdamCScheduleFreePlusPaper",
        "the argument of `step_func` is `value=` of `update`. With `polyak_beta`, the corrected "
        "average of norms is kept there in the place of the average, and grows without bound: "
        "recorded is the code with the average",
        inputs=values,
    ),
    Row(
        "AdamCScheduleFreePlusPaper(lr, weight_decay=20.0, r=2.0, polyak_beta=0.9, c_warmup=2, "
        "sf_beta1_anneal_steps=6), optimizer.eval()",
        "gx.schedule_free_plus(lr, weight_decay=20.0, weight_step_power=2.0, norm_decay=0.9, "
        "average_start=2, anneal_steps=6)",
        1e-10,
        "schedulefree.AdamCScheduleFreePlusPaper",
        inputs=values,
        evaluated="aux/eval",
    ),
    Row(
        "MOP(lr, weight_decay=0.0)",
        "gx.polar_grad(lr, ns_steps=12)",
        1e-6,
        "emerging.MOP",
        "of Emerging-Optimizers, as the next: by a singular value decomposition there",
    ),
    Row(
        "PolarGrad(lr, weight_decay=0.0)",
        'gx.polar_grad(lr, ns_coeffs="dion", ns_steps=5)',
        1e-6,
        "emerging.PolarGrad",
    ),
]
