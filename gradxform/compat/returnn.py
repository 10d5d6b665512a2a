"""RETURNN: its own optimizer classes, its names of all of them.

RETURNN's Updater sets epsilon to `optimizer_epsilon` of its config, as `from_config` does; the
defaults of the classes here are their own.
"""

from typing import Any

from gradxform.compat.arguments import with_suffix
from gradxform.compat.returnn_classes import (
    AMSGrad as AMSGrad,
    BaseCustom as BaseCustom,
    CustomAdam as CustomAdam,
    CustomGradientDescent as CustomGradientDescent,
    GradVarianceScaled as GradVarianceScaled,
    Nadam as Nadam,
    NeuralOptimizer1 as NeuralOptimizer1,
    NormalizedSGD as NormalizedSGD,
)
from gradxform.compat.returnn_config import from_config as from_config
from gradxform.compat.returnn_names import get_optimizer_class as get_optimizer_class


def __getattr__(name: str) -> Any:  # the names of the classes in full: CustomAdamOptimizer
    return with_suffix(__name__, globals(), name)
