"""The names of `optax.contrib`; all of them are names of `gradxform`, too."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.interop import NormalizeState as NormalizeState
    from gradxform.optimizers.ademamix import (
        ademamix as ademamix,
        simplified_ademamix as simplified_ademamix,
    )
    from gradxform.optimizers.adopt import acprop as acprop, adopt as adopt
    from gradxform.optimizers.cocob import cocob as cocob
    from gradxform.optimizers.dadapt import dadapt_adamw as dadapt_adamw, prodigy as prodigy
    from gradxform.optimizers.dog import dog as dog, dowg as dowg
    from gradxform.optimizers.galore import galore as galore
    from gradxform.optimizers.madgrad import madgrad as madgrad
    from gradxform.optimizers.momo import momo as momo, momo_adam as momo_adam
    from gradxform.optimizers.muon import muon as muon
    from gradxform.optimizers.privacy import dpsgd as dpsgd
    from gradxform.optimizers.schedule_free import (
        schedule_free_adamw as schedule_free_adamw,
        schedule_free_sgd as schedule_free_sgd,
    )
    from gradxform.optimizers.sophia import sophia as sophia
    from gradxform.transforms.ademamix import (
        ScaleByAdemamixState as ScaleByAdemamixState,
        ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
        scale_by_ademamix as scale_by_ademamix,
        scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    )
    from gradxform.transforms.adopt import (
        scale_by_acprop as scale_by_acprop,
        scale_by_adopt as scale_by_adopt,
    )
    from gradxform.transforms.cocob import (
        COCOBState as COCOBState,
        scale_by_cocob as scale_by_cocob,
    )
    from gradxform.transforms.dadapt import (
        DAdaptAdamWState as DAdaptAdamWState,
        ProdigyState as ProdigyState,
    )
    from gradxform.transforms.dog import DoGState as DoGState, DoWGState as DoWGState
    from gradxform.transforms.madgrad import (
        MadgradState as MadgradState,
        scale_by_madgrad as scale_by_madgrad,
    )
    from gradxform.transforms.matrices.dimensions import (
        GaLoreDimensionNumbers as GaLoreDimensionNumbers,
        MuonDimensionNumbers as MuonDimensionNumbers,
    )
    from gradxform.transforms.momo import MomoAdamState as MomoAdamState, MomoState as MomoState
    from gradxform.transforms.muon import MuonState as MuonState, scale_by_muon as scale_by_muon
    from gradxform.transforms.normalization import normalize as normalize
    from gradxform.transforms.plateau import (
        ReduceLROnPlateauState as ReduceLROnPlateauState,
        reduce_on_plateau as reduce_on_plateau,
    )
    from gradxform.transforms.privacy import (
        DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
        differentially_private_aggregate as differentially_private_aggregate,
    )
    from gradxform.transforms.sophia import (
        HutchinsonState as HutchinsonState,
        SophiaState as SophiaState,
        hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
    )
    from gradxform.wrappers.complex_parts import (
        SplitRealAndImaginaryState as SplitRealAndImaginaryState,
        split_real_and_imaginary as split_real_and_imaginary,
    )
    from gradxform.wrappers.low_rank.galore import (
        GaLoreState as GaLoreState,
        scale_by_galore as scale_by_galore,
    )
    from gradxform.wrappers.mechanize import MechanicState as MechanicState, mechanize as mechanize
    from gradxform.wrappers.sam import SAMState as SAMState, sam as sam
    from gradxform.wrappers.schedule_free import (
        ScheduleFreeState as ScheduleFreeState,
        schedule_free as schedule_free,
        schedule_free_eval_params as schedule_free_eval_params,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
