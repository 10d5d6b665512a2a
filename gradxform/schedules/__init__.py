"""Schedules as values: what a number, such as a learning rate, is at every step.

A schedule is called with the count of steps already made and returns a float. It may stand wherever
a learning rate may; so may a plain function of the count.

The names of `optax.schedules` can be had from here, `inject_hyperparams` too.
"""

from gradxform.registry import forwarded
from gradxform.schedules.base import Schedule as Schedule
from gradxform.schedules.basic import (
    as_schedule as as_schedule,
    constant_schedule as constant_schedule,
    linear_schedule as linear_schedule,
    polynomial_schedule as polynomial_schedule,
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

__getattr__, __dir__ = forwarded(__name__, ["InjectStatefulHyperparamsState", "inject_hyperparams"])
