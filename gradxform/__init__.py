"""gradxform: composable gradient transformations for JAX.

You write the update rule for one array; gradxform gives you the optimizer.
"""

# Trees of arrays, under Optax's names.
from gradxform import tree as tree

# The core: what a transformation is, and how to write one.
from gradxform._version import __version__ as __version__
from gradxform.base import ArrayRule as ArrayRule
from gradxform.base import EmptyState as EmptyState
from gradxform.base import Transform as Transform
from gradxform.apply import apply_updates as apply_updates
from gradxform.apply import incremental_update as incremental_update
from gradxform.base import transform as transform
from gradxform.functions import GradientTransformation as GradientTransformation
from gradxform.functions import GradientTransformationExtraArgs as GradientTransformationExtraArgs
from gradxform.functions import identity as identity
from gradxform.functions import set_to_zero as set_to_zero
from gradxform.functions import stateless as stateless
from gradxform.functions import stateless_with_tree_map as stateless_with_tree_map
from gradxform.functions import with_extra_args_support as with_extra_args_support
from gradxform.lift import PerLeaf as PerLeaf
from gradxform.lift import global_norm as global_norm
from gradxform.numerics import safe_increment as safe_increment
from gradxform.types import MaskedNode as MaskedNode
from gradxform.types import OptState as OptState
from gradxform.types import Params as Params
from gradxform.types import ScalarOrSchedule as ScalarOrSchedule
from gradxform.types import Slot as Slot
from gradxform.types import SupportsTransform as SupportsTransform
from gradxform.types import Updates as Updates
from gradxform.values import Value as Value
from gradxform.registry import register as register
from gradxform.values import replace as replace
from gradxform.registry import value as value

# Masks.
from gradxform.masks import Mask as Mask
from gradxform.masks import all_of as all_of
from gradxform.masks import any_of as any_of
from gradxform.masks import label_by as label_by
from gradxform.masks import ndim_at_least as ndim_at_least
from gradxform.masks import none_of as none_of
from gradxform.masks import path_matches as path_matches

# Schedules.
from gradxform.schedules import Schedule as Schedule
from gradxform.schedules import as_schedule as as_schedule
from gradxform.schedules import constant_schedule as constant_schedule
from gradxform.schedules import cosine_decay_restarts as cosine_decay_restarts
from gradxform.schedules import cosine_decay_schedule as cosine_decay_schedule
from gradxform.schedules import cosine_onecycle_schedule as cosine_onecycle_schedule
from gradxform.schedules import cosine_sign_decay as cosine_sign_decay
from gradxform.schedules import exponential_decay as exponential_decay
from gradxform.schedules import inverse_time_decay as inverse_time_decay
from gradxform.schedules import join_schedules as join_schedules
from gradxform.schedules import linear_cosine_decay as linear_cosine_decay
from gradxform.schedules import linear_onecycle_schedule as linear_onecycle_schedule
from gradxform.schedules import linear_schedule as linear_schedule
from gradxform.schedules import linear_sign_decay as linear_sign_decay
from gradxform.schedules import natural_exp_decay as natural_exp_decay
from gradxform.schedules import piecewise_constant_schedule as piecewise_constant_schedule
from gradxform.schedules import piecewise_interpolate_schedule as piecewise_interpolate_schedule
from gradxform.schedules import polynomial_schedule as polynomial_schedule
from gradxform.schedules import restart_sign_decay as restart_sign_decay
from gradxform.schedules import sgdr_schedule as sgdr_schedule
from gradxform.schedules import warmup_constant_schedule as warmup_constant_schedule
from gradxform.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from gradxform.schedules import (
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)

# Transforms.
from gradxform.transforms.adaptive import ScaleByAdamState as ScaleByAdamState
from gradxform.transforms.adaptive import ScaleByAmsgradState as ScaleByAmsgradState
from gradxform.transforms.adaptive import ScaleByRmsState as ScaleByRmsState
from gradxform.transforms.adaptive import ScaleByRssState as ScaleByRssState
from gradxform.transforms.adaptive import ScaleByRStdDevState as ScaleByRStdDevState
from gradxform.transforms.adaptive import scale_by_adam as scale_by_adam
from gradxform.transforms.adaptive import scale_by_amsgrad as scale_by_amsgrad
from gradxform.transforms.adaptive import scale_by_rms as scale_by_rms
from gradxform.transforms.adaptive import scale_by_rss as scale_by_rss
from gradxform.transforms.adaptive import scale_by_stddev as scale_by_stddev
from gradxform.transforms.clipping import adaptive_grad_clip as adaptive_grad_clip
from gradxform.transforms.clipping import clip as clip
from gradxform.transforms.clipping import clip_by_block_rms as clip_by_block_rms
from gradxform.transforms.clipping import clip_by_global_norm as clip_by_global_norm
from gradxform.transforms.constraining import NonNegativeParamsState as NonNegativeParamsState
from gradxform.transforms.constraining import ZeroNansState as ZeroNansState
from gradxform.transforms.constraining import keep_params_nonnegative as keep_params_nonnegative
from gradxform.transforms.constraining import zero_nans as zero_nans
from gradxform.transforms.momentum import EmaState as EmaState
from gradxform.transforms.momentum import TraceState as TraceState
from gradxform.transforms.momentum import ema as ema
from gradxform.transforms.momentum import trace as trace
from gradxform.transforms.noise import AddNoiseState as AddNoiseState
from gradxform.transforms.noise import add_noise as add_noise
from gradxform.transforms.normalizing import centralize as centralize
from gradxform.transforms.normalizing import normalize_by_update_norm as normalize_by_update_norm
from gradxform.transforms.normalizing import scale_by_trust_ratio as scale_by_trust_ratio
from gradxform.transforms.scaling import ScaleByScheduleState as ScaleByScheduleState
from gradxform.transforms.scaling import ScaleState as ScaleState
from gradxform.transforms.scaling import WeightDecaySchedule as WeightDecaySchedule
from gradxform.transforms.scaling import add_decayed_weights as add_decayed_weights
from gradxform.transforms.scaling import scale as scale
from gradxform.transforms.scaling import scale_by_learning_rate as scale_by_learning_rate
from gradxform.transforms.scaling import scale_by_schedule as scale_by_schedule
from gradxform.transforms.sign import ScaleByLionState as ScaleByLionState
from gradxform.transforms.sign import scale_by_lion as scale_by_lion
from gradxform.transforms.sign import scale_by_sign as scale_by_sign

# Wrappers.
from gradxform.wrappers.accumulate import MultiSteps as MultiSteps
from gradxform.wrappers.accumulate import MultiStepsState as MultiStepsState
from gradxform.wrappers.average import LookaheadParams as LookaheadParams
from gradxform.wrappers.average import LookaheadState as LookaheadState
from gradxform.wrappers.average import lookahead as lookahead
from gradxform.wrappers.compose import chain as chain
from gradxform.wrappers.compose import named_chain as named_chain
from gradxform.wrappers.guard import ApplyIfFiniteState as ApplyIfFiniteState
from gradxform.wrappers.guard import all_finite as all_finite
from gradxform.wrappers.guard import apply_if_finite as apply_if_finite
from gradxform.wrappers.guard import skip_large_updates as skip_large_updates
from gradxform.wrappers.guard import skip_not_finite as skip_not_finite
from gradxform.wrappers.select import MaskedState as MaskedState
from gradxform.wrappers.select import MultiTransformState as MultiTransformState
from gradxform.wrappers.select import PartitionState as PartitionState
from gradxform.wrappers.select import masked as masked
from gradxform.wrappers.select import multi_transform as multi_transform
from gradxform.wrappers.select import partition as partition
from gradxform.wrappers.tune import (
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
)
from gradxform.wrappers.tune import inject_hyperparams as inject_hyperparams

# Optimizers.
from gradxform.optimizers import OPTIMIZERS as OPTIMIZERS
from gradxform.optimizers import adagrad as adagrad
from gradxform.optimizers import adam as adam
from gradxform.optimizers import adamw as adamw
from gradxform.optimizers import amsgrad as amsgrad
from gradxform.optimizers import lamb as lamb
from gradxform.optimizers import lars as lars
from gradxform.optimizers import lion as lion
from gradxform.optimizers import nadam as nadam
from gradxform.optimizers import nadamw as nadamw
from gradxform.optimizers import optimizer as optimizer
from gradxform.optimizers import rmsprop as rmsprop
from gradxform.optimizers import sgd as sgd
from gradxform.optimizers import signum as signum

# Configs, and bridges to other libraries.
from gradxform.config import from_config as from_config
from gradxform.config import from_json as from_json
from gradxform.config import to_config as to_config
from gradxform.config import to_json as to_json
from gradxform.interop import as_optax as as_optax
