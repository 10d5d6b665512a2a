"""Rows for `gradxform/transforms/adam.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, NADAM, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adam": Case(gx.scale_by_adam(), ADAM),
    "scale_by_adam/eps": Case(gx.scale_by_adam(0.8, 0.95, 0.1, 0.2), ref.adam(0.8, 0.95, 0.1, 0.2)),
    "scale_by_adam/nesterov": Case(gx.scale_by_adam(nesterov=True), NADAM),
    "scale_by_adam/b1=0": Case(gx.scale_by_adam(b1=0.0), ref.adam(0.0, 0.999, 1e-8)),
    "scale_by_amsgrad": Case(gx.scale_by_amsgrad(), ref.amsgrad(0.9, 0.999, 1e-8)),
    "scale_by_amsgrad/paper": Case(
        gx.scale_by_amsgrad(bias_correction_mu=False, bias_correction_nu=False),
        ref.amsgrad(0.9, 0.999, 1e-8, False, False),
    ),
    "scale_by_amsgrad/eps": Case(
        gx.scale_by_amsgrad(0.8, 0.9, 0.1, 0.2), ref.amsgrad(0.8, 0.9, 0.1, eps_root=0.2)
    ),
    "scale_by_nadam": Case(gx.scale_by_nadam(), ref.keras_nadam(0.9, 0.999, 1e-8, 0.004)),
    "scale_by_nadam/eps": Case(
        gx.scale_by_nadam(0.8, 0.9, 0.1, 0.5), ref.keras_nadam(0.8, 0.9, 0.1, 0.5)
    ),
    "scale_by_torch_amsgrad": Case(
        gx.scale_by_torch_amsgrad(0.8, 0.9, 0.1, 0.2), ref.torch_amsgrad(0.8, 0.9, 0.1, 0.2)
    ),
    "scale_by_tf_amsgrad": Case(
        gx.scale_by_tf_amsgrad(0.8, 0.9, 0.1, 0.2), ref.keras_amsgrad(0.8, 0.9, 0.1, 0.2)
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adam": Case(gx.adam(0.1), with_lr(0.1, ADAM)),
    "adamw": Case(gx.adamw(0.1, weight_decay=0.2), with_lr(0.1, ADAM, ref.decay(0.2))),
    "adamw/mask": Case(
        gx.adamw(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ADAM, ref.decay(0.2, matrix), FALLING_LR),
    ),
    "nadam": Case(gx.nadam(0.1), with_lr(0.1, NADAM)),
    "nadamw": Case(
        gx.nadamw(0.1, weight_decay=0.2),
        with_lr(0.1, NADAM, ref.decay(0.2)),
    ),
    "amsgrad": Case(gx.amsgrad(0.1), with_lr(0.1, ref.amsgrad(0.9, 0.999, 1e-8))),
    "amsgrad/torch": Case(
        gx.amsgrad(0.1, correct_after=True, eps_before_correction=False),
        with_lr(0.1, ref.torch_amsgrad(0.9, 0.999, 1e-8)),
    ),
    "amsgrad/decay": Case(
        gx.amsgrad(0.1, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.amsgrad(0.9, 0.999, 1e-8), ref.decay(0.2, matrix)),
    ),
    "adamw/not by the rate": Case(
        gx.adamw(0.1, eps=1e-3, weight_decay=0.2, decay_by_learning_rate=False),
        ref.sequence(with_lr(0.1, ref.adam(0.9, 0.999, 1e-3)), ref.decay_down(0.2)),
    ),
    "nadam/keras": Case(
        gx.nadam(0.1, schedule_decay=0.1), with_lr(0.1, ref.keras_nadam(0.9, 0.999, 1e-8, 0.1))
    ),
}


REFUSED = [
    ("amsgrad(0.1, eps_before_correction=True)",
     ValueError, "amsgrad: eps_before_correction=True needs correct_after=True."),
    ("amsgrad(0.1, bias_correction_nu=False, correct_after=True)",
     ValueError, "amsgrad: correct_after=True corrects both moments"),
    ("nadam(0.1, eps_root=0.1, schedule_decay=0.1)",
     ValueError, "nadam: eps_root cannot be set together with schedule_decay."),
    ("adamw(0.1, decay_by_learning_rate='x')",
     TypeError, "adamw: decay_by_learning_rate must be True or False, got 'x'."),
    ("gx.compat.keras.get({'class_name': 'Adam', 'config': {'amsgrad': 'no'}})",
     TypeError, "config.config: Adam: amsgrad must be True or False, got 'no'."),
]  # fmt: skip
