"""One transform for each optimizer and wrapper, with a learning rate to be chosen, to be drawn."""

from collections.abc import Callable
from typing import Any

import gradxform as gx
from examples.command_line import has_learning_rate, make_by_name
from gradxform.commands.catalog import Entry

Make = Callable[[Any], Any]  # of the learning rate

# Optimizers with required arguments, and those whose multiple of the step is not `learning_rate`.
OPTIMIZERS: dict[str, Make] = {
    # With the default eps, the weights of a pixel that was dark so far move by 1e8 g.
    "acprop": lambda lr: gx.acprop(lr, eps=1e-3),
    # The roots are computed every ten steps, as one would.
    "distributed_shampoo": lambda lr: gx.distributed_shampoo(lr, preconditioning_compute_steps=10),
    "dpsgd": lambda lr: gx.dpsgd(lr, l2_norm_clip=1.0, noise_multiplier=0.1, seed=0),
    # As it is where no logit is too large: what is drawn has no attention.
    "muonclip": lambda lr: gx.muonclip(lr, {"layer": gx.query_key("query", "key")}).inner,
    # As it is before the first renewal: what is drawn has no layers with inputs.
    "newton_muon": lambda lr: gx.muon(lr, debias=False),
    "shampoo": lambda lr: gx.shampoo(lr, svd_interval=10),
}


def _named(lr: Any) -> Any:
    return gx.named_chain(("clip", gx.clip_by_global_norm(1.0)), ("adam", gx.adam(lr)))


def _groups(lr: Any) -> Any:
    return gx.param_groups(gx.adam(lr), (gx.param_group("w", learning_rate=3.0),))


# Wrappers around Adam, with arguments as one would choose them.
WRAPPERS: dict[str, Make] = {
    "MultiSteps": lambda lr: gx.MultiSteps(gx.adam(lr), every_k_schedule=4),
    "accumulate": lambda lr: gx.accumulate(gx.adam(lr), every=4),
    "accumulate_rows": lambda lr: gx.accumulate_rows(gx.adam(lr), every_k_schedule=4, rows=0),
    "apply_if_finite": lambda lr: gx.apply_if_finite(gx.adam(lr), max_consecutive_errors=5),
    "cautious": lambda lr: gx.cautious(gx.adam(lr)),
    "chain": lambda lr: gx.chain(gx.clip_by_global_norm(1.0), gx.adam(lr)),
    "conditionally_mask": lambda lr: gx.conditionally_mask(gx.adam(lr), _two_of_three),
    "conditionally_transform": lambda lr: gx.chain(
        gx.conditionally_transform(gx.clip_by_global_norm(0.1), _two_of_three), gx.adam(lr)
    ),
    "decoupled_weight_decay": lambda lr: gx.decoupled_weight_decay(
        gx.adam(lr), weight_decay=0.01, learning_rate=lr
    ),
    "external_step": lambda lr: gx.external_step(gx.adam(lr), at=0),
    "factor_state": lambda lr: gx.factor_state(gx.adam(lr), min_dim_size_to_factor=2),
    "flatten": lambda lr: gx.flatten(gx.adam(lr)),
    "inject_hyperparams": lambda lr: gx.inject_hyperparams(gx.adam)(learning_rate=lr),
    "lookahead": lambda lr: gx.lookahead(gx.adam(lr), sync_period=6, slow_step_size=0.5),
    "loss_scale": lambda lr: gx.loss_scale(gx.adam(lr), growth_interval=20),
    "kahan": lambda lr: gx.kahan(gx.adam(lr)),
    "masked": lambda lr: gx.masked(gx.adam(lr), gx.ndim_at_least(2)),
    "master_weights": lambda lr: gx.master_weights(gx.adam(lr)),
    "magma": lambda lr: gx.magma(gx.adam(lr)),
    "mechanize": lambda lr: gx.mechanize(gx.adam(lr)),
    "monitor": lambda lr: gx.chain(gx.monitor({"norm": gx.global_norm}), gx.adam(lr)),
    "moving_average": lambda lr: gx.moving_average(gx.adam(lr), decay=0.95),
    "named_chain": _named,
    "offload_state": lambda lr: gx.offload_state(gx.adam(lr), min_size=64),
    "only_dense": lambda lr: gx.only_dense(gx.adam(lr)),
    "overwriting_average": lambda lr: gx.overwriting_average(gx.adam(lr), decay=0.9, every=20),
    "param_groups": _groups,
    "partition": lambda lr: gx.partition(
        {"matrix": gx.muon(lr), "rest": gx.adam(lr)},
        gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", gx.ndim_at_least(0))),
    ),
    "power_moving_average": lambda lr: gx.power_moving_average(gx.adam(lr), lengths=(0.1,)),
    "project": lambda lr: gx.project(gx.adam(lr), gx.projections.projection_box, arguments=_BOX),
    "quantize_state": lambda lr: gx.quantize_state(gx.adam(lr), min_size=64),
    "remove_radial": lambda lr: gx.chain(
        gx.remove_radial(gx.scale_by_adam()), gx.scale_by_learning_rate(lr)
    ),
    "reset_state": lambda lr: gx.chain(
        gx.reset_state(gx.scale_by_adam(), every=50), gx.scale_by_learning_rate(lr)
    ),
    "sam": lambda lr: gx.sam(gx.adam(lr), gx.chain(gx.normalize(), gx.sgd(0.05))),
    "scale_by_galore": lambda lr: gx.chain(
        gx.scale_by_galore(rank=4, update_proj_gap=50), gx.scale_by_learning_rate(lr)
    ),
    "schedule_free": lambda lr: gx.schedule_free(gx.sgd(lr), learning_rate=lr),
    "skip_loss_spikes": lambda lr: gx.skip_loss_spikes(gx.adam(lr)),
    "snapshot": lambda lr: gx.chain(gx.snapshot("norm", gx.global_norm), gx.adam(lr)),
    "sparse_semantics": lambda lr: gx.sparse_semantics(gx.adam(lr), "dense"),
    "split_real_and_imaginary": lambda lr: gx.split_real_and_imaginary(gx.adam(lr)),
    "state_dtype": lambda lr: gx.state_dtype(gx.adam(lr)),
    "stochastic_rounding": lambda lr: gx.stochastic_rounding(gx.adam(lr), 0),
    "stochastic_weight_average": lambda lr: gx.stochastic_weight_average(gx.adam(lr), start=100),
    "sum_of": lambda lr: gx.sum_of(gx.sgd(lr), gx.adam(lr)),
    "trac": lambda lr: gx.trac(gx.adam(lr)),
    "variable_clipping": lambda lr: gx.variable_clipping(gx.adam(lr), {"w": (0,)}, max_norm=1.5),
    "variable_names": lambda lr: gx.variable_names(gx.adam(lr)),
    "with_metrics": lambda lr: gx.with_metrics(gx.adam(lr)),
}

# Optimizers that compare the losses of different steps, which must be of the same examples.
ON_ALL_EXAMPLES = ("lbfgs_steps", "lbfgsb")

# Wrappers that do not run by themselves, and why.
WITHOUT = {
    "on_measurement": "it is a measure for `monitor`",
    "only_rows": "it leaves dense gradients alone",
    "qk_clip": "it needs the logits of attention layers",
    "query_key": "it names the parameters that `qk_clip` shrinks",
    "param_group": "it is a rule for `param_groups`",
    "raw_gradient_norms": "it is for parts that clip by the raw norm",
    "stacked": "it needs layers that are stacked",
}

_BOX = {"lower": -1.8, "upper": 1.8}


def _two_of_three(step: Any) -> Any:
    return step % 3 != 2


def make_of(entry: Entry) -> Make | None:
    """Return the function that makes a part with a learning rate, or None for those without."""
    if entry.kind == "wrappers":
        return WRAPPERS.get(entry.name)
    if entry.name in OPTIMIZERS:
        return OPTIMIZERS[entry.name]
    return lambda lr: make_by_name(entry.name, lr, 0)


def takes_rate(entry: Entry) -> bool:
    """Whether the part has a learning rate to be chosen."""
    return entry.kind == "wrappers" or has_learning_rate(entry.name)
