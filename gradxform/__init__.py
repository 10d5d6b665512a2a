"""gradxform: composable gradient transformations for JAX.

You write the update rule for one array; gradxform gives you the optimizer.
"""

from typing import TYPE_CHECKING

from gradxform._names import jax_first as _jax_first
from gradxform._names.lazy import public_names as _public_names
from gradxform._names.version import __version__ as __version__

_jax_first.install()

# What is public. It is loaded when somebody asks for it: the table in `_names/table.py`, which
# `make tables` writes, has the same names.
if TYPE_CHECKING:
    from gradxform import (
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
        schedules as schedules,
        slots as slots,
        sparse as sparse,
        testing as testing,
        transforms as transforms,
        tree as tree,
        tree_utils as tree_utils,
        types as types,
    )
    from gradxform.base import (
        ArrayRule as ArrayRule,
        EmptyState as EmptyState,
        Transform as Transform,
        transform as transform,
    )
    from gradxform.commands import port as port
    from gradxform.commands.finding import find as find
    from gradxform.compat.returnn.raw_gradients import *
    from gradxform.engine import PerLeaf as PerLeaf, global_norm as global_norm
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
    from gradxform.leaves.masks import (
        Mask as Mask,
        all_of as all_of,
        any_of as any_of,
        label_by as label_by,
        ndim_at_least as ndim_at_least,
        none_of as none_of,
        path_matches as path_matches,
    )
    from gradxform.leaves.row_sparse import RowSparse as RowSparse
    from gradxform.linalg import curvature as curvature
    from gradxform.linalg.iterations import (
        matrix_inverse_pth_root as matrix_inverse_pth_root,
        nnls as nnls,
        power_iteration as power_iteration,
    )
    from gradxform.linalg.norms import (
        safe_norm as safe_norm,
        safe_root_mean_squares as safe_root_mean_squares,
    )
    from gradxform.microbatching import microbatch as microbatch
    from gradxform.numerics import (
        safe_increment as safe_increment,
        safe_int32_increment as safe_int32_increment,
    )
    from gradxform.optimizers import *
    from gradxform.projections import polytopes as polytopes
    from gradxform.run_states.learning_rate import (
        current_learning_rate as current_learning_rate,
        current_learning_rates as current_learning_rates,
    )
    from gradxform.run_states.metrics import current_step as current_step, metrics as metrics
    from gradxform.run_states.migration import (
        MigratedSlot as MigratedSlot,
        MigrationReport as MigrationReport,
        migrate_state as migrate_state,
    )
    from gradxform.run_states.optax import (
        as_optax as as_optax,
        from_optax_state as from_optax_state,
        to_optax_state as to_optax_state,
    )
    from gradxform.run_states.optax_closures import as_optax_closures as as_optax_closures
    from gradxform.run_states.reset import reset_slots as reset_slots
    from gradxform.run_states.slot_names import get_slots as get_slots, set_slots as set_slots
    from gradxform.schedules import *
    from gradxform.tables.describe import Description as Description, describe as describe
    from gradxform.training import (
        MinimizeResult as MinimizeResult,
        Optimizer as Optimizer,
        apply_gradients as apply_gradients,
        compute_gradients as compute_gradients,
        make_step as make_step,
        minimize as minimize,
        scan_layers as scan_layers,
    )
    from gradxform.training.derivatives import (
        scale_gradient as scale_gradient,
        value_and_grad_from_state as value_and_grad_from_state,
    )
    from gradxform.training.distributions import multi_normal as multi_normal
    from gradxform.transforms import *
    from gradxform.tree import (
        bias_correction as bias_correction,
        update_infinity_moment as update_infinity_moment,
        update_moment as update_moment,
        update_moment_per_elem_norm as update_moment_per_elem_norm,
    )
    from gradxform.tree.apply import (
        apply_updates as apply_updates,
        incremental_update as incremental_update,
        periodic_update as periodic_update,
    )
    from gradxform.tree_utils import tree_map_params as tree_map_params
    from gradxform.types import (
        ArrayTree as ArrayTree,
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
    from gradxform.values.config import (
        from_config as from_config,
        from_json as from_json,
        to_config as to_config,
        to_json as to_json,
    )
    from gradxform.values.fields import value as value
    from gradxform.values.registry import register as register
    from gradxform.wrappers import *
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
