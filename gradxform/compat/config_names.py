"""Names of the factories in configs: `keras:Adam`, `tf1:Momentum`, `returnn:CustomAdam`."""

import inspect
from types import ModuleType

from gradxform.base import GradientTransformation
from gradxform.registry import register


def name_factories(*modules: ModuleType) -> None:
    """Register every factory of some modules under "module:factory".

    A factory that several modules offer has the name of the first. Factories of schedules return
    values that configs can hold, and need no names.

    Args:
      modules: modules of this package, each with the factories of one library.
    """
    named = set()
    for module in modules:
        library = module.__name__.rpartition(".")[2]
        for name, x in vars(module).items():
            if inspect.isfunction(x) and x not in named and _returns_optimizer(x):
                register(f"{library}:{name}", x)
                named.add(x)


def _returns_optimizer(function: object) -> bool:
    if not getattr(function, "__name__", "_")[0].isupper() or not callable(function):
        return False
    returns = inspect.signature(function).return_annotation
    return isinstance(returns, type) and issubclass(returns, GradientTransformation)
