"""A look before the leap: which names of Optax some Python files use, and what becomes of them.

The files are parsed, never run. Optax is not imported and need not be installed: what gradxform has
is looked up in its public modules, and what differs in the table of differences.
"""

from gradxform.port.files import Judged, Ported, PortError, port, python_files

__all__ = ["Judged", "PortError", "Ported", "port", "python_files"]
