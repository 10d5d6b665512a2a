"""What answers to a name: parts, compositions of parts, and what other libraries have.

`compositions` and its families have the recipes of two parts or more that are asked for by a name.
`elsewhere.json` has the rows of the guides for users of other libraries; `make tables` writes it.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.commands.finding.answers import Answer as Answer, Found as Found
    from gradxform.commands.finding.lookup import find as find
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
