"""Numbers: dtypes, quotients that are defined, roots with a derivative, sums next to the largest.

Everything above may import these names and the modules. Below are errors and types.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.numerics.numbers import (
        ScheduleError as ScheduleError,
        abs_sq as abs_sq,
        add as add,
        as_flag as as_flag,
        as_number as as_number,
        as_rounded as as_rounded,
        as_step as as_step,
        at_least_float32 as at_least_float32,
        bias_correction as bias_correction,
        cast as cast,
        count_and_debias as count_and_debias,
        has_64_bits as has_64_bits,
        is_zero as is_zero,
        looked_up as looked_up,
        not_zero as not_zero,
        number_rank as number_rank,
        over as over,
        plus as plus,
        promote as promote,
        real_dtype as real_dtype,
        safe_increment as safe_increment,
        safe_int32_increment as safe_int32_increment,
        same_bits as same_bits,
        scalar as scalar,
        scalar_dtype as scalar_dtype,
        scalars_as as scalars_as,
        shrinking as shrinking,
        squarable as squarable,
        sum_as_first as sum_as_first,
        taming as taming,
        times as times,
        value_at as value_at,
        within as within,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
