"""Rows for `gradxform/wrappers/schedule_free.py`, and their recipes."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, SGD, Case, falling, with_lr
from tests.catalogue.dadapt import steady

WRAPPERS: dict[str, Case] = {
    "schedule_free": Case(
        gx.schedule_free(gx.sgd(0.1), 0.1, 0.6), ref.schedule_free(SGD, 0.1, 0.6), rows=False
    ),
    "schedule_free/schedule": Case(
        gx.schedule_free(gx.adam(FALLING, b1=0.0), FALLING, 1.0, 0.5),
        ref.schedule_free(ref.sequence(ref.adam(0.0, 0.999, 1e-8), FALLING_LR), falling, 1.0, 0.5),
        rows=False,
    ),
    "schedule_free/steps": Case(
        gx.schedule_free(gx.sgd(0.1), 0.1, 0.6, weight_step_power=1.5),
        ref.schedule_free(SGD, 0.1, 0.6, r=1.5),
        rows=False,
    ),
    "schedule_free/decoupled": Case(
        gx.schedule_free(gx.sgd(0.1), 0.1, 0.6, decoupling=4.0),
        ref.schedule_free(SGD, 0.1, 0.6, decoupling=4.0),
        rows=False,
    ),
    "schedule_free/estimate": Case(
        gx.schedule_free(gx.trac(gx.sgd(0.1), s_init=0.1), 1.0, 0.6, base_at_z=True),
        ref.schedule_free(ref.trac(SGD, 0.1, 1e-8, 6), 1.0, 0.6, d=lambda state: state[-1]),
        rows=False,
        draw=steady,
        huge_ok=False,
    ),
}


def climbing(n):
    """The learning rate 0.5 after a warm-up of four steps."""
    return 0.5 * min(n / 4, 1)


CLIMB = ref.scale(lambda n: -climbing(n))


def rectified(n):
    """RAdam's factor after n updates, with b2 = 0.9, times 0.5."""
    t = n + 1
    r = 19 - 2 * t * 0.9**t / (1 - 0.9**t)
    return 0.5 * ((r - 4) * (r - 2) * 19 / (15 * 17 * r)) ** 0.5 if r > 4 else 0.0


OPTIMIZERS: dict[str, Case] = {
    "schedule_free_sgd": Case(
        gx.schedule_free_sgd(0.5, 4, 0.8, 0.1, 1.5),
        ref.schedule_free(ref.sequence(ref.decay(0.1), CLIMB), climbing, 0.8, 1.5),
        rows=False,
    ),
    "schedule_free_sgd/paper": Case(
        gx.schedule_free_sgd(0.5, 4, 0.8, 0.1, 1.5, warmup_from_zero=False),
        ref.schedule_free(
            ref.sequence(ref.decay(0.1), ref.scale(lambda n: -climbing(n + 1))),
            lambda n: climbing(n + 1),
            0.8,
            1.5,
            ahead=False,
        ),
        rows=False,
    ),
    "schedule_free_adamw/paper": Case(
        gx.schedule_free_adamw(0.5, 4, 0.8, 0.9, 1e-3, warmup_from_zero=False),
        ref.schedule_free(
            ref.sequence(ref.adam(0.0, 0.9, 1e-3), ref.scale(lambda n: -climbing(n + 1))),
            lambda n: climbing(n + 1),
            0.8,
            ahead=False,
        ),
        rows=False,
    ),
    "schedule_free_adamw": Case(
        gx.schedule_free_adamw(0.1, None, 0.8, 0.9, 1e-3, 0.1),
        ref.schedule_free(with_lr(0.1, ref.adam(0.0, 0.9, 1e-3), ref.decay(0.1)), 0.1, 0.8),
        rows=False,
    ),
    "schedule_free_prodigy": Case(
        gx.schedule_free_prodigy(FALLING, 0.6, 0.9, 0.7, 1e-2, 0.05, 2.0, 0.1, 1.5),
        ref.schedule_free(
            ref.prodigy(falling, 0.0, 0.9, 0.7, 1e-2, 0.05, 2.0, 0.1, debias=False),
            *(falling, 0.6, 1.5, False),
            d=lambda state: state[4],
        ),
        rows=False,
        draw=steady,
    ),
    "schedule_free_prodigy/limited": Case(
        gx.schedule_free_prodigy(
            *(1.0, 0.6, 0.9, 0.7, 1e-2, 0.05, 2.0), growth_rate=1.2, weight_step_power=0.5
        ),
        ref.schedule_free(
            ref.prodigy(1.0, 0.0, 0.9, 0.7, 1e-2, 0.05, 2.0, 0.0, growth=1.2, debias=False),
            *(1.0, 0.6, 2.0, False, 0.5),
            d=lambda state: state[4],
        ),
        rows=False,
        draw=steady,
        derivatives=None,  # the limit begins where the estimate leaves the first one: a jump
    ),
    "schedule_free_radam": Case(
        gx.schedule_free_radam(0.5, 0.8, 0.9, 1e-3, 0.1, 1.5),
        ref.schedule_free(
            ref.sequence(
                ref.adam(0.0, 0.9, 1e-3), ref.decay(0.1), ref.scale(lambda n: -rectified(n))
            ),
            rectified,
            0.8,
            1.5,
            ahead=False,
        ),
        rows=False,
    ),
}


FREE = gx.schedule_free_sgd(0.1)
PARAMS = {"w": jnp.ones(2)}

REFUSED = [
    ("schedule_free_radam(-0.1)",
     ValueError, "schedule_free_radam: learning_rate must be at least 0, got -0.1."),
    ("schedule_free_adamw(-0.1, warmup_steps=3)",
     ValueError, "schedule_free_adamw: learning_rate must be at least 0, got -0.1."),
    ("schedule_free(0.1, 0.1)", TypeError, "schedule_free", "base_optimizer"),
    ("schedule_free(sgd(0.1), -0.1)", ValueError, "learning_rate", "at least 0"),
    ("schedule_free(sgd(0.1), None)", TypeError, "learning_rate", "None"),
    ("schedule_free_sgd(0.1, b1=0.0)", ValueError, "b1", "in (0, 1]", "0.0"),
    ("schedule_free_sgd(0.1, b1=1.1)", ValueError, "b1", "in (0, 1]", "1.1"),
    ("schedule_free_sgd(0.1, weight_lr_power=-1)", ValueError, "weight_lr_power", "at least 0"),
    ("schedule_free_sgd(0.1, state_dtype='int32')", ValueError, "state_dtype", "floating"),
    ("schedule_free(mechanize(prodigy()), 1.0)",
     ValueError, "schedule_free: mechanize and step_by_prodigy in it estimate learning rates"),
    ("schedule_free(ftrl(0.1), 0.1)", ValueError, "schedule_free", "step_by_ftrl", "undo"),
    ("schedule_free_sgd(0.1, 0)", ValueError, "schedule_free_sgd: warmup_steps", "0"),
    ("schedule_free_adamw(0.1, 1.5)", TypeError, "schedule_free_adamw", "1.5"),
    ("FREE.update(PARAMS, FREE.init(PARAMS))", ValueError, "schedule_free: needs the parameters"),
    ("FREE.update(PARAMS, adam(0.1).init(PARAMS), PARAMS)",
     TypeError, "schedule_free", "ScheduleFreeState", "another transform's init"),
    ("FREE.update({'w': jnp.ones(3)}, FREE.init(PARAMS), {'w': jnp.ones(3)})",
     ValueError, "schedule_free", "['w']", "(3,)", "the state has (2,)"),
    ("one_step(schedule_free(sgd(0.1), lambda n: '0.1'))",
     TypeError, "schedule_free: learning_rate"),
    ("schedule_free_eval_params(adam(0.1).init(PARAMS), PARAMS)",
     TypeError, "schedule_free_eval_params", "ScheduleFreeState", "eval_params"),
    ("eval_params(FREE.init(PARAMS))", ValueError, "eval_params: needs the parameters"),
    ("swap(optax.contrib.schedule_free_sgd(0.1).init(PARAMS), PARAMS)",
     ValueError, "swap: ScheduleFreeState at the root", "from_optax_state"),
]  # fmt: skip
