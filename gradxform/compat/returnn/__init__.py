"""RETURNN: its optimizers by the classes and the options of its configs."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat.returnn.returnn import (
        AMSGrad as AMSGrad,
        BaseCustom as BaseCustom,
        CustomAdam as CustomAdam,
        CustomGradientDescent as CustomGradientDescent,
        GradVarianceScaled as GradVarianceScaled,
        Nadam as Nadam,
        NeuralOptimizer1 as NeuralOptimizer1,
        NormalizedSGD as NormalizedSGD,
        from_config as from_config,
        get_optimizer_class as get_optimizer_class,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__, suffix="Optimizer")
