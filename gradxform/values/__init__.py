"""Values: compared by their fields, hashed, printed, written as JSON, found by a name.

Everything above may import these names and the modules.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.values.value import (
        FrozenTree as FrozenTree,
        Hole as Hole,
        T as T,
        Value as Value,
        as_dicts as as_dicts,
        as_node as as_node,
        call_name as call_name,
        fields_of as fields_of,
        frozen as frozen,
        is_function as is_function,
        is_live as is_live,
        keeping_arrays as keeping_arrays,
        keeps_arrays as keeps_arrays,
        key_of as key_of,
        normal as normal,
        printed as printed,
        put_live as put_live,
        rebuild as rebuild,
        replace as replace,
        take_live as take_live,
        thawed as thawed,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
