"""TensorFlow 1: the optimizers of `tf.contrib`."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat.tf_contrib.tf_contrib import (
        AGN as AGN,
        GGT as GGT,
        LARS as LARS,
        AdaMax as AdaMax,
        AdamGS as AdamGS,
        AdamW as AdamW,
        AddSign as AddSign,
        DropStaleGradient as DropStaleGradient,
        ElasticAverage as ElasticAverage,
        ExtendWD_Adagrad as ExtendWD_Adagrad,
        ExtendWD_Adam as ExtendWD_Adam,
        ExtendWD_Ftrl as ExtendWD_Ftrl,
        ExtendWD_GradientDescent as ExtendWD_GradientDescent,
        ExtendWD_Momentum as ExtendWD_Momentum,
        ExtendWD_RMSProp as ExtendWD_RMSProp,
        LazyAdam as LazyAdam,
        LazyAdamGS as LazyAdamGS,
        ModelAverage as ModelAverage,
        MomentumW as MomentumW,
        MovingAverage as MovingAverage,
        Nadam as Nadam,
        PowerSign as PowerSign,
        RegAdagrad as RegAdagrad,
        Shampoo as Shampoo,
        Tower as Tower,
        VariableClipping as VariableClipping,
        extend_with_decoupled_weight_decay as extend_with_decoupled_weight_decay,
        get_cosine_decay_fn as get_cosine_decay_fn,
        get_linear_decay_fn as get_linear_decay_fn,
        get_restart_decay_fn as get_restart_decay_fn,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__, suffix="Optimizer")
