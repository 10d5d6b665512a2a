"""The leaves of trees: paths, holes, masks, rows, stored arrays, and which fields are slots.

Everything above may import these names and the modules. Below are values and numerics.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.leaves.trees import (
        Aligned as Aligned,
        Path as Path,
        align as align,
        align_params as align_params,
        align_slot as align_slot,
        as_dtype as as_dtype,
        check_params as check_params,
        check_shapes as check_shapes,
        dtype_of as dtype_of,
        entry_name as entry_name,
        flatten_updates as flatten_updates,
        flatten_with_names as flatten_with_names,
        has_rows as has_rows,
        in_one_dtype as in_one_dtype,
        is_abstract as is_abstract,
        is_hole as is_hole,
        is_update_leaf as is_update_leaf,
        is_variable as is_variable,
        leaves_of as leaves_of,
        like_params as like_params,
        map_updates as map_updates,
        map_with_paths as map_with_paths,
        names_of as names_of,
        path_at as path_at,
        path_str as path_str,
        require_params as require_params,
        shape_of as shape_of,
        structure_of as structure_of,
        widest_dtype as widest_dtype,
        with_paths as with_paths,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
