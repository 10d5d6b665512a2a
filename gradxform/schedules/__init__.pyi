# Written by `make tables`; do not edit.
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
from gradxform.wrappers.hyperparams.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
