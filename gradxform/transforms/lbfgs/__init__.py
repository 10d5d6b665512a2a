"""L-BFGS with and without bounds, and line searches."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.transforms.lbfgs.lbfgs import (
        ScaleByLBFGSState as ScaleByLBFGSState,
        check_memory as check_memory,
        empty_memory as empty_memory,
        inner as inner,
        scale_by_lbfgs as scale_by_lbfgs,
        two_loops as two_loops,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
