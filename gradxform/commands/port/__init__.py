"""A look before the leap: which names of Optax some files use, and what becomes of them.

Python files and notebooks are parsed, never run. Optax is not imported and need not be installed:
what gradxform has is looked up in its public modules, and what differs in the table of differences.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.commands.port.files import (
        Judged as Judged,
        Ported as Ported,
        port as port,
        python_files as python_files,
    )
    from gradxform.commands.port.syntax import PortError as PortError
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
