"""The names of states' fields in TensorFlow 1 (with contrib and RETURNN), Keras 2 and Keras 3."""

from typing import Any

STYLES = ("gradxform", "tf1", "keras", "keras3")

_MOMENTS = {"mu": "m", "nu": "v"}
_TF1: dict[str, dict[str, str]] = {
    "AdagradDAState": {
        "gradient_sum": "gradient_accumulator",
        "sum_of_squares": "gradient_squared_accumulator",
    },
    "FtrlState": {"accumulator": "accum", "linear": "linear"},
    "MovingAverageState": {"average": "ExponentialMovingAverage"},
    "ProximalAdagradState": {"sum_of_squares": "accumulator"},
    "ScaleByAdaDeltaState": {"e_g": "accum", "e_x": "accum_update"},
    "ScaleByAdamState": _MOMENTS,
    "ScaleByAgreementState": _MOMENTS,
    "ScaleByAmsgradState": _MOMENTS | {"nu_max": "v_hat"},
    "ScaleByGradVarianceState": _MOMENTS,
    "ScaleByNadamState": _MOMENTS,
    "ScaleByRmsState": {"nu": "rms"},
    "ScaleByRmsWithCountState": {"nu": "rms"},
    "ScaleByRssState": {"sum_of_squares": "accumulator"},
    "ScaleByRStdDevState": {"nu": "rms", "mu": "mg"},
    "ScaleByRStdDevWithCountState": {"nu": "rms", "mu": "mg"},
    "TraceState": {"trace": "momentum"},
}
_KERAS = _TF1 | {
    "FtrlState": {"accumulator": "accumulator", "linear": "linear"},
    "MovingAverageState": {"average": "average"},
    "ScaleByAdaDeltaState": {"e_g": "accum_grad", "e_x": "accum_var"},
    "ScaleByAmsgradState": _MOMENTS | {"nu_max": "vhat"},
    "ScaleByNadamState": _MOMENTS | {"mu_product": "momentum_cache"},
}
_MOMENTS_3 = {"mu": "momentum", "nu": "velocity"}
_RMS_3 = {"nu": "velocity", "mu": "average_gradient"}
_KERAS_3 = _KERAS | {
    "ScaleByAdaDeltaState": {"e_g": "accumulated_grad", "e_x": "accumulated_delta_var"},
    "ScaleByAdamState": _MOMENTS_3,
    "ScaleByAmsgradState": _MOMENTS_3 | {"nu_max": "velocity_hat"},
    "ScaleByLionState": {"mu": "momentum"},
    "ScaleByNadamState": _MOMENTS_3 | {"mu_product": "product"},
    "ScaleByRmsState": _RMS_3,
    "ScaleByRmsWithCountState": _RMS_3,
    "ScaleByRStdDevState": _RMS_3,
    "ScaleByRStdDevWithCountState": _RMS_3,
    "ScheduleFreeAdamState": {"z": "momentum", "nu": "velocity"},
}
# Where one class of states serves several rules.
_OF_RULES = {("keras3", "scale_by_adamax", "nu"): "norm"}

_FIELDS: dict[str, dict[str, dict[str, str]]] = {"gradxform": {}, "tf1": _TF1}
_FIELDS |= {"keras": _KERAS, "keras3": _KERAS_3}

# Of these states, only these fields are variables there: not what replicas keep for an exchange.
_VARIABLES_THERE: dict[str, tuple[str, ...]] = {
    "InjectStatefulHyperparamsState": ("count", "hyperparams"),
    "TowerState": (),
    "SyncReplicasState": ("global_step",),
    "DropStaleState": ("global_step", "stale_counter"),
    "ModelAverageState": ("global_step",),
    "ElasticAverageState": ("global_step",),
    "AgnState": ("global_step",),
    "FeedbackState": (),
    "LowRankState": (),
}

# The names of a count of updates.
COUNTS = {"tf1": "global_step", "keras": "iterations", "keras3": "iteration"}
# The rules whose count TensorFlow 1 has under another name.
_TF1_COUNTS = {"scale_by_amsgrad": "t", "scale_by_ggt": "global_step_1"}
# The rules whose count it has as powers of these decays.
POWERS: dict[str, dict[str, str]] = {
    "scale_by_adam": {"beta1_power": "b1", "beta2_power": "b2"},
    "scale_by_adamax": {"beta1_power": "b1"},
    "scale_by_tf_adam": {"beta1_power": "b1", "beta2_power": "b2"},
}


def word_for(style: str, rule: str, state: Any, field: str) -> str:
    """Return what a field of a state is called."""
    kind = type(state).__name__
    if field == "count" and style in COUNTS:
        return _TF1_COUNTS.get(rule, COUNTS[style]) if style == "tf1" else COUNTS[style]
    if (style, rule, field) in _OF_RULES:
        return _OF_RULES[style, rule, field]
    return _FIELDS[style].get(kind, {}).get(field, field)


def is_variable_there(style: str, state: Any, field: str) -> bool:
    """Whether the original has a variable for a field of a state."""
    if style == "gradxform":
        return True
    fields = _VARIABLES_THERE.get(type(state).__name__)
    return fields is None or field in fields


def is_shared(style: str, field: str) -> bool:
    """Whether all states have a field in common: the original counts its updates once."""
    return field == "count" and style in COUNTS
