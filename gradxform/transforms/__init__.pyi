# Written by `make tables`; do not edit.
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
from gradxform.types import (
    ConditionFn as ConditionFn,
    MaskedNode as MaskedNode,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
)
from gradxform.wrappers.compose import chain as chain, named_chain as named_chain
from gradxform.wrappers.condition import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from gradxform.wrappers.flatten import flatten as flatten
from gradxform.wrappers.frozen import freeze as freeze, selective_transform as selective_transform
from gradxform.wrappers.guard import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    apply_if_finite as apply_if_finite,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from gradxform.wrappers.monitor import (
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    snapshot as snapshot,
)
from gradxform.wrappers.multi_steps import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
)
from gradxform.wrappers.select import (
    MaskedState as MaskedState,
    PartitionState as PartitionState,
    masked as masked,
    partition as partition,
)
