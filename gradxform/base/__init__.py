"""The bases of transforms, `Transform` and `ArrayRule`, and questions that each can answer.

Rules, wrappers and the packages above import these names. The engine and the leaves are below.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.base.rule import (
        LOCALITIES as LOCALITIES,
        ArrayRule as ArrayRule,
        EmptyState as EmptyState,
        GradientTransformation as GradientTransformation,
        GradientTransformationExtraArgs as GradientTransformationExtraArgs,
        T as T,
        Transform as Transform,
        call_update as call_update,
        carried as carried,
        check_transform as check_transform,
        extra_names as extra_names,
        farthest as farthest,
        first_state_of as first_state_of,
        locality_of as locality_of,
        own_locality_of as own_locality_of,
        slots_with as slots_with,
        state_with as state_with,
        tell_moved as tell_moved,
        transform as transform,
        unwrapped as unwrapped,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
