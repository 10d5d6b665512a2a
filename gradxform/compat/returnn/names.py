"""RETURNN's names of optimizers, and the factories that they stand for."""

from collections.abc import Callable
from typing import Any

from gradxform.compat import keras, tf1, tf_contrib
from gradxform.compat.returnn import classes as returnn_classes
from gradxform.errors import cut_name, did_you_mean, shown

_OWN = ("AMSGrad", "BaseCustom", "CustomAdam", "CustomGradientDescent", "GradVarianceScaled")
_TF1 = (
    "Adadelta",
    "Adagrad",
    "AdagradDA",
    "Adam",
    "Ftrl",
    "GradientDescent",
    "Momentum",
    "ProximalAdagrad",
    "ProximalGradientDescent",
    "RMSProp",
    "SyncReplicas",
)
_CONTRIB = (
    "AGN",
    "AdaMax",
    "AdamGS",
    "AdamW",
    "AddSign",
    "DropStaleGradient",
    "ElasticAverage",
    "GGT",
    "LARS",
    "LazyAdam",
    "LazyAdamGS",
    "ModelAverage",
    "MomentumW",
    "MovingAverage",
    "PowerSign",
    "RegAdagrad",
    "Shampoo",
    "VariableClipping",
)


def _registry() -> dict[str, Callable[..., Any]]:
    """Return the factories by name in lower case; classes called `...Optimizer` have two names."""
    named: dict[str, Callable[..., Any]] = {
        "neuraloptimizer1": returnn_classes.NeuralOptimizer1,
        "normalizedsgd": returnn_classes.NormalizedSGD,
        "nadamkeras": keras.Nadam,
        "sgd": keras.SGD,
    }
    for module, names in ((returnn_classes, (*_OWN, "Nadam")), (tf1, _TF1), (tf_contrib, _CONTRIB)):
        for name in names:
            factory = getattr(module, name)
            named[name.lower()] = named[f"{name.lower()}optimizer"] = factory
    return named


REGISTRY = _registry()


def get_optimizer_class(name: str) -> Callable[..., Any]:
    """Return the factory of RETURNN's name of an optimizer.

    Names are those of RETURNN's own classes, then of `tf.train`, then of `tf.contrib.opt`, then of
    Keras: "adam" is `tf1.Adam`, "nadam" RETURNN's, "sgd" Keras's.

    Args:
      name: a name in any case, with or without the suffix "Optimizer".

    Raises:
      KeyError: for an unknown name, with near ones.
      TypeError: if it is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"get_optimizer_class: name must be a string, got {shown(name)}.")
    if name.lower() not in REGISTRY:
        hint = did_you_mean(name.lower(), REGISTRY)
        raise KeyError(
            f"get_optimizer_class: RETURNN does not have an optimizer {cut_name(name)!r}.{hint}"
        )
    return REGISTRY[name.lower()]
