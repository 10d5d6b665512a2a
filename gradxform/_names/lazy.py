"""Packages that load their public names when somebody asks for them (PEP 562).

Whatever a package or module offers that it does not define comes through `public_names`:

- the names that `table.py` has for it. It is written by `make tables`, from what the `__init__.py`
  of each package imports for type checkers, and from the `__all__` of the files;
- names of `gradxform` that stand in `FORWARDS`;
- the modules in it, when they are named;
- what `optax.py` looks up in the installed Optax.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gradxform._names.table import NAMES

_ROOT = "gradxform"

# Names of `gradxform` that others have as well, where Optax has them or where they were, but not in
# their `__all__`: they stand on higher floors.
FORWARDS = {
    "gradxform.interop": "as_optax from_optax_state to_optax_state",
    "gradxform.schedules": (
        "InjectHyperparamsState InjectStatefulHyperparamsState inject_hyperparams "
        "inject_stateful_hyperparams"
    ),
    "gradxform.transforms": (
        "AddTruncatedNoiseState add_truncated_noise clip_by_mean_norm clip_by_raw_norm "
        "zero_above_raw_norm zero_non_finite AddNoiseState ApplyIfFiniteState ConditionFn "
        "ConditionallyMaskState ConditionallyTransformState EmaState MaskedNode MaskedState "
        "MonitorState MultiSteps MultiStepsState NonNegativeParamsState PartitionState "
        "ShouldSkipUpdateFunction SnapshotState TraceState ZeroNansState adaptive_grad_clip "
        "add_decayed_weights add_noise apply_if_finite chain clip clip_by_block_rms "
        "clip_by_global_norm conditionally_mask conditionally_transform ema flatten freeze "
        "keep_params_nonnegative masked measure_with_ema monitor named_chain partition "
        "selective_transform skip_large_updates skip_not_finite snapshot trace zero_nans"
    ),
    "gradxform.wrappers": "RawGradientNormsState raw_gradient_norms",
}


def homes_of(package: str) -> dict[str, str]:
    """Return the public names of a package, each with the module that has it.

    A module of the package that is public itself has the package as its home.
    """
    homes = {}
    for module, names in NAMES.get(package, {}).items():
        if names == "*":  # all names of another package
            homes |= homes_of(module)
        else:
            homes |= dict.fromkeys(names.split(), module)
    return homes


def public_names(
    package: str, suffix: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, the `__getattr__` and the `__dir__` of a package, or of a module.

    A name is an ordinary attribute once it has been asked for. A public name hides a module of the
    package that is called the same: `gradxform.metrics` is the function, also after a program has
    imported the module of this name.

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
    hides = {name for name, home in homes.items() if home != package}
    attributes = vars(sys.modules[package])
    for name in homes:  # when it is reloaded, names are looked up anew
        attributes.pop(name, None)
    sys.modules[package].__class__ = _LazyPackage
    attributes["_hides"] = frozenset(hides)

    def __getattr__(name: str) -> Any:
        short = name.removesuffix(suffix)
        if short != name and short[:1].isupper() and short in homes:
            name = short
        home = homes.get(name)
        if home is None or home == package:
            return _lazy_submodule(package, name, public)
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


class _LazyPackage(ModuleType):
    """A module whose public names are not replaced by its submodules when these are imported."""

    _hides: frozenset[str]

    def __setattr__(self, name: str, x: Any) -> None:
        if not (isinstance(x, ModuleType) and name in self._hides):
            super().__setattr__(name, x)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a package by its name, as cloudpickle does for modules of Python's own class."""
        return importlib.import_module, (self.__name__,)


def _lazy_submodule(package: str, name: str, public: list[str]) -> Any:
    """Return a module of a package, which is loaded now, or else a name of Optax.

    Raises:
      AttributeError: if there is none.
    """
    if name.startswith("_"):  # Python and others look for names that a module may have
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    full = f"{package}.{name}"
    if "__path__" in vars(sys.modules[package]):
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:  # something that the module itself needs
                raise
    from gradxform._names.optax import missing_optax_name  # which needs JAX

    # An import statement asks whether the module has the name, and tells nothing of an
    # AttributeError. What it raises itself has a suggestion only from Python 3.12 on.
    is_import = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return missing_optax_name(package, name, public, is_import)


def _sign_lazily(attribute: Any) -> None:
    from gradxform._names.signatures import sign  # which needs JAX

    sign(attribute)
