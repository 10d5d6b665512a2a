"""Tree utilities: arithmetic on whole trees, and parts of states by name or like the parameters.

The names and arguments are those of `optax.tree`.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.tree.arithmetic import (
        add as add,
        add_scale as add_scale,
        allclose as allclose,
        batch_shape as batch_shape,
        bias_correction as bias_correction,
        cast as cast,
        cast_like as cast_like,
        clip as clip,
        conj as conj,
        div as div,
        dtype as dtype,
        full_like as full_like,
        max as max,
        min as min,
        mul as mul,
        norm as norm,
        ones_like as ones_like,
        random_like as random_like,
        real as real,
        scale as scale,
        size as size,
        split_key_like as split_key_like,
        sub as sub,
        sum as sum,
        unwrap_random_key_data as unwrap_random_key_data,
        update_infinity_moment as update_infinity_moment,
        update_moment as update_moment,
        update_moment_per_elem_norm as update_moment_per_elem_norm,
        vdot as vdot,
        where as where,
        zeros_like as zeros_like,
    )
    from gradxform.tree.params_in_state import map_params as map_params
    from gradxform.tree.state import (
        NamedTupleKey as NamedTupleKey,
        get as get,
        get_all_with_path as get_all_with_path,
        set as set,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
