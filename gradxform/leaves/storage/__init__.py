"""Forms in which a state keeps an array; `wrappers/stored/` chooses them."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.leaves.storage.blocks import (
        BlockForm as BlockForm,
        Blocks as Blocks,
        block_between_cuts as block_between_cuts,
    )
    from gradxform.leaves.storage.codes import (
        CODES as CODES,
        Code as Code,
        DynamicCode as DynamicCode,
        Float8Code as Float8Code,
        FloatCode as FloatCode,
        LinearCode as LinearCode,
        code_named as code_named,
    )
    from gradxform.leaves.storage.crossed import Crossed as Crossed
    from gradxform.leaves.storage.factored import (
        Factored as Factored,
        FactoredForm as FactoredForm,
        matrix_axes as matrix_axes,
    )
    from gradxform.leaves.storage.layers import (
        StackedLayer as StackedLayer,
        rows_of as rows_of,
        with_rows as with_rows,
    )
    from gradxform.leaves.storage.memory import (
        MEMORIES as MEMORIES,
        are_arrays_here as are_arrays_here,
        as_kept as as_kept,
        as_seen as as_seen,
        begun_anew as begun_anew,
        fetched as fetched,
        in_memory as in_memory,
        is_away as is_away,
        is_on_host as is_on_host,
        is_type_on_host as is_type_on_host,
        on_host as on_host,
        placed_like as placed_like,
        returned as returned,
    )
    from gradxform.leaves.storage.parameters import (
        Chance as Chance,
        Compensated as Compensated,
        Master as Master,
        NarrowForm as NarrowForm,
        NarrowParam as NarrowParam,
        Remainder as Remainder,
    )
    from gradxform.leaves.storage.rounded import Rounded as Rounded, rows_before as rows_before
    from gradxform.leaves.storage.stored import (
        Mean as Mean,
        StoredArray as StoredArray,
        has_stored as has_stored,
        is_stored as is_stored,
        with_parts as with_parts,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
