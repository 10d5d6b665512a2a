"""gradxform: composable gradient transformations for JAX.

You write the update rule for one array; gradxform gives you the optimizer.
"""

# Trees of arrays, under Optax's names.
from gradxform import tree as tree
from gradxform import tree_utils as tree_utils
from gradxform.tree import bias_correction as bias_correction
from gradxform.tree import update_infinity_moment as update_infinity_moment
from gradxform.tree import update_moment as update_moment
from gradxform.tree import update_moment_per_elem_norm as update_moment_per_elem_norm
from gradxform.tree_utils import tree_map_params as tree_map_params

# The core: what a transformation is, and how to write one.
from gradxform._version import __version__ as __version__
from gradxform.base import ArrayRule as ArrayRule
from gradxform.base import EmptyState as EmptyState
from gradxform.base import Transform as Transform
from gradxform.apply import apply_updates as apply_updates
from gradxform.apply import incremental_update as incremental_update
from gradxform.apply import periodic_update as periodic_update
from gradxform.base import transform as transform
from gradxform.functions import GradientTransformation as GradientTransformation
from gradxform.functions import GradientTransformationExtraArgs as GradientTransformationExtraArgs
from gradxform.functions import identity as identity
from gradxform.functions import init_empty_state as init_empty_state
from gradxform.functions import set_to_zero as set_to_zero
from gradxform.functions import stateless as stateless
from gradxform.functions import stateless_with_tree_map as stateless_with_tree_map
from gradxform.functions import with_extra_args_support as with_extra_args_support
from gradxform.functions import AdaptiveGradClipState as AdaptiveGradClipState
from gradxform.functions import AddDecayedWeightsState as AddDecayedWeightsState
from gradxform.functions import ClipByGlobalNormState as ClipByGlobalNormState
from gradxform.functions import ClipState as ClipState
from gradxform.functions import ScaleByTrustRatioState as ScaleByTrustRatioState
from gradxform.lift import PerLeaf as PerLeaf
from gradxform.lift import global_norm as global_norm
from gradxform.numerics import safe_increment as safe_increment
from gradxform.numerics import safe_int32_increment as safe_int32_increment
from gradxform.types import MaskedNode as MaskedNode
from gradxform.types import MaskOrFn as MaskOrFn
from gradxform.types import OptState as OptState
from gradxform.types import Params as Params
from gradxform.types import ScalarOrSchedule as ScalarOrSchedule
from gradxform.types import ShouldSkipUpdateFunction as ShouldSkipUpdateFunction
from gradxform.types import Slot as Slot
from gradxform.types import SupportsTransform as SupportsTransform
from gradxform.types import TransformInitFn as TransformInitFn
from gradxform.types import TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn
from gradxform.types import TransformUpdateFn as TransformUpdateFn
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
from gradxform import schedules as schedules
from gradxform.schedules import Schedule as Schedule
from gradxform.schedules import as_schedule as as_schedule
from gradxform.schedules import constant_schedule as constant_schedule
from gradxform.schedules import cosine_decay_restarts as cosine_decay_restarts
from gradxform.schedules import cosine_decay_schedule as cosine_decay_schedule
from gradxform.schedules import cosine_onecycle_schedule as cosine_onecycle_schedule
from gradxform.schedules import cosine_sign_decay as cosine_sign_decay
from gradxform.schedules import exponential_decay as exponential_decay
from gradxform.schedules import inverse_sqrt_decay as inverse_sqrt_decay
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
from gradxform.schedules import product_schedule as product_schedule
from gradxform.schedules import restart_sign_decay as restart_sign_decay
from gradxform.schedules import sgdr_schedule as sgdr_schedule
from gradxform.schedules import warmup_constant_schedule as warmup_constant_schedule
from gradxform.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from gradxform.schedules import (
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)

# Row-sparse gradients.
from gradxform import sparse as sparse
from gradxform.rowsparse import RowSparse as RowSparse
from gradxform.transforms.densify import densify as densify
from gradxform.wrappers.rows import only_dense as only_dense
from gradxform.wrappers.rows import only_rows as only_rows
from gradxform.wrappers.rows import sparse_semantics as sparse_semantics

# Transforms.
from gradxform import transforms as transforms
from gradxform.transforms.adam import ScaleByAdamState as ScaleByAdamState
from gradxform.transforms.adam import ScaleByAmsgradState as ScaleByAmsgradState
from gradxform.transforms.adam import ScaleByNadamState as ScaleByNadamState
from gradxform.transforms.adam import scale_by_adam as scale_by_adam
from gradxform.transforms.adam import scale_by_amsgrad as scale_by_amsgrad
from gradxform.transforms.adam import scale_by_nadam as scale_by_nadam
from gradxform.transforms.adaptive import ScaleByRmsState as ScaleByRmsState
from gradxform.transforms.adaptive import ScaleByRssState as ScaleByRssState
from gradxform.transforms.adaptive import ScaleByRStdDevState as ScaleByRStdDevState
from gradxform.transforms.adaptive import scale_by_rms as scale_by_rms
from gradxform.transforms.adaptive import scale_by_rss as scale_by_rss
from gradxform.transforms.adaptive import scale_by_stddev as scale_by_stddev
from gradxform.transforms.agreement import ScaleByAgreementState as ScaleByAgreementState
from gradxform.transforms.agreement import ScaleByGradVarianceState as ScaleByGradVarianceState
from gradxform.transforms.agreement import scale_by_add_sign as scale_by_add_sign
from gradxform.transforms.agreement import scale_by_grad_variance as scale_by_grad_variance
from gradxform.transforms.agreement import scale_by_power_sign as scale_by_power_sign
from gradxform.transforms.agreement import scale_by_sign_agreement as scale_by_sign_agreement
from gradxform.transforms.clipping import adaptive_grad_clip as adaptive_grad_clip
from gradxform.transforms.clipping import clip as clip
from gradxform.transforms.clipping import clip_by_block_norm as clip_by_block_norm
from gradxform.transforms.clipping import clip_by_block_rms as clip_by_block_rms
from gradxform.transforms.clipping import clip_by_global_norm as clip_by_global_norm
from gradxform.transforms.constraining import NonNegativeParamsState as NonNegativeParamsState
from gradxform.transforms.constraining import ZeroNansState as ZeroNansState
from gradxform.transforms.constraining import keep_params_nonnegative as keep_params_nonnegative
from gradxform.transforms.constraining import zero_nans as zero_nans
from gradxform.transforms.lazy import ScaleByAdamCatchingUpState as ScaleByAdamCatchingUpState
from gradxform.transforms.lazy import ScaleByRowwiseRssState as ScaleByRowwiseRssState
from gradxform.transforms.lazy import scale_by_adam_catching_up as scale_by_adam_catching_up
from gradxform.transforms.lazy import scale_by_rowwise_rss as scale_by_rowwise_rss
from gradxform.transforms.momentum import EmaState as EmaState
from gradxform.transforms.momentum import TraceState as TraceState
from gradxform.transforms.momentum import ema as ema
from gradxform.transforms.momentum import trace as trace
from gradxform.transforms.noise import AddNoiseState as AddNoiseState
from gradxform.transforms.noise import add_noise as add_noise
from gradxform.transforms.normalizing import centralize as centralize
from gradxform.transforms.normalizing import normalize_by_block_norm as normalize_by_block_norm
from gradxform.transforms.normalizing import normalize_by_update_norm as normalize_by_update_norm
from gradxform.transforms.normalizing import scale_by_trust_ratio as scale_by_trust_ratio
from gradxform.transforms.proximal import AdagradDAState as AdagradDAState
from gradxform.transforms.proximal import FtrlState as FtrlState
from gradxform.transforms.proximal import ProximalAdagradState as ProximalAdagradState
from gradxform.transforms.proximal import ProximalGradientState as ProximalGradientState
from gradxform.transforms.proximal import step_by_dual_averaging as step_by_dual_averaging
from gradxform.transforms.proximal import step_by_ftrl as step_by_ftrl
from gradxform.transforms.proximal import step_by_proximal_adagrad as step_by_proximal_adagrad
from gradxform.transforms.proximal import step_by_proximal_gradient as step_by_proximal_gradient
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
from gradxform.transforms.accumulating import ApplyEvery as ApplyEvery
from gradxform.transforms.accumulating import apply_every as apply_every
from gradxform.transforms.adam_kin import ScaleByBeliefState as ScaleByBeliefState
from gradxform.transforms.adam_kin import scale_by_adamax as scale_by_adamax
from gradxform.transforms.adam_kin import scale_by_belief as scale_by_belief
from gradxform.transforms.adam_kin import scale_by_radam as scale_by_radam
from gradxform.transforms.adam_kin import scale_by_yogi as scale_by_yogi
from gradxform.transforms.blocks import ScaleByNovogradState as ScaleByNovogradState
from gradxform.transforms.blocks import scale_by_novograd as scale_by_novograd
from gradxform.transforms.blocks import scale_by_param_block_norm as scale_by_param_block_norm
from gradxform.transforms.blocks import scale_by_param_block_rms as scale_by_param_block_rms
from gradxform.transforms.blocks import undo_norm_growth as undo_norm_growth
from gradxform.transforms.differences import ScaleByAdanState as ScaleByAdanState
from gradxform.transforms.differences import (
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
)
from gradxform.transforms.differences import ScaleByRpropState as ScaleByRpropState
from gradxform.transforms.differences import scale_by_adan as scale_by_adan
from gradxform.transforms.differences import (
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
)
from gradxform.transforms.differences import scale_by_rprop as scale_by_rprop
from gradxform.transforms.factored import FactoredState as FactoredState
from gradxform.transforms.factored import ScaleBySM3State as ScaleBySM3State
from gradxform.transforms.factored import power_decay_rate as power_decay_rate
from gradxform.transforms.factored import scale_by_factored_rms as scale_by_factored_rms
from gradxform.transforms.factored import scale_by_sm3 as scale_by_sm3
from gradxform.transforms.step_size import ScaleByAdaDeltaState as ScaleByAdaDeltaState
from gradxform.transforms.step_size import (
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
)
from gradxform.transforms.step_size import scale_by_adadelta as scale_by_adadelta
from gradxform.transforms.step_size import (
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
)
from gradxform.transforms.step_size import scale_by_polyak as scale_by_polyak
from gradxform.transforms.ademamix import ScaleByAdemamixState as ScaleByAdemamixState
from gradxform.transforms.ademamix import (
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
)
from gradxform.transforms.ademamix import scale_by_ademamix as scale_by_ademamix
from gradxform.transforms.ademamix import (
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
)
from gradxform.transforms.adopt import fourth_root as fourth_root
from gradxform.transforms.adopt import scale_by_acprop as scale_by_acprop
from gradxform.transforms.adopt import scale_by_adopt as scale_by_adopt
from gradxform.transforms.betting import COCOBState as COCOBState
from gradxform.transforms.betting import scale_by_cocob as scale_by_cocob
from gradxform.transforms.dadapt import DAdaptAdamWState as DAdaptAdamWState
from gradxform.transforms.dadapt import ProdigyState as ProdigyState
from gradxform.transforms.dadapt import step_by_dadapt_adamw as step_by_dadapt_adamw
from gradxform.transforms.dadapt import step_by_prodigy as step_by_prodigy
from gradxform.transforms.dog import DoGState as DoGState
from gradxform.transforms.dog import DoWGState as DoWGState
from gradxform.transforms.dog import scale_by_dog as scale_by_dog
from gradxform.transforms.dog import scale_by_dowg as scale_by_dowg
from gradxform.transforms.madgrad import MadgradState as MadgradState
from gradxform.transforms.madgrad import scale_by_madgrad as scale_by_madgrad
from gradxform.transforms.momo import MomoAdamState as MomoAdamState
from gradxform.transforms.momo import MomoState as MomoState
from gradxform.transforms.momo import step_by_momo as step_by_momo
from gradxform.transforms.momo import step_by_momo_adam as step_by_momo_adam
from gradxform.transforms.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
)
from gradxform.transforms.privacy import (
    differentially_private_aggregate as differentially_private_aggregate,
)
from gradxform.transforms.sophia import HutchinsonState as HutchinsonState
from gradxform.transforms.sophia import SophiaState as SophiaState
from gradxform.transforms.sophia import (
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
)
from gradxform.transforms.sophia import scale_by_sophia as scale_by_sophia
from gradxform.transforms.dimensions import GaLoreDimensionNumbers as GaLoreDimensionNumbers
from gradxform.transforms.dimensions import MuonDimensionNumbers as MuonDimensionNumbers
from gradxform.transforms.galore import GaLoreState as GaLoreState
from gradxform.transforms.galore import scale_by_galore as scale_by_galore
from gradxform.transforms.ggt import ScaleByGgtState as ScaleByGgtState
from gradxform.transforms.ggt import scale_by_ggt as scale_by_ggt
from gradxform.transforms.muon import MuonState as MuonState
from gradxform.transforms.muon import muon_labels as muon_labels
from gradxform.transforms.muon import scale_by_muon as scale_by_muon
from gradxform.transforms.muon import scale_by_shape as scale_by_shape
from gradxform.transforms.shampoo import ShampooState as ShampooState
from gradxform.transforms.shampoo import step_by_shampoo as step_by_shampoo

# Wrappers.
from gradxform.wrappers.accumulate import MultiSteps as MultiSteps
from gradxform.wrappers.accumulate import MultiStepsState as MultiStepsState
from gradxform.wrappers.accumulate_rows import AccumulateRowsState as AccumulateRowsState
from gradxform.wrappers.accumulate_rows import RowBuffer as RowBuffer
from gradxform.wrappers.accumulate_rows import accumulate_rows as accumulate_rows
from gradxform.wrappers.average import LookaheadParams as LookaheadParams
from gradxform.wrappers.average import LookaheadState as LookaheadState
from gradxform.wrappers.average import LookaheadWithSlowState as LookaheadWithSlowState
from gradxform.wrappers.average import lookahead as lookahead
from gradxform.wrappers.compose import chain as chain
from gradxform.wrappers.compose import named_chain as named_chain
from gradxform.wrappers.compose import sum_of as sum_of
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
from gradxform.wrappers.step import external_step as external_step
from gradxform.wrappers.tune import (
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
)
from gradxform.wrappers.tune import inject_hyperparams as inject_hyperparams

# Replicas.
from gradxform import distributed as distributed

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
from gradxform.optimizers import add_sign as add_sign
from gradxform.optimizers import adagrad_da as adagrad_da
from gradxform.optimizers import ftrl as ftrl
from gradxform.optimizers import grad_variance_scaled as grad_variance_scaled
from gradxform.optimizers import neural_optimizer1 as neural_optimizer1
from gradxform.optimizers import normalized_sgd as normalized_sgd
from gradxform.optimizers import power_sign as power_sign
from gradxform.optimizers import proximal_adagrad as proximal_adagrad
from gradxform.optimizers import proximal_sgd as proximal_sgd
from gradxform.optimizers import reg_adagrad as reg_adagrad
from gradxform.optimizers import sgdw as sgdw
from gradxform.optimizers import signum as signum
from gradxform.optimizers import adabelief as adabelief
from gradxform.optimizers import adadelta as adadelta
from gradxform.optimizers import adafactor as adafactor
from gradxform.optimizers import adamax as adamax
from gradxform.optimizers import adamaxw as adamaxw
from gradxform.optimizers import adan as adan
from gradxform.optimizers import fromage as fromage
from gradxform.optimizers import noisy_sgd as noisy_sgd
from gradxform.optimizers import novograd as novograd
from gradxform.optimizers import optimistic_adam as optimistic_adam
from gradxform.optimizers import optimistic_adam_v2 as optimistic_adam_v2
from gradxform.optimizers import optimistic_gradient_descent as optimistic_gradient_descent
from gradxform.optimizers import polyak_sgd as polyak_sgd
from gradxform.optimizers import radam as radam
from gradxform.optimizers import rprop as rprop
from gradxform.optimizers import sign_sgd as sign_sgd
from gradxform.optimizers import sm3 as sm3
from gradxform.optimizers import yogi as yogi
from gradxform.optimizers import acprop as acprop
from gradxform.optimizers import ademamix as ademamix
from gradxform.optimizers import adopt as adopt
from gradxform.optimizers import cocob as cocob
from gradxform.optimizers import dadapt_adamw as dadapt_adamw
from gradxform.optimizers import dog as dog
from gradxform.optimizers import dowg as dowg
from gradxform.optimizers import dpsgd as dpsgd
from gradxform.optimizers import madgrad as madgrad
from gradxform.optimizers import momo as momo
from gradxform.optimizers import momo_adam as momo_adam
from gradxform.optimizers import prodigy as prodigy
from gradxform.optimizers import simplified_ademamix as simplified_ademamix
from gradxform.optimizers import sophia as sophia
from gradxform.optimizers import galore as galore
from gradxform.optimizers import ggt as ggt
from gradxform.optimizers import muon as muon
from gradxform.optimizers import shampoo as shampoo
from gradxform.optimizers import lazy_adam as lazy_adam
from gradxform.optimizers import lazy_adamw as lazy_adamw
from gradxform.optimizers import rowwise_adagrad as rowwise_adagrad
from gradxform.optimizers import sparse_adagrad as sparse_adagrad

# Optax's contributed optimizers, under their names there.
from gradxform import compat as compat
from gradxform import contrib as contrib
from gradxform import testing as testing

# Configs, descriptions, and bridges to other libraries.
from gradxform import interop as interop
from gradxform.config import from_config as from_config
from gradxform.config import from_json as from_json
from gradxform.config import to_config as to_config
from gradxform.config import to_json as to_json
from gradxform.describe import Description as Description
from gradxform.describe import describe as describe
from gradxform.interop import as_optax as as_optax
