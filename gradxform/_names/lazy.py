"""Packages that load their public names when somebody asks for them (PEP 562).

Whatever a package or module offers that it does not define comes through `public_names`:

- the names that `table.py` has for it. It is written by `make tables`, from what the `__init__.py`
  of each package imports for type checkers, and from what files make public;
- names of `gradxform` that stand in `FORWARDS`;
- the modules in it that are public, or named in `PATHS`;
- what `optax.py` looks up in the installed Optax.

The package `lazy_loader` attaches names from stubs, too. It parses them at each start, and cannot
hide a module behind a name, take a suffix, keep modules out of the attributes, forward names of
higher floors, or say what a name of Optax that is not here has become.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gradxform._names.homes import PATHS, homes_of

_ROOT = "gradxform"

# Names of `gradxform` that others have as well, where Optax has them, but not in their `__all__`:
# they stand on higher floors. The conversion of Optax's states is in `interop`, too.
FORWARDS = {
    "gradxform.interop": "as_optax from_optax_state to_optax_state",
    "gradxform.schedules": (
        "InjectHyperparamsState InjectStatefulHyperparamsState inject_hyperparams "
        "inject_stateful_hyperparams"
    ),
    "gradxform.transforms": (
        "AddNoiseState ApplyIfFiniteState ConditionFn ConditionallyMaskState "
        "ConditionallyTransformState EmaState MaskedNode MaskedState MonitorState MultiSteps "
        "MultiStepsState NonNegativeParamsState PartitionState ShouldSkipUpdateFunction "
        "SnapshotState TraceState ZeroNansState adaptive_grad_clip add_decayed_weights add_noise "
        "apply_if_finite chain clip clip_by_block_rms clip_by_global_norm conditionally_mask "
        "conditionally_transform ema flatten freeze keep_params_nonnegative masked "
        "measure_with_ema monitor named_chain partition selective_transform skip_large_updates "
        "skip_not_finite snapshot trace zero_nans"
    ),
}


def public_names(
    package: str, suffix: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, the `__getattr__` and the `__dir__` of a package, or of a module.

    A name is an ordinary attribute once it has been asked for. A public name hides a module of the
    package that is called the same: `gradxform.optimizers.adam` is the function, also after a
    program has imported the module of this name.

    Args:
      package: its `__name__`.
      suffix: what may follow a name of a class, such as "Optimizer".
    """
    homes = homes_of(package)
    names = sorted(homes)
    states = [name for name in names if name.endswith("State") and name != "OptState"]
    public = [name for name in names if name not in states] + states
    forwards = FORWARDS.get(package, "").split()
    above = homes_of(_ROOT) if forwards else {}
    homes |= {name: above[name] for name in forwards}
    modules = [name for name, home in homes.items() if home == package]
    modules += PATHS.get(package, "").split()
    attributes = vars(sys.modules[package])
    for name in homes:  # when it is reloaded, names are looked up anew
        attributes.pop(name, None)
    sys.modules[package].__class__ = _Package
    attributes["_modules"] = frozenset(modules)

    def __getattr__(name: str) -> Any:
        short = name.removesuffix(suffix)
        if short != name and short[:1].isupper() and short in homes:
            name = short
        home = homes.get(name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if home is None:
            return _internal_or_optax(package, name, public)
        attribute = getattr(importlib.import_module(home), name)
        if package == _ROOT:
            _sign_lazily(attribute)
        attributes[name] = attribute
        return attribute

    def __dir__() -> list[str]:
        if not homes:  # all that it has is Optax's
            from gradxform._names.optax import names_of

            return names_of(package)
        own = [name for name in attributes if not public or name.startswith("__")]
        return [*own, *public, *forwards]

    return public, __getattr__, __dir__


def public_object(name: str) -> Any:
    """Return a public name of `gradxform`: how a module gets at what stands above it."""
    return getattr(importlib.import_module(homes_of(_ROOT)[name]), name)


class _Package(ModuleType):
    """A module of which those submodules only are attributes that the docs name as import paths.

    An import statement sets all that it loads, also in the place of a public name.
    """

    _modules: frozenset[str]

    def __setattr__(self, name: str, x: Any) -> None:
        is_internal = isinstance(x, ModuleType) and x.__name__.startswith(_ROOT)
        if not is_internal or name in self._modules or name.startswith("_"):
            super().__setattr__(name, x)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a package by its name, as cloudpickle does for modules of Python's own class."""
        return importlib.import_module, (self.__name__,)


def _internal_or_optax(package: str, name: str, public: list[str]) -> Any:
    """Return a module of a package, for an import statement, or a name of Optax.

    Raises:
      AttributeError: if there is none.
    """
    if name.startswith("_"):  # Python and others look for names that a module may have
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    full = f"{package}.{name}"
    # An import statement asks whether the module has the name, and tells nothing of an
    # AttributeError. What it raises itself has a suggestion only from Python 3.12 on.
    is_import = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    if is_import and "__path__" in vars(sys.modules[package]):
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:  # something that the module itself needs
                raise
    from gradxform._names.optax import missing_optax_name  # which needs JAX

    return missing_optax_name(package, name, public, is_import)


def _sign_lazily(attribute: Any) -> None:
    from gradxform._names.signatures import sign  # which needs JAX

    sign(attribute)
