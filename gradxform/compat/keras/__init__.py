"""tf.keras of TensorFlow 2.8 and Keras 3: their optimizers, schedules, files and weights.

The names here are those of `tf.keras.optimizers`; `keras3` has those of Keras 3.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat.keras import schedules as schedules
    from gradxform.compat.keras.bridge import (
        as_keras as as_keras,
        from_keras as from_keras,
        register_optimizer as register_optimizer,
    )
    from gradxform.compat.keras.configs import (
        Optimizer as Optimizer,
        deserialize as deserialize,
        get as get,
        serialize as serialize,
    )
    from gradxform.compat.keras.files import load_optimizer as load_optimizer
    from gradxform.compat.keras.holders import (
        LossScaleOptimizer as LossScaleOptimizer,
        LossScaleOptimizerV1 as LossScaleOptimizerV1,
    )
    from gradxform.compat.keras.keras import (
        SGD as SGD,
        Adadelta as Adadelta,
        Adagrad as Adagrad,
        Adam as Adam,
        Adamax as Adamax,
        Ftrl as Ftrl,
        Nadam as Nadam,
        RMSprop as RMSprop,
    )
    from gradxform.compat.keras.schedules import (
        CosineDecay as CosineDecay,
        CosineDecayRestarts as CosineDecayRestarts,
        ExponentialDecay as ExponentialDecay,
        InverseTimeDecay as InverseTimeDecay,
        LinearCosineDecay as LinearCosineDecay,
        PiecewiseConstantDecay as PiecewiseConstantDecay,
        PolynomialDecay as PolynomialDecay,
    )
    from gradxform.compat.keras.weights import (
        get_weights as get_weights,
        set_weights as set_weights,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
