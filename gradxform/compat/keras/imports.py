"""Imports of Keras 3 and h5py, which only some functions of `compat.keras` need."""

import importlib
from typing import Any

from gradxform.errors import name_of


def imported_from_keras(caller: str, module: str) -> Any:
    """Return a module of the extra `keras`.

    Raises:
      ImportError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # Keras without its backend
            raise ImportError(
                f"{caller}: {module} cannot be imported without {error.name!r}; set "
                "KERAS_BACKEND=jax in the environment before the first import of keras."
            ) from error
        raise ImportError(
            f"{caller}: {module} is not installed; install the extra, gradxform[keras]."
        ) from error


def keras_on_jax(caller: Any) -> Any:
    """Return the module `keras`.

    Raises:
      ImportError: if Keras 3 is not installed.
      RuntimeError: if its backend is not JAX.
    """
    caller = caller if isinstance(caller, str) else name_of(caller)
    keras = imported_from_keras(caller, "keras")
    if int(keras.__version__.partition(".")[0]) < 3:
        raise ImportError(f"{caller}: needs Keras 3, this is {keras.__version__}.")
    backend = keras.config.backend()
    if backend != "jax":
        raise RuntimeError(
            f"{caller}: Keras runs on the backend {backend!r}, only 'jax' runs these optimizers; "
            "set KERAS_BACKEND=jax in the environment before the first import of keras."
        )
    return keras
