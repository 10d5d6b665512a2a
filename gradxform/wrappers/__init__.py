"""Wrappers: each takes a transformation and changes when, where or on what it runs."""

from typing import TYPE_CHECKING

from gradxform._lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.wrappers.accumulate import *
    from gradxform.wrappers.accumulate_rows import *
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
    from gradxform.wrappers.galore import *
    from gradxform.wrappers.group_rules import *
    from gradxform.wrappers.groups import *
    from gradxform.wrappers.guard import *
    from gradxform.wrappers.inject import *
    from gradxform.wrappers.lookahead import *
    from gradxform.wrappers.loss_scale import *
    from gradxform.wrappers.mars import *
    from gradxform.wrappers.mechanize import *
    from gradxform.wrappers.monitor import *
    from gradxform.wrappers.multi_steps import *
    from gradxform.wrappers.muonclip import *
    from gradxform.wrappers.narrow_params import *
    from gradxform.wrappers.norm_bounds import *
    from gradxform.wrappers.offload import *
    from gradxform.wrappers.overwrite import *
    from gradxform.wrappers.param_group import *
    from gradxform.wrappers.power_average import *
    from gradxform.wrappers.project import *
    from gradxform.wrappers.raw_gradients import *
    from gradxform.wrappers.sam import *
    from gradxform.wrappers.schedule_free import *
    from gradxform.wrappers.select import *
    from gradxform.wrappers.sparse import *
    from gradxform.wrappers.spikes import *
    from gradxform.wrappers.storage import *
    from gradxform.wrappers.variable_names import *
    from gradxform.wrappers.with_metrics import *
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
