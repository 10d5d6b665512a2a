"""TensorFlow 1: the classes of `tf.train`, their schedules, replicas and checkpoints."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat.tf1.tf1 import (
        Adadelta as Adadelta,
        Adagrad as Adagrad,
        AdagradDA as AdagradDA,
        Adam as Adam,
        Ftrl as Ftrl,
        GradientDescent as GradientDescent,
        Momentum as Momentum,
        ProximalAdagrad as ProximalAdagrad,
        ProximalGradientDescent as ProximalGradientDescent,
        RMSProp as RMSProp,
        SyncReplicas as SyncReplicas,
        cosine_decay as cosine_decay,
        cosine_decay_restarts as cosine_decay_restarts,
        exponential_decay as exponential_decay,
        from_checkpoint as from_checkpoint,
        inverse_time_decay as inverse_time_decay,
        linear_cosine_decay as linear_cosine_decay,
        natural_exp_decay as natural_exp_decay,
        piecewise_constant as piecewise_constant,
        piecewise_constant_decay as piecewise_constant_decay,
        polynomial_decay as polynomial_decay,
        to_checkpoint as to_checkpoint,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__, suffix="Optimizer")
