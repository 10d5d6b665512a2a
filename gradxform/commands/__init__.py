"""The command line, `gradxform`: a module for each command, or for two that are alike."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.commands.run import main as main
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
