# Written by `make tables`; do not edit.
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
