"""gradxform: composable gradient transformations for JAX.

You write the update rule for one array; gradxform gives you the optimizer.
"""

import typing as _typing

from gradxform import schedules as schedules, transforms as transforms
from gradxform._version import __version__ as __version__
from gradxform.apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from gradxform.base import (
    ArrayRule as ArrayRule,
    EmptyState as EmptyState,
    Transform as Transform,
    transform as transform,
)
from gradxform.distributions import multi_normal as multi_normal
from gradxform.engine import PerLeaf as PerLeaf, global_norm as global_norm
from gradxform.fields import value as value
from gradxform.gradients import (
    scale_gradient as scale_gradient,
    value_and_grad_from_state as value_and_grad_from_state,
)
from gradxform.interop import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    AddDecayedWeightsState as AddDecayedWeightsState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    NormalizeState as NormalizeState,
    ScaleByTrustRatioState as ScaleByTrustRatioState,
    identity as identity,
    init_empty_state as init_empty_state,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
    with_extra_args_support as with_extra_args_support,
)
from gradxform.iterations import (
    matrix_inverse_pth_root as matrix_inverse_pth_root,
    nnls as nnls,
    power_iteration as power_iteration,
)
from gradxform.masks import (
    Mask as Mask,
    all_of as all_of,
    any_of as any_of,
    label_by as label_by,
    ndim_at_least as ndim_at_least,
    none_of as none_of,
    path_matches as path_matches,
)
from gradxform.microbatching import microbatch as microbatch
from gradxform.norms import (
    safe_norm as safe_norm,
    safe_root_mean_squares as safe_root_mean_squares,
)
from gradxform.numerics import (
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
)
from gradxform.optimizers import *
from gradxform.registry import close_package as _close_package, register as register
from gradxform.row_sparse import RowSparse as RowSparse
from gradxform.schedules import *
from gradxform.signatures import sign as _sign
from gradxform.transforms import *
from gradxform.tree import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from gradxform.tree_utils import tree_map_params as tree_map_params
from gradxform.types import (
    ConditionFn as ConditionFn,
    MaskedNode as MaskedNode,
    MaskOrFn as MaskOrFn,
    MatrixSlot as MatrixSlot,
    NonNegativeSlot as NonNegativeSlot,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    Slot as Slot,
    SupportsTransform as SupportsTransform,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
)
from gradxform.values import Value as Value, replace as replace
from gradxform.wrappers import *

# What stands on the floors above these.
from gradxform import (  # isort: skip
    compat as compat,
    contrib as contrib,
    distributed as distributed,
    experimental as experimental,
    interop as interop,
    linalg as linalg,
    microbatching as microbatching,
    numerics as numerics,
    plot as plot,
    projections as projections,
    slots as slots,
    sparse as sparse,
    testing as testing,
    tree as tree,
    tree_utils as tree_utils,
    types as types,
)
from gradxform.config import (
    from_config as from_config,
    from_json as from_json,
    to_config as to_config,
    to_json as to_json,
)
from gradxform.describe import Description as Description, describe as describe
from gradxform.learning_rate import (
    current_learning_rate as current_learning_rate,
    current_learning_rates as current_learning_rates,
)
from gradxform.metrics import current_step as current_step, metrics as metrics
from gradxform.migration import (
    MigratedSlot as MigratedSlot,
    MigrationReport as MigrationReport,
    migrate_state as migrate_state,
)
from gradxform.optax_states import (
    as_optax as as_optax,
    from_optax_state as from_optax_state,
    to_optax_state as to_optax_state,
)
from gradxform.slot_names import get_slots as get_slots, set_slots as set_slots
from gradxform.training import (
    MinimizeResult as MinimizeResult,
    Optimizer as Optimizer,
    apply_gradients as apply_gradients,
    compute_gradients as compute_gradients,
    make_step as make_step,
    minimize as minimize,
)

if not _typing.TYPE_CHECKING:  # a checker must still see that `gradxform.adma` does not exist
    from gradxform.forwards import names_from_optax as _names_from_optax

    __getattr__ = _names_from_optax(__name__)

# By subject, each in alphabetical order. `close_package` adds the names that come with a star,
# and puts the states last.
_BY_SUBJECT = [
    # what a transformation is
    "ArrayRule",
    "EmptyState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "MatrixRule",
    "PerLeaf",
    "Transform",
    "Value",
    "register",
    "replace",
    "transform",
    "value",
    "with_extra_args_support",
    # gradients of a batch in parts
    "microbatch",
    # applying updates
    "apply_updates",
    "incremental_update",
    "periodic_update",
    # training as in TensorFlow and Keras
    "Optimizer",
    "apply_gradients",
    "compute_gradients",
    "make_step",
    # a function, minimized in one loop
    "MinimizeResult",
    "minimize",
    # the simplest transforms
    "identity",
    "init_empty_state",
    "set_to_zero",
    "stateless",
    "stateless_with_tree_map",
    # arithmetic
    "bias_correction",
    "global_norm",
    "matrix_inverse_pth_root",
    "multi_normal",
    "nnls",
    "power_iteration",
    "safe_increment",
    "safe_int32_increment",
    "safe_norm",
    "safe_root_mean_squares",
    "scale_gradient",
    "tree_map_params",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "value_and_grad_from_state",
    # types
    "ConditionFn",
    "MaskOrFn",
    "MaskedNode",
    "MatrixSlot",
    "NonNegativeSlot",
    "OptState",
    "Params",
    "RowSparse",
    "ScalarOrSchedule",
    "ShouldSkipUpdateFunction",
    "Slot",
    "SupportsTransform",
    "TransformInitFn",
    "TransformUpdateExtraArgsFn",
    "TransformUpdateFn",
    "Updates",
    # masks
    "Mask",
    "all_of",
    "any_of",
    "label_by",
    "ndim_at_least",
    "none_of",
    "path_matches",
    # what a state says
    "current_learning_rate",
    "current_learning_rates",
    "current_step",
    "get_slots",
    "metrics",
    "set_slots",
    # plain data, descriptions, other optimizers, Optax
    "Description",
    "MigratedSlot",
    "MigrationReport",
    "as_optax",
    "describe",
    "from_config",
    "from_json",
    "from_optax_state",
    "migrate_state",
    "to_config",
    "to_json",
    "to_optax_state",
    # modules
    "compat",
    "contrib",
    "distributed",
    "experimental",
    "interop",
    "linalg",
    "microbatching",
    "numerics",
    "plot",
    "projections",
    "schedules",
    "slots",
    "sparse",
    "testing",
    "transforms",
    "tree",
    "tree_utils",
    "types",
    # states of parts without any
    "AdaptiveGradClipState",
    "AddDecayedWeightsState",
    "ClipByGlobalNormState",
    "ClipState",
    "NormalizeState",
    "ScaleByTrustRatioState",
]

_close_package(__name__, _BY_SUBJECT)
_sign(globals()[name] for name in vars()["__all__"])
