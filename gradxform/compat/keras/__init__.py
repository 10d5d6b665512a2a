"""tf.keras of TensorFlow 2.8 and Keras 3: their optimizers, schedules, files and weights.

The names here are those of `tf.keras.optimizers`; `keras3` has those of Keras 3.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat.keras.keras import (
        SGD as SGD,
        Adadelta as Adadelta,
        Adagrad as Adagrad,
        Adam as Adam,
        Adamax as Adamax,
        CosineDecay as CosineDecay,
        CosineDecayRestarts as CosineDecayRestarts,
        ExponentialDecay as ExponentialDecay,
        Ftrl as Ftrl,
        InverseTimeDecay as InverseTimeDecay,
        LinearCosineDecay as LinearCosineDecay,
        LossScaleOptimizer as LossScaleOptimizer,
        LossScaleOptimizerV1 as LossScaleOptimizerV1,
        Nadam as Nadam,
        Optimizer as Optimizer,
        PiecewiseConstantDecay as PiecewiseConstantDecay,
        PolynomialDecay as PolynomialDecay,
        RMSprop as RMSprop,
        as_keras as as_keras,
        deserialize as deserialize,
        from_keras as from_keras,
        get as get,
        get_weights as get_weights,
        load_optimizer as load_optimizer,
        register_optimizer as register_optimizer,
        schedules as schedules,
        serialize as serialize,
        set_weights as set_weights,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
