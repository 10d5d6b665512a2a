"""Wrappers: each takes a transformation and changes when, where or on what it runs."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.wrappers.accumulation.accumulate import *
    from gradxform.wrappers.accumulation.rows import *
    from gradxform.wrappers.average import *
    from gradxform.wrappers.cautious import *
    from gradxform.wrappers.complex_parts import *
    from gradxform.wrappers.compose import *
    from gradxform.wrappers.condition import *
    from gradxform.wrappers.decay import *
    from gradxform.wrappers.eval_params import *
    from gradxform.wrappers.external_step import *
    from gradxform.wrappers.factor import *
    from gradxform.wrappers.flatten import *
    from gradxform.wrappers.frozen import *
    from gradxform.wrappers.guard import *
    from gradxform.wrappers.hyperparams.inject import *
    from gradxform.wrappers.lookahead import *
    from gradxform.wrappers.loss_scale import *
    from gradxform.wrappers.low_rank.galore import *
    from gradxform.wrappers.mars import *
    from gradxform.wrappers.mechanize import *
    from gradxform.wrappers.monitor import *
    from gradxform.wrappers.multi_steps import *
    from gradxform.wrappers.muonclip import *
    from gradxform.wrappers.narrow.narrow_params import *
    from gradxform.wrappers.norm_bounds import *
    from gradxform.wrappers.offload import *
    from gradxform.wrappers.overwrite import *
    from gradxform.wrappers.param_groups.groups import *
    from gradxform.wrappers.param_groups.param_group import *
    from gradxform.wrappers.param_groups.rules import *
    from gradxform.wrappers.power_average import *
    from gradxform.wrappers.project import *
    from gradxform.wrappers.radial import *
    from gradxform.wrappers.reset import *
    from gradxform.wrappers.sam import *
    from gradxform.wrappers.schedule_free import *
    from gradxform.wrappers.select import *
    from gradxform.wrappers.sharpness import *
    from gradxform.wrappers.sparse import *
    from gradxform.wrappers.spikes import *
    from gradxform.wrappers.stored.storage import *
    from gradxform.wrappers.variable_names import *
    from gradxform.wrappers.with_metrics import *
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
