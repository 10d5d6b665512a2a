"""Names of Optax that are not transforms of its gradients, looked up in the installed Optax.

`gradxform.huber_loss` is `optax.huber_loss`, so that a program can change its import and go on. The
lookup happens on first use: gradxform does not need Optax. `dir` and star imports show only what is
gradxform's own.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from gradxform._names.guesses import suggestion
from gradxform._names.homes import PATHS, homes_of
from gradxform.errors import did_you_mean

# Modules that are Optax's as a whole; each has a file of that name here.
MODULES = frozenset(PATHS["gradxform"].split())

# Names of `optax` that are looked up there.
NAMES = frozenset(
    {
        # losses
        "convex_kl_divergence",
        "cosine_distance",
        "cosine_similarity",
        "ctc_loss",
        "ctc_loss_with_forward_probs",
        "generalized_kl_divergence",
        "hinge_loss",
        "huber_loss",
        "kl_divergence",
        "l2_loss",
        "log_cosh",
        "ntxent",
        "safe_softmax_cross_entropy",
        "sigmoid_binary_cross_entropy",
        "sigmoid_focal_loss",
        "smooth_labels",
        "softmax_cross_entropy",
        "softmax_cross_entropy_with_integer_labels",
        "squared_error",
    }
)


def missing_optax_name(package: str, name: str, public: list[str], is_import: bool = False) -> Any:
    """Return a name of Optax that a package does not have: one of `NAMES`, or any in `MODULES`.

    Args:
      package: its `__name__`.
      name: the name.
      public: the names that it has, to suggest one for a misspelt name.
      is_import: whether an import statement asks for the name.

    Raises:
      AttributeError: if Optax is not asked for it, or does not have it.
      ImportError: the same, in an import statement.
    """
    module = package.rpartition(".")[2]
    if module in MODULES:
        return _looked_up(package, _installed(package, f"optax.{module}"), name)
    if package == "gradxform":
        if name in NAMES:
            return _looked_up(f"{package}.{name}", _installed(f"{package}.{name}"), name)
        public = [*public, *NAMES, *MODULES]
        for other in ("distributed", "sparse"):
            public += [f"{other}.{k}" for k in homes_of(f"gradxform.{other}") if k not in public]
    if is_import:
        path = sys.modules[package].__file__
        raise ImportError(
            f"cannot import name {name!r} from {package!r} ({path}).{suggestion(name, public)}",
            name=package,
            path=path,
        )
    raise NoSuchName(package, name, public)


def names_of(package: str) -> list[str]:
    """Return the public names of a module that is Optax's module of that name."""
    theirs = _installed(package, f"optax.{package.rpartition('.')[2]}")
    return [name for name in dir(theirs) if not name.startswith("_")]


def _installed(what: str, module: str = "optax") -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("optax", module):  # something that Optax itself needs
            raise
        raise ModuleNotFoundError(
            f"{what} is Optax's: install Optax to use it (pip install optax).", name=error.name
        ) from None


def _looked_up(what: str, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        pass
    public = [word for word in dir(module) if not word.startswith("_")]
    raise AttributeError(
        f"{what} is looked up in the installed Optax, and module {module.__name__!r} has no "
        f"attribute {name!r}.{did_you_mean(name, public)}",
        name=name,
        obj=None,  # as in `NoSuchName`
    )


class NoSuchName(AttributeError):
    """A name that a module does not have, with a suggestion, which is sought when it is printed.

    Import statements ask for a name before they look for a module, and drop the error. Python adds
    a suggestion of its own to an error that is not caught: the nearest attribute of `obj`. This
    error has suggested one already, so that its `obj` is None.
    """

    def __init__(self, module: str, name: str, known: list[str]) -> None:
        super().__init__(name=name, obj=None)
        self._module, self._known = module, known

    def __str__(self) -> str:
        text = f"module {self._module!r} has no attribute {self.name!r}."
        if f"{self._module}.{self.name}" in sys.modules:
            text += (
                f" It has a module of that name that is not public, which "
                f"`from {self._module} import {self.name}` imports."
            )
        return text + suggestion(str(self.name), self._known)

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)


# Tracebacks show it as what it is to its users.
NoSuchName.__module__, NoSuchName.__qualname__ = "builtins", "AttributeError"
