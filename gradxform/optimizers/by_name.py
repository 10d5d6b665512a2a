"""All optimizers by name. Whoever asks for this table loads them all."""

import importlib
from collections.abc import Callable

from gradxform._names.table import NAMES
from gradxform.base import Transform
from gradxform.optimizers.optimizer import LOADED

__all__ = ["OPTIMIZERS"]

_FILES = [file for file in NAMES["gradxform.optimizers"] if file != __name__]
for _file in _FILES:
    importlib.import_module(_file)

# Every optimizer by name, as command lines and configs ask for it.
OPTIMIZERS: dict[str, Callable[..., Transform]] = {
    name: function
    for file in _FILES
    for name, function in LOADED.items()
    if function.__module__ == file
}
