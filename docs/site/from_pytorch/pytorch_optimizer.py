"""Rows of the optimizers of `pytorch_optimizer` whose parts the library had before this table."""

from docs.site.from_pytorch.row import Row
from tests.interop.recordings import hessians, losses, values

BEFORE = "eps is added before the correction"
UNDER_ROOT = "1e-15 is added under the root there"


ROWS = [
    Row(
        "AdaBelief(lr)",
        "gx.adabelief(lr)",
        1e-12,
        "AdaBelief",
        "`ams_bound` is `amsgrad=True`, and `rectify` is `threshold=5.0`",
    ),
    Row(
        "AdaDelta(lr)",
        "gx.adadelta(lr)",
        None,
        notes="see [From PyTorch](from_pytorch.md)",
    ),
    Row(
        "AdaFactor(lr, relative_step=False)",
        "gx.adafactor(lr, min_dim_size_to_factor=0, momentum=0.9)",
        1e-2,
        "AdaFactor",
        "the momentum is in bfloat16 there, which is the difference: with `momentum_dtype` as the "
        "parameters, it is 1e-12. `dtype_momentum=jnp.bfloat16` saves as much here, and rounds "
        "otherwise. The factors of a kernel are those of its height and width there: it differs by "
        "0.5. With `relative_step`, the rate is a schedule, min(0.01, 1 / sqrt(t)). "
        "A decoupled decay has the rate of each array: `gx.sum_of(gx.adafactor(...), "
        "gx.chain(gx.set_to_zero(), gx.add_decayed_weights(w), gx.scale_by_learning_rate(lr), "
        "gx.scale_by_param_block_rms()))`. "
        "`betas[1]` bounds the decay: `decay_rate_fn` of `gx.scale_by_factored_rms`. `ams_bound` "
        "is not here",
        leaves=("matrix", "vector", "scalar"),
    ),
    Row(
        "AdaGC(lr, warmup_steps)",
        "gx.chain(gx.adagc(warmup_steps=warmup_steps - 1), gx.adamw(lr, weight_decay=0.1))",
        1e-9,
        "AdaGC",
        "compared until a gradient is 0, which leaves the bound unchanged here, and lowers it "
        "there. The norm of the tree has an eps of 1e-8 there. A `warmup_steps` of 1 is that of 2",
        steps=5,
    ),
    Row(
        "AdaLOMO(lr)",
        "gx.adafactor(lr, min_dim_size_to_factor=0)",
        1e-12,
        "AdaLOMO",
        "the rule alone: its fusion with the backward pass saves memory that a jitted step, with "
        "donated buffers, frees too. A decay is that of AdaFactor",
    ),
    Row("AdaMax(lr)", "gx.adamax(lr)", None, notes="see [From PyTorch](from_pytorch.md)"),
    Row(
        "AdamC(lr)",
        "gx.chain(gx.scale_by_tf_adam(), gx.scale_by_learning_rate(lr))",
        1e-8,
        "AdamC",
        f"{BEFORE}; {UNDER_ROOT}. A decay of normalized layers is "
        "`gx.decoupled_weight_decay(..., w, mask, learning_rate=lambda n: schedule(n) ** 2 / lr)`. "
        "`ams_bound` is `gx.scale_by_tf_amsgrad()`",
    ),
    Row(
        "Adan(lr)",
        "gx.adan(lr, eps_root=0.0, change_weight=0.92)",
        1e-11,
        "Adan",
        "the change of the gradient counts b2 times, as in the paper; in Optax, and by default "
        "here, 1 - b2 times. With a decay, `proximal_decay=True`, but not with "
        "`weight_decouple=True`. `max_grad_norm` is `gx.clip_by_global_norm(c, eps=eps)` before "
        "it. With `maximize` or `use_gc`, the first change there is not 0",
    ),
    Row(
        "AdEMAMix(lr)",
        "gx.ademamix(lr)",
        1e-12,
        "AdEMAMix",
        "`t_alpha_beta3` are schedules of `b3` and `alpha`. `cautious=True` is for the fast "
        "average alone: `gx.sum_of(gx.cautious(gx.scale_by_adam(b1, b2), descent=False), "
        "gx.chain(gx.scale_by_adam(b3, b2), gx.scale_by_schedule(lambda n: alpha * (1 - b3 ** (n + "
        "1)))))` and the rate",
    ),
    Row(
        "AdEMAMix(lr, weight_decay)",
        "gx.chain(gx.add_decayed_weights(weight_decay), gx.ademamix(lr))",
        1e-12,
        "AdEMAMix.w",
        "with `weight_decouple=True`, which is the paper's, `gx.ademamix(lr, weight_decay=w)`",
    ),
    Row(
        "ADOPT(lr)",
        "gx.adopt(lr, clip_value_fn=lambda n: (n + 1) ** 0.25)",
        1e-12,
        "ADOPT",
        "the bound is that of the next step there; `clip_lambda=None` is `use_clipping=False`",
    ),
    Row(
        "AliG(max_lr)",
        "gx.polyak_sgd(max_lr, eps=1e-6)",
        1e-12,
        "AliG",
        "with a momentum, `gx.trace(momentum, nesterov=True)` after it; `adjusted_momentum` is not "
        "here. `max_lr=None` is infinity",
        inputs=values,
    ),
    Row(
        "DAdaptAdam(lr)",
        "gx.dadapt_adamw(lambda n: lr * (1 - 0.9 ** (n + 1)) / (1 - 0.999 ** (n + 1)) ** 0.5)",
        1e-12,
        "DAdaptAdam",
        "the rate takes Adam's corrections out, which the authors' code does not have; with "
        "`bias_correction=True`, `gx.dadapt_adamw(lr)`. `growth_rate` is not here",
    ),
    Row(
        "DAdaptAdam(lr, weight_decay)",
        "gx.chain(gx.add_decayed_weights(weight_decay), gx.dadapt_adamw("
        "lambda n: lr * (1 - 0.9 ** (n + 1)) / (1 - 0.999 ** (n + 1)) ** 0.5))",
        1e-12,
        "DAdaptAdam.w",
    ),
    Row(
        "DAdaptAdam(lr, weight_decay, weight_decouple=True)",
        "gx.dadapt_adamw(lambda n: lr * (1 - 0.9 ** (n + 1)) / (1 - 0.999 ** (n + 1)) ** 0.5, "
        "weight_decay=weight_decay)",
        1e-11,
        "DAdaptAdam.decoupled",
    ),
    Row(
        "Fromage(lr)",
        "gx.fromage(lr)",
        1e-11,
        "Fromage",
        "`p_bound` is `gx.project(gx.fromage(lr), bounded)`, a function that shortens parameters "
        "to `p_bound` times their first norms",
    ),
    Row(
        "FTRL(lr)",
        "gx.ftrl(lr, initial_accumulator_value=0.0)",
        1e-12,
        "FTRL",
        "`lambda_1` and `beta` are `l1` and `beta`, and `l2` is `lambda_2` / 2. With another "
        "`lr_power`, only the steps have it there, and the divisor keeps the root. A "
        "`weight_decay` is taken there, and does nothing: that of the paper is `lambda_2`",
    ),
    Row(
        "GaLore(groups, lr)",
        'gx.partition({"matrices": gx.galore(lr, 2, base_optimizer=gx.scale_by_tf_adam(eps=1e-6), '
        'shorter_side=True), "others": gx.chain(gx.scale_by_tf_adam(eps=1e-6), '
        'gx.scale_by_learning_rate(lr))}, gx.label_by(("matrices", gx.path_matches("matrix")), '
        '("others", True)))',
        1e-12,
        "GaLore",
        f"the group of matrices has `rank=2`; {BEFORE}; the shorter side is projected, as in the "
        f"paper (`projection_type='std'`), the "
        "longer one without `shorter_side` (`'reverse_std'`). Where outputs are more than inputs, "
        "these are `'right'` and `'left'`, otherwise `'left'` and `'right'`. Bases are renewed "
        "there when `update_proj_gap` divides the number of the step, here and in the authors' "
        "code in the step after it; the signs of a basis are arbitrary",
    ),
    Row(
        "Grams(lr)",
        "gx.grams(lr, eps=1e-6)",
        1e-12,
        "Grams",
        "without `weight_decouple`, a decay does nothing there",
    ),
    Row(
        "Lamb(lr)",
        "gx.chain(gx.scale_by_tf_adam(eps=1e-6), gx.scale_by_schedule(lambda n: (1 - 0.9 ** (n + "
        "1)) / (1 - 0.999 ** (n + 1)) ** 0.5), gx.scale_by_trust_ratio(eps=1e-6, max_norm=10.0), "
        "gx.scale_by_learning_rate(lambda n: lr / (1 - 0.9 ** (n + 1))))",
        1e-12,
        "Lamb",
        "the paper's form is `gx.lamb(lr)`. There, Adam's corrections follow the trust ratio, and "
        "that of the second moment does not come. A decay is decoupled, with `decay_first=True`; "
        "without `weight_decouple`, it stands before the ratio. `pre_norm=True` is "
        "`gx.clip_by_global_norm(max_grad_norm, eps=1e-6)` before all, without it nothing is "
        "clipped. `adam=True` leaves the ratio out, and `grad_averaging=False` divides the first "
        "factor by 1 - b1; `rectify` is not here",
    ),
    Row(
        "LaProp(lr)",
        "gx.laprop(lr, eps_before_correction=True)",
        1e-8,
        "LaProp",
        f"{BEFORE} there, the authors' after, and {UNDER_ROOT}. `ams_bound` is `amsgrad=True`, "
        "and `centered` is `centered_after=10`",
    ),
    Row(
        "LaProp(lr, weight_decay)",
        "gx.decoupled_weight_decay(gx.chain(gx.laprop(lr, eps_before_correction=True), "
        "gx.scale(1 - lr * weight_decay)), weight_decay, learning_rate=lr)",
        5e-8,
        "LaProp.w",
        "the decay follows the step there. With `weight_decouple=False` it does nothing there",
    ),
    Row(
        "LARS(lr)",
        "gx.lars(lr, trust_ratio_mask=gx.ndim_at_least(2))",
        1e-12,
        "LARS",
    ),
    Row(
        "LARS(lr, weight_decay, momentum, nesterov=True)",
        "gx.lars(lr, weight_decay, matrices, trust_ratio_mask=matrices, momentum=momentum, "
        "nesterov=True, sum_norms=True, scaled_decay=True)",
        1e-12,
        "LARS.B",
        "`matrices` is `gx.ndim_at_least(2)`. With `dampening=d`, `gx.scale(1 - d)` after it "
        "without `nesterov`; with it, `momentum=0.0` and after it `gx.sum_of(gx.identity(), "
        "gx.chain(gx.trace(momentum), gx.scale(momentum * (1 - d))))`",
    ),
    Row("Lion(lr)", "gx.lion(lr, weight_decay=0.0)", 1e-12, "Lion"),
    Row(
        "LOMO(lr)",
        "gx.sgd(lr)",
        1e-12,
        "LOMO",
        "the rule alone, as for AdaLOMO. For both, `clip_grad_norm=c` is "
        "`gx.clip_by_global_norm(c, eps=1e-6)` before it, and `clip_grad_value=c` `gx.clip(c)`",
    ),
    Row(
        "Lookahead(SGD(lr=0.05))",
        "gx.lookahead(gx.sgd(0.05), 5, 0.5)",
        1e-12,
        "Lookahead",
        '`pullback_momentum="reset"` is `reset_state=True`',
    ),
    Row(
        "MADGRAD(lr)",
        "gx.madgrad(lr)",
        1e-12,
        "MADGRAD",
        "with `weight_decouple=True`, `gx.chain(gx.madgrad(lr), gx.scale(-1.0), "
        "gx.add_decayed_weights((lr + 1e-6) * w), gx.scale(-1.0))`",
    ),
    Row(
        "MARS(lr)",
        'gx.partition({"matrices": gx.chain(gx.scale_by_mars(), gx.scale_by_tf_adam(0.95, 0.99), '
        'gx.scale_by_learning_rate(lr)), "others": gx.chain(gx.scale_by_tf_adam(0.9, 0.95), '
        "gx.add_decayed_weights(0.1), gx.scale_by_learning_rate(3e-3))}, "
        'gx.label_by(("matrices", gx.ndim_at_least(2)), ("others", True)))',
        1e-9,
        "MARS",
        f"vectors have AdamW with a rate of their own there; {BEFORE}, and {UNDER_ROOT}. The first "
        "gradient is corrected there by one of zeros, which shows if its norm is below 1. "
        '`mars_type="lion"` and `"shampoo"` are `gx.scale_by_mars()` before `gx.ema(0.95, False), '
        "gx.scale_by_sign()` and before `gx.muon`, and `ams_bound` is "
        "`gx.scale_by_tf_amsgrad(0.95, 0.99)`. A decay that is not decoupled is "
        "in the next correction only there",
    ),
    Row(
        "NovoGrad(lr)",
        "gx.novograd(lr, 0.95, 0.98, eps=1e-8)",
        1e-12,
        "NovoGrad",
        "with `grad_averaging=True`, `gx.scale_by_novograd(0.0, b2, eps)`, the factor 1 - b1 from "
        "the second step on (see `dampening` of `SGD`), `gx.trace(b1)` and the rate. "
        "`adam_debias` is the factor sqrt(1 - b2^t)",
    ),
    Row(
        "Prodigy(lr)",
        "gx.prodigy(lr, use_bias_correction=False)",
        1e-11,
        "Prodigy",
        "with `bias_correction=True`, `gx.prodigy(lr)`. Without `weight_decouple`, a decay does "
        "nothing there. `d0` and `d_coef` are `estim_lr0` and `estim_lr_coef`",
    ),
    Row(
        "RAdam(lr, degenerated_to_sgd=True)",
        "gx.radam(lr, eps_before_correction=True)",
        None,
        notes="see [From PyTorch](from_pytorch.md). By default, the steps that have no second "
        "moment yet neither move nor decay there: `gx.chain(gx.scale_by_tf_adam(), "
        "gx.scale_by_learning_rate(gx.product_schedule(lr, gx.rectified_warmup_schedule())))`, and "
        "`lambda n: w * (n >= 5)`. Only a decoupled decay does something",
    ),
    Row(
        "SAM(SGD, lr)",
        "gx.sam(gx.sgd(lr), gx.chain(gx.normalize(), gx.sgd(0.05)), opaque_mode=True)",
        1e-12,
        "SAM",
        "`adaptive=True` is `gx.asam(..., eta=0.0)`; with `use_gc`, `gx.centralize(axis=-1)` "
        "follows `gx.normalize()`; not both. A large `perturb_eps` is not here",
        inputs=losses,
    ),
    Row(
        "ScheduleFreeAdamW(lr)",
        "gx.schedule_free_adamw(lr)",
        1e-10,
        "ScheduleFreeAdamW",
        "evaluate at `gx.eval_params(state, params)`. With `warmup_steps`, set "
        "`warmup_from_zero=False`; `r` is `weight_step_power`. `ams_bound` is "
        "`gx.schedule_free(gx.chain(gx.scale_by_amsgrad(0.0), gx.scale_by_learning_rate(lr)), "
        "lr)`, and `decoupling_c` is `decoupling`",
    ),
    Row(
        "ScheduleFreeAdamW(lr), optimizer.eval()",
        "gx.schedule_free_adamw(lr)",
        1e-10,
        "ScheduleFreeAdamW",
        evaluated="aux/eval",
    ),
    Row("ScheduleFreeSGD(lr)", "gx.schedule_free_sgd(lr)", 1e-11, "ScheduleFreeSGD"),
    Row(
        "ScheduleFreeSGD(lr), optimizer.eval()",
        "gx.schedule_free_sgd(lr)",
        1e-11,
        "ScheduleFreeSGD",
        evaluated="aux/eval",
    ),
    Row(
        "ScheduleFreeWrapper(SGD(lr), momentum=0.9)",
        "gx.schedule_free(gx.sgd(lr), lr, 0.9)",
        None,
        notes="so around any optimizer that has no schedule. Its `weight_decay` decays the average "
        "a little too there; here, as in the authors' code, `gx.add_decayed_weights(w)` stands "
        "before the optimizer inside",
    ),
    Row(
        "SGDW(lr)",
        "gx.sgdw(lr, momentum=0.0, weight_decay=w)",
        None,
        notes="the rate multiplies the decay. With `dampening`, see `SGD`",
    ),
    Row("SignSGD(lr)", "gx.signum(lr)", 1e-12, "SignSGD", "without momentum, `gx.sign_sgd(lr)`"),
    Row(
        "SimplifiedAdEMAMix(lr)",
        "gx.simplified_ademamix(lambda n: lr / 100 / (1 - 0.95 ** (n + 1)))",
        1e-12,
        "SimplifiedAdEMAMix",
        "the momentum there is an average, 1 - b1 times the paper's sum, so `alpha` here is 100 "
        "times that there; and it divides by the root of 1 - b2^t, where the paper multiplies. "
        "`beta1_warmup` is not here",
    ),
    Row(
        "SM3(lr)",
        "gx.sm3(lr, 0.0, eps=1e-30)",
        1e-12,
        "SM3",
        "without momentum there. With `beta`, its maxima never fall, those of `b2` here decay",
    ),
    Row(
        "SophiaH(lr)",
        "gx.sophia(lr, 0.96, 0.99, eps=1e-12, gamma=1.0, clip_threshold=0.01, weight_decay=0.0, "
        "update_interval=1, debias=False, delayed=False, hessian_diagonal_fn=given)",
        1e-12,
        "SophiaH",
        "`given` are the recorded estimates of the Hessian, one for every step; leave it out for "
        "estimates of its own",
        inputs=hessians,
    ),
    Row(
        "Yogi(lr)",
        "gx.yogi(lr)",
        1e-11,
        "Yogi",
        "`initial_accumulator` is `initial_accumulator_value` of `gx.scale_by_yogi`",
    ),
    Row(
        "TRAC(AdamW(lr=0.1, weight_decay=0.0), s_prev=0.1)",
        "gx.trac(gx.adamw(0.1, weight_decay=0.0), 0.1)",
        1e-10,
        "TRAC",
        "`num_betas` is how many `betas` there are, 0.9, 0.99, ...; others are not here",
    ),
]
