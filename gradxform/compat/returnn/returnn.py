"""RETURNN: its own optimizer classes, its names of all of them.

RETURNN's Updater sets epsilon to `optimizer_epsilon` of its config, as `from_config` does; the
defaults of the classes here are their own.
"""

from gradxform.compat.returnn.classes import (
    AMSGrad as AMSGrad,
    BaseCustom as BaseCustom,
    CustomAdam as CustomAdam,
    CustomGradientDescent as CustomGradientDescent,
    GradVarianceScaled as GradVarianceScaled,
    Nadam as Nadam,
    NeuralOptimizer1 as NeuralOptimizer1,
    NormalizedSGD as NormalizedSGD,
)
from gradxform.compat.returnn.config import from_config as from_config
from gradxform.compat.returnn.names import get_optimizer_class as get_optimizer_class
