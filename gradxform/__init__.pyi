# Written by `make tables`; do not edit.
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
from gradxform._names.version import __version__ as __version__
from gradxform.base.rule import (
    ArrayRule as ArrayRule,
    EmptyState as EmptyState,
    Transform as Transform,
    transform as transform,
)
from gradxform.commands import port as port
from gradxform.commands.finding.lookup import find as find
from gradxform.compat.returnn.raw_gradients import (
    AddTruncatedNoiseState as AddTruncatedNoiseState,
    RawGradientNormsState as RawGradientNormsState,
    add_truncated_noise as add_truncated_noise,
    clip_by_mean_norm as clip_by_mean_norm,
    clip_by_raw_norm as clip_by_raw_norm,
    raw_gradient_norms as raw_gradient_norms,
    zero_above_raw_norm as zero_above_raw_norm,
    zero_non_finite as zero_non_finite,
)
from gradxform.engine.lift import PerLeaf as PerLeaf
from gradxform.engine.sums import global_norm as global_norm
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
from gradxform.microbatching.microbatch import microbatch as microbatch
from gradxform.numerics.numbers import (
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
)
from gradxform.optimizers.adago import adago as adago
from gradxform.optimizers.adahessian import adahessian as adahessian
from gradxform.optimizers.adai import adai as adai
from gradxform.optimizers.adalite import adalite as adalite
from gradxform.optimizers.adam import (
    adam as adam,
    adamw as adamw,
    amsgrad as amsgrad,
    nadam as nadam,
    nadamw as nadamw,
)
from gradxform.optimizers.adam_kin import (
    adabelief as adabelief,
    adamax as adamax,
    adamaxw as adamaxw,
    radam as radam,
    ranger as ranger,
    yogi as yogi,
)
from gradxform.optimizers.adam_mini import adam_mini as adam_mini
from gradxform.optimizers.adanorm import adanorm as adanorm
from gradxform.optimizers.adaptive import (
    adadelta as adadelta,
    adagrad as adagrad,
    kate as kate,
    reg_adagrad as reg_adagrad,
    rmsprop as rmsprop,
    sparse_adagrad as sparse_adagrad,
)
from gradxform.optimizers.ademamix import (
    ademamix as ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradxform.optimizers.adopt import acprop as acprop, adopt as adopt
from gradxform.optimizers.agreement import (
    add_sign as add_sign,
    grad_variance_scaled as grad_variance_scaled,
    grams as grams,
    neural_optimizer1 as neural_optimizer1,
    power_sign as power_sign,
)
from gradxform.optimizers.amos import amos as amos
from gradxform.optimizers.apollo import apollo as apollo, apollo_mini as apollo_mini
from gradxform.optimizers.aurora import aurora as aurora
from gradxform.optimizers.by_name import OPTIMIZERS as OPTIMIZERS
from gradxform.optimizers.came import came as came
from gradxform.optimizers.cautious import (
    cautious_adamw as cautious_adamw,
    cautious_lion as cautious_lion,
)
from gradxform.optimizers.cocob import cocob as cocob
from gradxform.optimizers.dadapt import dadapt_adamw as dadapt_adamw, prodigy as prodigy
from gradxform.optimizers.dion import dion as dion, dion2 as dion2
from gradxform.optimizers.distributed_shampoo import distributed_shampoo as distributed_shampoo
from gradxform.optimizers.dog import dog as dog, dowg as dowg
from gradxform.optimizers.embeddings import (
    lazy_adam as lazy_adam,
    lazy_adamw as lazy_adamw,
    rowwise_adagrad as rowwise_adagrad,
)
from gradxform.optimizers.factored import adafactor as adafactor, sm3 as sm3
from gradxform.optimizers.galore import galore as galore
from gradxform.optimizers.ggt import ggt as ggt
from gradxform.optimizers.gradient_change import (
    adan as adan,
    diffgrad as diffgrad,
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    optimistic_gradient_descent as optimistic_gradient_descent,
    rprop as rprop,
)
from gradxform.optimizers.grokfast import grokfast_adamw as grokfast_adamw
from gradxform.optimizers.input_moments import newton_muon as newton_muon
from gradxform.optimizers.kl_shampoo import kl_shampoo as kl_shampoo
from gradxform.optimizers.laprop import laprop as laprop
from gradxform.optimizers.layerwise import (
    fromage as fromage,
    lamb as lamb,
    lars as lars,
    novograd as novograd,
    sgd_sai as sgd_sai,
)
from gradxform.optimizers.lbfgs import lbfgs as lbfgs
from gradxform.optimizers.lbfgs_steps import lbfgs_steps as lbfgs_steps
from gradxform.optimizers.lbfgsb import lbfgsb as lbfgsb
from gradxform.optimizers.madgrad import madgrad as madgrad
from gradxform.optimizers.mars import mars_adamw as mars_adamw
from gradxform.optimizers.momentum import aggmo as aggmo, sgd as sgd, sgdw as sgdw
from gradxform.optimizers.momo import momo as momo, momo_adam as momo_adam
from gradxform.optimizers.muon import muon as muon
from gradxform.optimizers.muonclip import muonclip as muonclip
from gradxform.optimizers.muown import muown as muown
from gradxform.optimizers.newton_cg import newton_cg as newton_cg
from gradxform.optimizers.noise import noisy_sgd as noisy_sgd
from gradxform.optimizers.normalization import normalized_sgd as normalized_sgd
from gradxform.optimizers.normuon import adamuon as adamuon, normuon as normuon
from gradxform.optimizers.optimizer import optimizer as optimizer
from gradxform.optimizers.pnm import adapnm as adapnm, pnm as pnm
from gradxform.optimizers.privacy import dpsgd as dpsgd
from gradxform.optimizers.proximal import (
    adagrad_da as adagrad_da,
    ftrl as ftrl,
    proximal_adagrad as proximal_adagrad,
    proximal_sgd as proximal_sgd,
)
from gradxform.optimizers.psgd import psgd_kron as psgd_kron
from gradxform.optimizers.quasi_hyperbolic import qhadam as qhadam, qhm as qhm
from gradxform.optimizers.racs import racs as racs
from gradxform.optimizers.radial import adamp as adamp, sgdp as sgdp
from gradxform.optimizers.ranger import ranger21 as ranger21
from gradxform.optimizers.schedule_free import (
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_prodigy as schedule_free_prodigy,
    schedule_free_radam as schedule_free_radam,
    schedule_free_sgd as schedule_free_sgd,
)
from gradxform.optimizers.schedule_free_plus import schedule_free_plus as schedule_free_plus
from gradxform.optimizers.scion import scion as scion
from gradxform.optimizers.shampoo import shampoo as shampoo
from gradxform.optimizers.sign import (
    focus as focus,
    lion as lion,
    sign_sgd as sign_sgd,
    signum as signum,
    tiger as tiger,
)
from gradxform.optimizers.soap import soap as soap
from gradxform.optimizers.sophia import sophia as sophia
from gradxform.optimizers.spam import spam as spam, stable_spam as stable_spam
from gradxform.optimizers.spectral_sphere import spectral_sphere as spectral_sphere
from gradxform.optimizers.spectrum import (
    contra_muon as contra_muon,
    muon_eq as muon_eq,
    polar_grad as polar_grad,
    soft_muon as soft_muon,
)
from gradxform.optimizers.splus import splus as splus
from gradxform.optimizers.stable_adam import adam_atan2 as adam_atan2, stable_adamw as stable_adamw
from gradxform.optimizers.step_size import polyak_sgd as polyak_sgd
from gradxform.optimizers.stiefel import spel as spel
from gradxform.optimizers.tam import adatam as adatam, tam as tam
from gradxform.optimizers.toward_sgd import adabound as adabound, padam as padam
from gradxform.projections import polytopes as polytopes
from gradxform.run_states.learning_rate import (
    current_learning_rate as current_learning_rate,
    current_learning_rates as current_learning_rates,
)
from gradxform.run_states.metrics import current_step as current_step, metrics as metrics
from gradxform.run_states.migration.migrate import migrate_state as migrate_state
from gradxform.run_states.migration.report import (
    MigratedSlot as MigratedSlot,
    MigrationReport as MigrationReport,
)
from gradxform.run_states.optax import (
    as_optax as as_optax,
    from_optax_state as from_optax_state,
    to_optax_state as to_optax_state,
)
from gradxform.run_states.optax_closures import as_optax_closures as as_optax_closures
from gradxform.run_states.reset import reset_slots as reset_slots
from gradxform.run_states.slot_names.access import get_slots as get_slots, set_slots as set_slots
from gradxform.schedules.basic import (
    as_schedule as as_schedule,
    constant_schedule as constant_schedule,
    linear_schedule as linear_schedule,
    polynomial_schedule as polynomial_schedule,
)
from gradxform.schedules.cooldown import (
    cooldown_from as cooldown_from,
    warmup_stable_decay_schedule as warmup_stable_decay_schedule,
)
from gradxform.schedules.decay import (
    cosine_decay_restarts as cosine_decay_restarts,
    cosine_decay_schedule as cosine_decay_schedule,
    exponential_decay as exponential_decay,
    inverse_sqrt_decay as inverse_sqrt_decay,
    inverse_time_decay as inverse_time_decay,
    linear_cosine_decay as linear_cosine_decay,
    natural_exp_decay as natural_exp_decay,
)
from gradxform.schedules.join import (
    join_schedules as join_schedules,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)
from gradxform.schedules.periodic import (
    cosine_sign_decay as cosine_sign_decay,
    cyclic_schedule as cyclic_schedule,
    linear_sign_decay as linear_sign_decay,
    restart_sign_decay as restart_sign_decay,
)
from gradxform.schedules.piecewise import (
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    linear_onecycle_schedule as linear_onecycle_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
)
from gradxform.schedules.product import product_schedule as product_schedule
from gradxform.schedules.rectified import rectified_warmup_schedule as rectified_warmup_schedule
from gradxform.schedules.schedule import Schedule as Schedule
from gradxform.schedules.stateful import (
    StatefulSchedule as StatefulSchedule,
    WrappedSchedule as WrappedSchedule,
)
from gradxform.tables.describe import Description as Description, describe as describe
from gradxform.training.derivatives import (
    scale_gradient as scale_gradient,
    value_and_grad_from_state as value_and_grad_from_state,
)
from gradxform.training.distributions import multi_normal as multi_normal
from gradxform.training.gradients import compute_gradients as compute_gradients
from gradxform.training.holder import Optimizer as Optimizer
from gradxform.training.layers.scan import scan_layers as scan_layers
from gradxform.training.minimize import MinimizeResult as MinimizeResult, minimize as minimize
from gradxform.training.step import apply_gradients as apply_gradients, make_step as make_step
from gradxform.transforms.accumulation import ApplyEvery as ApplyEvery, apply_every as apply_every
from gradxform.transforms.adago import (
    AdaGOState as AdaGOState,
    scale_by_adago as scale_by_adago,
    scale_by_shaped_adago as scale_by_shaped_adago,
)
from gradxform.transforms.adahessian import (
    AdaHessianState as AdaHessianState,
    average_spatial_axes as average_spatial_axes,
    scale_by_adahessian as scale_by_adahessian,
)
from gradxform.transforms.adai import (
    ScaleByAdaiState as ScaleByAdaiState,
    scale_by_adai as scale_by_adai,
)
from gradxform.transforms.adalite import (
    ScaleByAdaliteState as ScaleByAdaliteState,
    scale_by_adalite as scale_by_adalite,
)
from gradxform.transforms.adam import (
    ScaleByAdamState as ScaleByAdamState,
    ScaleByAmsgradState as ScaleByAmsgradState,
    ScaleByNadamState as ScaleByNadamState,
    scale_by_adam as scale_by_adam,
    scale_by_amsgrad as scale_by_amsgrad,
    scale_by_nadam as scale_by_nadam,
    scale_by_tf_amsgrad as scale_by_tf_amsgrad,
    scale_by_torch_amsgrad as scale_by_torch_amsgrad,
)
from gradxform.transforms.adam_kin import (
    RectifiedBeliefState as RectifiedBeliefState,
    ScaleByBeliefState as ScaleByBeliefState,
    scale_by_adamax as scale_by_adamax,
    scale_by_belief as scale_by_belief,
    scale_by_radam as scale_by_radam,
    scale_by_rectified_belief as scale_by_rectified_belief,
    scale_by_torch_radam as scale_by_torch_radam,
    scale_by_yogi as scale_by_yogi,
)
from gradxform.transforms.adam_mini import (
    ScaleByAdamMiniState as ScaleByAdamMiniState,
    moment_blocks as moment_blocks,
    scale_by_adam_mini as scale_by_adam_mini,
)
from gradxform.transforms.adanorm import (
    ScaleByAdaNormState as ScaleByAdaNormState,
    scale_by_adanorm as scale_by_adanorm,
)
from gradxform.transforms.adaptive import (
    ScaleByAdaDeltaState as ScaleByAdaDeltaState,
    ScaleByKateState as ScaleByKateState,
    ScaleByRStdDevState as ScaleByRStdDevState,
    ScaleByRmsState as ScaleByRmsState,
    ScaleByRssState as ScaleByRssState,
    scale_by_adadelta as scale_by_adadelta,
    scale_by_kate as scale_by_kate,
    scale_by_rms as scale_by_rms,
    scale_by_rss as scale_by_rss,
    scale_by_stddev as scale_by_stddev,
)
from gradxform.transforms.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
)
from gradxform.transforms.adopt import (
    fourth_root as fourth_root,
    scale_by_acprop as scale_by_acprop,
    scale_by_adopt as scale_by_adopt,
)
from gradxform.transforms.agreement import (
    ScaleByAgreementState as ScaleByAgreementState,
    ScaleByGradVarianceState as ScaleByGradVarianceState,
    scale_by_add_sign as scale_by_add_sign,
    scale_by_grad_variance as scale_by_grad_variance,
    scale_by_grams as scale_by_grams,
    scale_by_power_sign as scale_by_power_sign,
    scale_by_sign_agreement as scale_by_sign_agreement,
)
from gradxform.transforms.amos import (
    StepByAmosState as StepByAmosState,
    step_by_amos as step_by_amos,
)
from gradxform.transforms.apollo import (
    ScaleByApolloState as ScaleByApolloState,
    scale_by_apollo as scale_by_apollo,
)
from gradxform.transforms.aurora import (
    ScaleByAuroraState as ScaleByAuroraState,
    scale_by_aurora as scale_by_aurora,
)
from gradxform.transforms.came import (
    ScaleByConfidenceState as ScaleByConfidenceState,
    scale_by_confidence as scale_by_confidence,
)
from gradxform.transforms.clipping import (
    ClipByPreviousGlobalNormState as ClipByPreviousGlobalNormState,
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_norm as clip_by_block_norm,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    clip_by_previous_global_norm as clip_by_previous_global_norm,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from gradxform.transforms.cocob import COCOBState as COCOBState, scale_by_cocob as scale_by_cocob
from gradxform.transforms.constraints import (
    NonNegativeParamsState as NonNegativeParamsState,
    ZeroNansState as ZeroNansState,
    keep_params_nonnegative as keep_params_nonnegative,
    zero_nans as zero_nans,
)
from gradxform.transforms.counts import (
    CountUpdatesState as CountUpdatesState,
    count_updates as count_updates,
)
from gradxform.transforms.curvature_diagonal import (
    EstimateDiagonalState as EstimateDiagonalState,
    ScaleByCurvatureDiagonalState as ScaleByCurvatureDiagonalState,
    estimate_diagonal as estimate_diagonal,
    scale_by_curvature_diagonal as scale_by_curvature_diagonal,
)
from gradxform.transforms.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    ProdigyState as ProdigyState,
    ProdigyWithLimitState as ProdigyWithLimitState,
    step_by_dadapt_adamw as step_by_dadapt_adamw,
    step_by_prodigy as step_by_prodigy,
)
from gradxform.transforms.densify import densify as densify
from gradxform.transforms.dion import DionState as DionState, scale_by_dion as scale_by_dion
from gradxform.transforms.dion2 import Dion2State as Dion2State, scale_by_dion2 as scale_by_dion2
from gradxform.transforms.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    scale_by_dog as scale_by_dog,
    scale_by_dowg as scale_by_dowg,
)
from gradxform.transforms.embeddings import (
    ScaleByAdamCatchingUpState as ScaleByAdamCatchingUpState,
    ScaleByRowwiseRssState as ScaleByRowwiseRssState,
    scale_by_adam_catching_up as scale_by_adam_catching_up,
    scale_by_rowwise_rss as scale_by_rowwise_rss,
)
from gradxform.transforms.factored import (
    FactoredState as FactoredState,
    ScaleBySM3State as ScaleBySM3State,
    constant_decay_rate as constant_decay_rate,
    power_decay_rate as power_decay_rate,
    scale_by_factored_rms as scale_by_factored_rms,
    scale_by_sm3 as scale_by_sm3,
)
from gradxform.transforms.ggt import (
    ScaleByGgtState as ScaleByGgtState,
    scale_by_ggt as scale_by_ggt,
)
from gradxform.transforms.gradient_change import (
    ScaleByAdanState as ScaleByAdanState,
    ScaleByDiffGradState as ScaleByDiffGradState,
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
    ScaleByRpropState as ScaleByRpropState,
    scale_by_adan as scale_by_adan,
    scale_by_diffgrad as scale_by_diffgrad,
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
    scale_by_rprop as scale_by_rprop,
)
from gradxform.transforms.grokfast import (
    GrokfastEmaState as GrokfastEmaState,
    GrokfastMaState as GrokfastMaState,
    grokfast_ema as grokfast_ema,
    grokfast_ma as grokfast_ma,
)
from gradxform.transforms.input_moments import (
    PreconditionByInputsState as PreconditionByInputsState,
    input_moment as input_moment,
    precondition_by_inputs as precondition_by_inputs,
)
from gradxform.transforms.kept_norms import (
    floor_update_norm as floor_update_norm,
    keep_matrix_norms as keep_matrix_norms,
)
from gradxform.transforms.kl_shampoo import (
    KLShampooState as KLShampooState,
    scale_by_kl_shampoo as scale_by_kl_shampoo,
)
from gradxform.transforms.laprop import (
    ScaleByLaPropState as ScaleByLaPropState,
    scale_by_laprop as scale_by_laprop,
    scale_by_torch_laprop as scale_by_torch_laprop,
)
from gradxform.transforms.layerwise import (
    ScaleByFirstSnrState as ScaleByFirstSnrState,
    ScaleByNovogradState as ScaleByNovogradState,
    add_norm_loss as add_norm_loss,
    scale_by_first_snr as scale_by_first_snr,
    scale_by_novograd as scale_by_novograd,
    scale_by_param_block_norm as scale_by_param_block_norm,
    scale_by_param_block_rms as scale_by_param_block_rms,
    scale_by_trust_ratio as scale_by_trust_ratio,
    undo_norm_growth as undo_norm_growth,
)
from gradxform.transforms.lbfgs.lbfgs import (
    ScaleByLBFGSState as ScaleByLBFGSState,
    scale_by_lbfgs as scale_by_lbfgs,
)
from gradxform.transforms.lbfgs.lbfgs_steps import (
    StepByLBFGSState as StepByLBFGSState,
    step_by_lbfgs as step_by_lbfgs,
)
from gradxform.transforms.lbfgs.lbfgsb import (
    StepByLBFGSBState as StepByLBFGSBState,
    step_by_lbfgsb as step_by_lbfgsb,
)
from gradxform.transforms.lbfgs.line_search import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from gradxform.transforms.lbfgs.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
    scale_by_zoom_linesearch as scale_by_zoom_linesearch,
)
from gradxform.transforms.madgrad import (
    MadgradState as MadgradState,
    scale_by_madgrad as scale_by_madgrad,
)
from gradxform.transforms.mars import (
    ScaleByMarsState as ScaleByMarsState,
    scale_by_mars as scale_by_mars,
)
from gradxform.transforms.matrices.dimensions import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    MuonDimensionNumbers as MuonDimensionNumbers,
    matrix_split as matrix_split,
)
from gradxform.transforms.matrices.rule import MatrixRule as MatrixRule
from gradxform.transforms.momentum import (
    EmaState as EmaState,
    TraceState as TraceState,
    ema as ema,
    trace as trace,
)
from gradxform.transforms.momo import (
    MomoAdamState as MomoAdamState,
    MomoState as MomoState,
    step_by_momo as step_by_momo,
    step_by_momo_adam as step_by_momo_adam,
)
from gradxform.transforms.muon import (
    MuonState as MuonState,
    muon_labels as muon_labels,
    scale_by_muon as scale_by_muon,
    scale_by_shape as scale_by_shape,
)
from gradxform.transforms.muown import MuownState as MuownState, step_by_muown as step_by_muown
from gradxform.transforms.newton_cg import (
    NewtonCGInfo as NewtonCGInfo,
    ScaleByNewtonCGState as ScaleByNewtonCGState,
    scale_by_newton_cg as scale_by_newton_cg,
)
from gradxform.transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from gradxform.transforms.norm_growth import (
    LimitNormGrowthState as LimitNormGrowthState,
    limit_norm_growth as limit_norm_growth,
)
from gradxform.transforms.normalization import (
    centralize as centralize,
    normalize as normalize,
    normalize_adaptively as normalize_adaptively,
    normalize_by_block_norm as normalize_by_block_norm,
    normalize_by_block_std as normalize_by_block_std,
    normalize_by_update_norm as normalize_by_update_norm,
)
from gradxform.transforms.normuon import (
    MuonMomentsState as MuonMomentsState,
    scale_by_adamuon as scale_by_adamuon,
    scale_by_normuon as scale_by_normuon,
)
from gradxform.transforms.orthogonal import (
    orthogonalize_updates as orthogonalize_updates,
    scale_by_fans as scale_by_fans,
)
from gradxform.transforms.orthograd import orthograd as orthograd
from gradxform.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from gradxform.transforms.pnm import (
    ScaleByAdapnmState as ScaleByAdapnmState,
    ScaleByPnmState as ScaleByPnmState,
    scale_by_adapnm as scale_by_adapnm,
    scale_by_pnm as scale_by_pnm,
)
from gradxform.transforms.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from gradxform.transforms.proximal import (
    AdagradDAState as AdagradDAState,
    FtrlState as FtrlState,
    ProximalAdagradState as ProximalAdagradState,
    ProximalGradientState as ProximalGradientState,
    step_by_dual_averaging as step_by_dual_averaging,
    step_by_ftrl as step_by_ftrl,
    step_by_proximal_adagrad as step_by_proximal_adagrad,
    step_by_proximal_gradient as step_by_proximal_gradient,
)
from gradxform.transforms.psgd import (
    PsgdKronState as PsgdKronState,
    scale_by_psgd_kron as scale_by_psgd_kron,
)
from gradxform.transforms.quasi_hyperbolic import (
    ScaleByQhmState as ScaleByQhmState,
    scale_by_qhadam as scale_by_qhadam,
    scale_by_qhm as scale_by_qhm,
)
from gradxform.transforms.racs import (
    ScaleByRowsAndColumnsState as ScaleByRowsAndColumnsState,
    scale_by_rows_and_columns as scale_by_rows_and_columns,
)
from gradxform.transforms.ranger import (
    ScaleByRanger21State as ScaleByRanger21State,
    scale_by_ranger21 as scale_by_ranger21,
)
from gradxform.transforms.scaling import (
    ScaleByScheduleState as ScaleByScheduleState,
    ScaleState as ScaleState,
    WeightDecaySchedule as WeightDecaySchedule,
    add_decayed_weights as add_decayed_weights,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
)
from gradxform.transforms.schedule_free_plus import (
    ScheduleFreePlusState as ScheduleFreePlusState,
    step_by_schedule_free_plus as step_by_schedule_free_plus,
)
from gradxform.transforms.scion import scale_by_lmo as scale_by_lmo
from gradxform.transforms.shampoo.distributed_shampoo import (
    DistributedShampooState as DistributedShampooState,
    scale_by_distributed_shampoo as scale_by_distributed_shampoo,
)
from gradxform.transforms.shampoo.shampoo import (
    ShampooState as ShampooState,
    step_by_shampoo as step_by_shampoo,
)
from gradxform.transforms.sign import (
    ScaleByFocusState as ScaleByFocusState,
    ScaleByLionState as ScaleByLionState,
    scale_by_focus as scale_by_focus,
    scale_by_lion as scale_by_lion,
    scale_by_sign as scale_by_sign,
)
from gradxform.transforms.soap import SoapState as SoapState, scale_by_soap as scale_by_soap
from gradxform.transforms.sophia import (
    HutchinsonState as HutchinsonState,
    SophiaState as SophiaState,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
    scale_by_sophia as scale_by_sophia,
)
from gradxform.transforms.spam import (
    AdaClipState as AdaClipState,
    AdaGNState as AdaGNState,
    ClipBySecondMomentState as ClipBySecondMomentState,
    WarmUpAfterResetsState as WarmUpAfterResetsState,
    adaclip as adaclip,
    adagn as adagn,
    clip_by_second_moment as clip_by_second_moment,
    warm_up_after_resets as warm_up_after_resets,
)
from gradxform.transforms.spectra import (
    clip_spectrum as clip_spectrum,
    contra_spectrum as contra_spectrum,
    polynomial_spectrum as polynomial_spectrum,
    power_spectrum as power_spectrum,
    soft_spectrum as soft_spectrum,
)
from gradxform.transforms.spectral_sphere import (
    scale_by_spectral_sphere as scale_by_spectral_sphere,
)
from gradxform.transforms.spectrum import (
    NeuronRmsState as NeuronRmsState,
    ScaleBySpectrumState as ScaleBySpectrumState,
    scale_by_neuron_rms as scale_by_neuron_rms,
    scale_by_spectrum as scale_by_spectrum,
)
from gradxform.transforms.spikes import (
    AdaGCState as AdaGCState,
    GradNormToClipToZeroState as GradNormToClipToZeroState,
    ZClipState as ZClipState,
    adagc as adagc,
    grad_norm_to_clip_to_zero as grad_norm_to_clip_to_zero,
    zclip as zclip,
)
from gradxform.transforms.splus import (
    SPlusState as SPlusState,
    scale_by_mean_side as scale_by_mean_side,
    scale_by_splus as scale_by_splus,
)
from gradxform.transforms.stable_adam import (
    ClipByMovingRmsState as ClipByMovingRmsState,
    clip_by_moving_rms as clip_by_moving_rms,
    scale_by_adam_atan2 as scale_by_adam_atan2,
    scale_by_stable_adam as scale_by_stable_adam,
)
from gradxform.transforms.step_size import (
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
    scale_by_polyak as scale_by_polyak,
)
from gradxform.transforms.stiefel import (
    keep_orthogonal as keep_orthogonal,
    project_to_tangent as project_to_tangent,
)
from gradxform.transforms.tam import (
    ScaleByAdaTamState as ScaleByAdaTamState,
    ScaleByTamState as ScaleByTamState,
    scale_by_adatam as scale_by_adatam,
    scale_by_tam as scale_by_tam,
)
from gradxform.transforms.tf_adam import scale_by_tf_adam as scale_by_tf_adam
from gradxform.transforms.toward_sgd import (
    scale_by_adabound as scale_by_adabound,
    scale_by_padam as scale_by_padam,
)
from gradxform.transforms.two_gradients import (
    ReuseSharpnessState as ReuseSharpnessState,
    mix_gradients as mix_gradients,
    reuse_sharpness as reuse_sharpness,
    subtract_surrogate_gap as subtract_surrogate_gap,
)
from gradxform.tree.apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from gradxform.tree.arithmetic import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from gradxform.tree_utils import tree_map_params as tree_map_params
from gradxform.types import (
    ArrayTree as ArrayTree,
    ConditionFn as ConditionFn,
    MaskOrFn as MaskOrFn,
    MaskedNode as MaskedNode,
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
from gradxform.values.config import (
    from_config as from_config,
    from_json as from_json,
    to_config as to_config,
    to_json as to_json,
)
from gradxform.values.fields import value as value
from gradxform.values.registry import register as register
from gradxform.values.value import Value as Value, replace as replace
from gradxform.wrappers.accumulation.accumulate import (
    AccumulateState as AccumulateState,
    accumulate as accumulate,
)
from gradxform.wrappers.accumulation.rows import (
    AccumulateRowsState as AccumulateRowsState,
    RowBuffer as RowBuffer,
    accumulate_rows as accumulate_rows,
)
from gradxform.wrappers.average import (
    MovingAverageState as MovingAverageState,
    StochasticWeightAverageState as StochasticWeightAverageState,
    moving_average as moving_average,
    stochastic_weight_average as stochastic_weight_average,
)
from gradxform.wrappers.cautious import cautious as cautious
from gradxform.wrappers.complex_parts import (
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)
from gradxform.wrappers.compose import chain as chain, named_chain as named_chain, sum_of as sum_of
from gradxform.wrappers.condition import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from gradxform.wrappers.decay import (
    DecoupledWeightDecayState as DecoupledWeightDecayState,
    decoupled_weight_decay as decoupled_weight_decay,
)
from gradxform.wrappers.eval_params import eval_params as eval_params, swap as swap
from gradxform.wrappers.external_step import external_step as external_step
from gradxform.wrappers.factor import factor_state as factor_state
from gradxform.wrappers.flatten import flatten as flatten
from gradxform.wrappers.frozen import freeze as freeze, selective_transform as selective_transform
from gradxform.wrappers.guard import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    all_finite as all_finite,
    apply_if_finite as apply_if_finite,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from gradxform.wrappers.hyperparams.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
from gradxform.wrappers.lookahead import (
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
    LookaheadWithSlowState as LookaheadWithSlowState,
    lookahead as lookahead,
)
from gradxform.wrappers.loss_scale import (
    LossScaleState as LossScaleState,
    loss_scale as loss_scale,
    scaled_loss as scaled_loss,
)
from gradxform.wrappers.low_rank.galore import (
    GaLoreState as GaLoreState,
    scale_by_galore as scale_by_galore,
)
from gradxform.wrappers.magma import MagmaState as MagmaState, magma as magma
from gradxform.wrappers.mars import mars as mars
from gradxform.wrappers.mechanize import MechanicState as MechanicState, mechanize as mechanize
from gradxform.wrappers.monitor import (
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    on_measurement as on_measurement,
    snapshot as snapshot,
)
from gradxform.wrappers.multi_steps import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
)
from gradxform.wrappers.muonclip import qk_clip as qk_clip, query_key as query_key
from gradxform.wrappers.narrow.narrow_params import (
    KahanState as KahanState,
    MasterWeightsState as MasterWeightsState,
    StochasticRoundingState as StochasticRoundingState,
    kahan as kahan,
    master_weights as master_weights,
    stochastic_rounding as stochastic_rounding,
)
from gradxform.wrappers.norm_bounds import variable_clipping as variable_clipping
from gradxform.wrappers.offload import offload_state as offload_state
from gradxform.wrappers.overwrite import (
    OverwritingAverageState as OverwritingAverageState,
    overwriting_average as overwriting_average,
)
from gradxform.wrappers.param_groups.groups import (
    ParamGroupsState as ParamGroupsState,
    param_groups as param_groups,
)
from gradxform.wrappers.param_groups.param_group import param_group as param_group
from gradxform.wrappers.param_groups.rules import layerwise_decay as layerwise_decay, mup as mup
from gradxform.wrappers.power_average import (
    PowerMovingAverageState as PowerMovingAverageState,
    PowerSnapshot as PowerSnapshot,
    power_moving_average as power_moving_average,
    power_snapshots as power_snapshots,
    reconstruct_average as reconstruct_average,
)
from gradxform.wrappers.project import project as project
from gradxform.wrappers.radial import remove_radial as remove_radial
from gradxform.wrappers.reset import ResetStateState as ResetStateState, reset_state as reset_state
from gradxform.wrappers.sam import SAMState as SAMState, asam as asam, sam as sam
from gradxform.wrappers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    ScheduleFreeWithXState as ScheduleFreeWithXState,
    schedule_free as schedule_free,
    schedule_free_eval_params as schedule_free_eval_params,
)
from gradxform.wrappers.select import (
    MaskedState as MaskedState,
    MultiTransformState as MultiTransformState,
    PartitionState as PartitionState,
    masked as masked,
    multi_transform as multi_transform,
    partition as partition,
)
from gradxform.wrappers.sharpness import gsam as gsam, looksam as looksam, wsam as wsam
from gradxform.wrappers.sparse import (
    only_dense as only_dense,
    only_rows as only_rows,
    sparse_semantics as sparse_semantics,
)
from gradxform.wrappers.spikes import (
    SkipLossSpikesState as SkipLossSpikesState,
    skip_loss_spikes as skip_loss_spikes,
)
from gradxform.wrappers.stacked import stacked as stacked
from gradxform.wrappers.stored.storage import (
    quantize_state as quantize_state,
    state_dtype as state_dtype,
)
from gradxform.wrappers.trac import TracState as TracState, trac as trac
from gradxform.wrappers.variable_names import variable_names as variable_names
from gradxform.wrappers.with_metrics import (
    WithMetricsState as WithMetricsState,
    with_metrics as with_metrics,
)
