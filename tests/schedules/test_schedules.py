"""Schedules: their values beside TensorFlow's, Optax's and float64's, and that they are values."""

import json
import math
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from tests.public import names_of

pytestmark = pytest.mark.numeric

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "schedules"
STEPS = np.arange(131)


def spelled(name, *args, **kwargs):
    return pytest.param(name, args, kwargs, id=f"{name}{args}{kwargs}"[:90])


# Schedules that Optax has, with positional arguments so that their order is checked too.
SHARED = [
    spelled("constant_schedule", 0.3),
    spelled("linear_schedule", 1.0, 0.1, 50),
    spelled("linear_schedule", 0.0, 1.0, 41, 7),
    spelled("linear_schedule", 1.0, 0.0, 0),
    spelled("linear_schedule", 1.0, 0.0, -3),
    spelled("linear_schedule", 1.0, 0.5, 12.5, 2.5),
    spelled("polynomial_schedule", 1.0, 0.1, 2, 50),
    spelled("polynomial_schedule", 0.1, 1.0, 0.5, 50, 3),
    spelled("polynomial_schedule", 0.1, 1.0, 0.0, 50),
    spelled("polynomial_schedule", 0.1, 1.0, 2.0, 0),
    spelled("exponential_decay", 1.0, 10, 0.5),
    spelled("exponential_decay", 1.0, 10, 0.9, 5, True),
    spelled("exponential_decay", 1.0, 10, 0.5, 5, False, 0.01),
    spelled("exponential_decay", 1.0, 30, 1.5, 5, True, 2.0),
    spelled("cosine_decay_schedule", 1.0, 50),
    spelled("cosine_decay_schedule", 0.3, 47, 0.1, 2.0),
    spelled("cosine_decay_schedule", 0.3, 47, 0.1, 0.0),
    spelled("cosine_onecycle_schedule", 100, 1.0),
    spelled("cosine_onecycle_schedule", 77, 0.2, 0.0, 10.0, 100.0),
    spelled("linear_onecycle_schedule", 100, 1.0),
    spelled("linear_onecycle_schedule", 77, 0.2, 0.25, 0.5, 10.0, 100.0),
    spelled("piecewise_constant_schedule", 0.5),
    spelled("piecewise_constant_schedule", 0.5, {}),
    spelled("piecewise_constant_schedule", 0.5, {60: 0.1, 20: 0.5, 90: 0.0}),
    spelled("piecewise_constant_schedule", 0.5, {0: 0.1, 20: 3}),
    spelled("piecewise_interpolate_schedule", "linear", 0.5),
    spelled("piecewise_interpolate_schedule", "linear", 0.5, {60: 0.1, 20: 0.5, 90: 3.0}),
    spelled("piecewise_interpolate_schedule", "cosine", 0.5, {60: 0.1, 20: 0.5, 90: 3.0}),
    spelled("piecewise_interpolate_schedule", "linear", 0.5, {0: 0.5, 7: 0.5}),
    spelled("warmup_constant_schedule", 0.1, 1.0, 20),
    spelled("warmup_cosine_decay_schedule", 0.0, 1.0, 10, 100),
    spelled("warmup_cosine_decay_schedule", 0.1, 1.0, 0, 100, 0.05, 2.0),
    spelled("warmup_cosine_decay_schedule", 0.1, 0.0, 10, 100),
    spelled("warmup_exponential_decay_schedule", 0.0, 1.0, 10, 20, 0.5),
    spelled("warmup_exponential_decay_schedule", 0.0, 1.0, 10, 20, 0.5, 3, True, 0.1),
    spelled(
        "sgdr_schedule",
        [
            {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 30},
            {"init_value": 0.1, "peak_value": 0.5, "warmup_steps": 5, "decay_steps": 60},
            {"init_value": 0.1, "peak_value": 0.2, "warmup_steps": 0, "decay_steps": 10},
        ],
    ),
]

# Schedules that Optax lacks.
ADDED = [
    spelled("polynomial_schedule", 0.1, 0.01, 0.5, 15, cycle=True),
    spelled("polynomial_schedule", 0.1, 0.01, 1.0, 20, 7, cycle=True),
    spelled("natural_exp_decay", 0.1, 10, 0.5),
    spelled("natural_exp_decay", 0.1, 15, 0.5, 4, True),
    spelled("inverse_time_decay", 0.1, 10, 0.5),
    spelled("inverse_time_decay", 0.1, 15, 0.5, 4, True),
    spelled("inverse_sqrt_decay", 0.1),
    spelled("inverse_sqrt_decay", 0.1, 15, 4),
    spelled("linear_cosine_decay", 0.1, 20),
    spelled("linear_cosine_decay", 0.1, 21, 2.3, 0.1, 0.01),
    spelled("cosine_decay_restarts", 0.1, 8),
    spelled("cosine_decay_restarts", 0.1, 8, 1.0, 0.5, 0.1),
    spelled("cosine_decay_restarts", 0.1, 8, 1.5, 0.9, 0.1),
    spelled("cosine_decay_restarts", 0.1, 7.5, 1.25, 0.9, 0.1),
    spelled("cosine_decay_restarts", 0.1, 7.5, 1.0),
    spelled("linear_sign_decay", 20),
    spelled("cosine_sign_decay", 20),
    spelled("cosine_sign_decay", 100, 3.5, 2.5),
    spelled("rectified_warmup_schedule"),
    spelled("rectified_warmup_schedule", 0.9, 4.0),
    spelled("restart_sign_decay", 20),
    spelled("restart_sign_decay", 100, 3.0, 2.0),
    spelled("restart_sign_decay", 100, 1.5, None),
    spelled("cyclic_schedule", 0.1, 1.0, 10),
    spelled("cyclic_schedule", 1.0, 0.2, 7.5),
    spelled("cyclic_schedule", 0.1, 1.0, 12, "triangular2"),
    spelled("cyclic_schedule", 0.1, 1.0, 12, "exp_range", 0.98),
    spelled("cyclic_schedule", 0.1, 1.0, 30, "exp_range", 1.01),
    spelled("warmup_cosine_decay_schedule", 0.1, 0.0, 10, 100, -0.3),
    spelled("warmup_cosine_decay_schedule", 0.1, 0.0, 10, 100, 0.3, 2.0),
    spelled("warmup_stable_decay_schedule", 0.1, 1.0, 10, 30, 100),
    spelled("warmup_stable_decay_schedule", 0.0, 1.0, 0.1, 0.333, 100, 0.2, "linear"),
    spelled("warmup_stable_decay_schedule", 0.0, 0.1, 0, 100, 100, 0.3, "cosine"),
    spelled("warmup_stable_decay_schedule", 0.0, 1.0, 70, 0.3, 100, shape="1-square"),
    spelled("cooldown_from", 0.7, 40, 50),
    spelled("cooldown_from", gx.linear_schedule(0.0, 1.0, 60), 30, 40, "linear", 0.1),
    spelled("cooldown_from", gx.cosine_decay_schedule(1.0, 90), 12.5, 30.5, "cosine", 2.0),
    spelled("cooldown_from", 1.0, 0, 100, "1-square"),
]

EVERY = [
    *SHARED,
    *ADDED,
    pytest.param("join_schedules", None, {}, id="join_schedules"),
    pytest.param("product_schedule", None, {}, id="product_schedule"),
]


# One of each name, for what costs many compilations.
EACH = list({p.values[0]: p for p in reversed(EVERY)}.values())


def make(name, args, kwargs):
    if name == "join_schedules":
        first, last = gx.linear_schedule(0.0, 1.0, 10), gx.cosine_decay_schedule(1.0, 60)
        return gx.join_schedules((first, 0.7, last), (10, 20))
    if name == "product_schedule":
        return gx.product_schedule(gx.linear_schedule(0.0, 1.0, 10), 0.5, gx.inverse_sqrt_decay(2))
    return getattr(gx, name)(*args, **kwargs)


def values(schedule, counts=STEPS):
    return np.array([float(schedule(int(n))) for n in counts])


def optax_values(schedule):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        # Not under jit: there 1 - 50 / 50 need not be 0, of which Optax may take the root.
        return jax.vmap(lambda n: jnp.asarray(schedule(n)))(jnp.asarray(STEPS))


# ---------------------------------------------------------------------------------------- values


@pytest.mark.reference
@pytest.mark.parametrize(
    "case", json.loads((GOLDEN / "cases.json").read_text()), ids=lambda case: case["trace"][6:-10]
)
def test_a_schedule_follows_the_recorded_tensorflow_trace(case):
    trace = np.load(GOLDEN / case["trace"])
    schedule = getattr(gx, case["name"])(**case["args"])
    # The recorded float32 values are themselves off by up to 4e-8 of the largest.
    scale = np.abs(trace["value"]).max()
    np.testing.assert_allclose(
        schedule(trace["step"]), trace["value"], rtol=1e-6, atol=1e-7 * scale
    )


@pytest.mark.reference
@pytest.mark.parametrize("name, args, kwargs", SHARED)
def test_a_schedule_equals_optaxs(name, args, kwargs):
    ours = make(name, args, kwargs)(STEPS)
    theirs = optax_values(getattr(optax, name)(*args, **kwargs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())


def test_join_schedules_equals_optaxs():
    ours = make("join_schedules", None, {})
    line, cosine = optax.linear_schedule(0.0, 1.0, 10), optax.cosine_decay_schedule(1.0, 60)
    theirs = optax.join_schedules([line, optax.constant_schedule(0.7), cosine], [10, 20])
    np.testing.assert_allclose(ours(STEPS), optax_values(theirs), rtol=1e-6, atol=1e-6)


def restarts(n, init, first, t_mul=2.0, m_mul=1.0, alpha=0.0):
    length, height = first, 1.0
    while n >= length:
        n, length, height = n - length, length * t_mul, height * m_mul
    return init * ((1 - alpha) * height * (1 + math.cos(math.pi * n / length)) / 2 + alpha)


def cycled(n, init, end, power, steps, begin=0, cycle=True):
    k = max(n - begin, 0)
    total = steps * max(1, -(-k // steps))
    return (init - end) * (1 - k / total) ** power + end


def elapsed(n, steps, begin, staircase):
    k = max(n - begin, 0)
    return k // steps if staircase else k / steps


def linear_cosine(n, init, steps, periods=0.5, alpha=0.0, beta=0.001):
    t = min(n, steps) / steps
    return init * ((alpha + 1 - t) * (1 + math.cos(2 * math.pi * periods * t)) / 2 + beta)


def cosine_sign(n, steps, periods=0.5, zero_after=None):
    f = 2 * periods * min(n, steps) / steps
    return 0 if zero_after is not None and f >= 2 * zero_after else (1 + math.cos(math.pi * f)) / 2


def restart_sign(n, steps, periods=1.0, zero_after=None):
    n = min(n, steps)
    if zero_after is not None and periods * n / steps >= zero_after:
        return 0
    return (1 + math.cos(math.pi * ((periods * n) % steps) / steps)) / 2


def rectified_warmup(n, b2=0.999, threshold=5.0):
    """Liu et al., Algorithm 2, at t = n + 1."""
    t, most = n + 1, 2 / (1 - b2) - 1
    r = most - 2 * t * b2**t / (1 - b2**t)
    if r < threshold:
        return 0
    return math.sqrt((r - 4) * (r - 2) * most / ((most - 4) * (most - 2) * r))


def cyclic(n, init, peak, steps, mode="triangular", gamma=1.0):
    """Smith, 2017, section 3: cycle = floor(1 + n / 2 S), x = |n / S - 2 cycle + 1|."""
    cycle = math.floor(1 + n / (2 * steps))
    x = abs(n / steps - 2 * cycle + 1)
    height = {"triangular": 1.0, "triangular2": 0.5 ** (cycle - 1), "exp_range": gamma**n}[mode]
    return init + (peak - init) * max(0.0, 1 - x) * height


def warmed_up(n, init, peak, warmup, steps, end=0.0, exponent=1.0):
    if n < warmup:
        return init + (peak - init) * n / warmup
    t = min((n - warmup) / (steps - warmup), 1)
    return end + (peak - end) * ((1 + math.cos(math.pi * t)) / 2) ** exponent


def cooled(n, schedule, start, steps, shape="1-sqrt", end=0.0):
    """Haegele et al., section 3, from the value at `start`."""
    if n < start:
        return float(gx.as_schedule(schedule)(n))
    t = min((n - start) / steps, 1)
    share = {
        "1-sqrt": 1 - math.sqrt(t),
        "linear": 1 - t,
        "cosine": (1 + math.cos(math.pi * t)) / 2,
        "1-square": 1 - t**2,
    }[shape]
    return end + (float(gx.as_schedule(schedule)(start)) - end) * share


def stable(n, init, peak, warmup, decay, total, end=0.0, shape="1-sqrt"):
    warmup, decay = (round(x * total) if 0 < x < 1 else x for x in (warmup, decay))
    if n < warmup:
        return init + (peak - init) * n / warmup
    return cooled(n, peak, total - decay, decay, shape, end)


REFERENCES = {
    "warmup_stable_decay_schedule": stable,
    "cooldown_from": cooled,
    "cyclic_schedule": cyclic,
    "warmup_cosine_decay_schedule": warmed_up,
    "polynomial_schedule": cycled,
    "natural_exp_decay": lambda n, init, steps, rate, begin=0, stairs=False: (
        init * math.exp(-rate * elapsed(n, steps, begin, stairs))
    ),
    "inverse_time_decay": lambda n, init, steps, rate, begin=0, stairs=False: (
        init / (1 + rate * elapsed(n, steps, begin, stairs))
    ),
    "inverse_sqrt_decay": lambda n, init, steps=1, begin=0: (
        init / math.sqrt(1 + elapsed(n, steps, begin, False))
    ),
    "linear_cosine_decay": linear_cosine,
    "cosine_decay_restarts": restarts,
    "linear_sign_decay": lambda n, steps: max(0, (steps - n) / steps),
    "cosine_sign_decay": cosine_sign,
    "restart_sign_decay": restart_sign,
    "rectified_warmup_schedule": rectified_warmup,
}


@pytest.mark.reference
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name, args, kwargs", ADDED)
def test_a_schedule_follows_its_float64_reference(name, args, kwargs, jit):
    schedule = make(name, args, kwargs)
    want = np.array([REFERENCES[name](int(n), *args, **kwargs) for n in STEPS])
    found = (jax.jit(schedule) if jit else schedule)(STEPS)
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=2e-7 * want.max())


def ends(rng):
    """Of every schedule with an end: some of it, where it begins, and where it ends."""
    init, end, peak, alpha = (float(x) for x in rng.uniform(0.0, 1.0, 4))
    steps, warmup, exponent = int(rng.integers(30, 2000)), int(rng.integers(1, 29)), 0.5 + alpha
    final = peak / 25.0 / 1e4
    scales = {warmup: alpha, steps: exponent}
    yield gx.constant_schedule(init), 0, init, steps, init
    yield gx.linear_schedule(init, end, steps), 0, init, steps, end
    yield gx.polynomial_schedule(init, end, exponent, steps), 0, init, steps, end
    yield gx.cosine_decay_schedule(init, steps, alpha), 0, init, steps, init * alpha
    yield gx.cosine_decay_schedule(init, steps, alpha, exponent), 0, init, steps, init * alpha
    yield gx.warmup_constant_schedule(init, peak, warmup), 0, init, warmup, peak
    for power in (1.0, exponent):
        warm = gx.warmup_cosine_decay_schedule(init, peak, warmup, steps, end, power)
        yield warm, 0, init, steps, end
        yield warm, warmup, peak, steps + 1, end
    for shape in ("1-sqrt", "linear", "cosine", "1-square", gx.linear_schedule(peak, 0.0, warmup)):
        decay = gx.cooldown_from(gx.constant_schedule(init), warmup, steps, shape, end)
        yield decay, warmup, init, warmup + steps, end
        yield decay, warmup - 1, init, warmup + steps + 1, end
    wsd = gx.warmup_stable_decay_schedule(init, peak, warmup, steps, 2 * steps, end)
    yield wsd, 0, init, 2 * steps, end
    yield wsd, warmup, peak, 2 * steps + 1, end
    yield wsd, steps, peak, steps - 1, peak
    decay = gx.warmup_exponential_decay_schedule(init, peak, warmup, steps, 0.5)
    yield decay, 0, init, warmup, peak
    decay = gx.exponential_decay(init, warmup, 0.1, end_value=init * 0.5)
    yield decay, 0, init, steps, init * 0.5
    for periods, last in ((0.5, end), (1.0, alpha + end), (1.5, end)):
        cosine = gx.linear_cosine_decay(init, steps, periods, alpha, end)
        yield cosine, 0, init * (1 + alpha + end), steps, init * last
    yield gx.cosine_decay_restarts(init, steps, 2.0, 1.0, alpha), 0, init, 0, init
    for schedule in (gx.cosine_onecycle_schedule, gx.linear_onecycle_schedule):
        yield schedule(steps, peak), 0, peak / 25.0, steps, final
    yield gx.piecewise_constant_schedule(init, scales), 0, init, steps, init * alpha * exponent
    for kind in ("linear", "cosine"):
        schedule = gx.piecewise_interpolate_schedule(kind, init, scales)
        yield schedule, 0, init, steps, init * alpha * exponent
    for schedule in (gx.linear_sign_decay, gx.cosine_sign_decay):
        yield schedule(steps), 0, 1.0, steps, 0.0
    for mode in ("triangular", "triangular2"):
        schedule = gx.cyclic_schedule(init, peak, steps, mode)
        yield schedule, 0, init, 2 * steps, init
        yield schedule, steps, peak, 4 * steps, init
    yield gx.cyclic_schedule(init, peak, steps, "exp_range", 0.99), 0, init, 2 * steps, init
    # These never end.
    for schedule in (gx.natural_exp_decay, gx.inverse_time_decay):
        yield schedule(init, steps, alpha), 0, init, 0, init
    yield gx.inverse_sqrt_decay(init, steps), 0, init, 0, init


def test_schedules_meet_both_ends_bit_for_bit():
    rng, off = np.random.default_rng(0), []
    for _ in range(25):
        for schedule, begin, first, end, last in ends(rng):
            for n, want in ((begin, first), (end, last)):
                found = np.float32(schedule(n))
                if found != np.float32(want):
                    off.append(f"{schedule} at {n}: {found!r} and not {np.float32(want)!r}")
    assert not off, off[:5]


LARGE = [0, 1, 999, 2**24, 2**24 + 1, 2**24 + 3, 29_999_999, 30_000_000, 2**31 - 1]


@pytest.mark.parametrize(
    "schedule, reference",
    [
        (gx.linear_schedule(0.0, 1.0, 30_000_000), lambda n: min(n / 3e7, 1)),
        (gx.linear_schedule(1.0, 0.0, 30_000_000), lambda n: max(1 - n / 3e7, 0)),
        (
            gx.cosine_decay_schedule(1.0, 30_000_000),
            lambda n: math.sin(math.pi / 2 * max(3e7 - n, 0) / 3e7) ** 2,
        ),
        (gx.exponential_decay(1.0, 1, 0.999999), lambda n: math.exp(n * math.log(0.999999))),
        (
            gx.exponential_decay(1.0, 3, 0.9999999, staircase=True),
            lambda n: math.exp(n // 3 * math.log(0.9999999)),
        ),
        (gx.polynomial_schedule(1.0, 0.0, 2, 1001, cycle=True), lambda n: cycled(n, 1, 0, 2, 1001)),
        (gx.cosine_decay_restarts(1.0, 1001), lambda n: restarts(n, 1.0, 1001)),
        (gx.cosine_decay_restarts(1.0, 1001, 1.0), lambda n: restarts(n % 1001, 1.0, 1001, 1.0)),
        (
            gx.cooldown_from(1.0, 2**24 + 1, 30_000_000 - 2**24, "linear"),
            lambda n: cooled(n, 1.0, 2**24 + 1, 30_000_000 - 2**24, "linear"),
        ),
        (
            gx.warmup_stable_decay_schedule(0.0, 1.0, 2**24, 3, 30_000_000),
            lambda n: stable(n, 0.0, 1.0, 2**24, 3, 30_000_000),
        ),
        (gx.join_schedules((1.0, 2.0), (2**24 + 1,)), lambda n: 1.0 + (n >= 2**24 + 1)),
        (
            gx.piecewise_constant_schedule(1.0, {2**24 + 1: 2, 30_000_000: 2}),
            lambda n: 2.0 ** ((n >= 2**24 + 1) + (n >= 30_000_000)),
        ),
        (
            gx.piecewise_interpolate_schedule("linear", 1.0, {2**24: 2, 2**24 + 2: 3}),
            lambda n: np.interp(n, [0, 2**24, 2**24 + 2], [1.0, 2.0, 6.0]),
        ),
    ],
    ids=lambda x: repr(x)[:60] if isinstance(x, gx.Schedule) else "",
)
def test_large_counts_are_exact(schedule, reference):
    want = [reference(n) for n in LARGE]
    counts = jnp.asarray(LARGE, jnp.int32)
    for found in (values(schedule, LARGE), schedule(counts), jax.jit(schedule)(counts)):
        # Where the exponent is large, float32 has that much less for the value.
        np.testing.assert_allclose(found, want, rtol=4e-6, atol=1e-12)


def test_whole_periods_begin_where_they_should():
    for period in (3, 15, 41, 49):
        counts = period * np.arange(1, 60)
        cycle = gx.polynomial_schedule(1.0, 0.0, 1.0, period, cycle=True)
        stairs = gx.inverse_time_decay(1.0, period, 1.0, staircase=True)
        for dtype in (jnp.int32, jnp.float32):
            k = jnp.asarray(counts, dtype)
            np.testing.assert_array_equal(jax.jit(cycle)(k), 0.0)
            np.testing.assert_allclose(jax.jit(stairs)(k), 1 / (1 + counts / period), rtol=3e-7)


@pytest.mark.parametrize("steps", [1, 7, 41, 47, 1000])
def test_the_ends_of_a_schedule_are_exact(steps):
    for schedule in (
        gx.linear_schedule(0.3, 0.1, steps),
        gx.polynomial_schedule(0.3, 0.1, 3.0, steps),
        gx.cosine_decay_schedule(0.3, steps, np.float32(0.1) / np.float32(0.3)),
    ):
        found = jax.jit(schedule)(jnp.asarray([0, steps, steps + 1]))
        np.testing.assert_allclose(found, [0.3, 0.1, 0.1], rtol=1.3e-7)


def test_boundaries_beyond_int32_are_accepted():
    join = gx.join_schedules((1.0, 2.0), (10**12,))
    steps = gx.piecewise_constant_schedule(1.0, {10**12: 2.0})
    ramp = gx.piecewise_interpolate_schedule("linear", 1.0, {10**12: 2.0})
    line = gx.linear_schedule(0.0, 1.0, 10**12)
    for n in (0, 10**6, 10**9):
        assert float(join(n)) == float(steps(n)) == 1.0
        assert float(ramp(n)) == pytest.approx(1 + n / 1e12, rel=1e-6)
        assert float(line(n)) == pytest.approx(n / 1e12, rel=1e-6)
    assert float(line(jnp.float32(2e12))) == 1.0
    assert float(steps(2e12)) == 2.0


# ------------------------------------------------------------------------------------- the call


@pytest.mark.parametrize("name, args, kwargs", EACH)
def test_counts_may_be_of_any_numeric_type(name, args, kwargs):
    schedule = make(name, args, kwargs)
    want = float(schedule(13))
    for count in (
        13.0,
        np.int64(13),
        np.uint8(13),
        np.int8(13),
        np.float64(13),
        jnp.int32(13),
        jnp.uint32(13),
        jnp.int8(13),
        jnp.float32(13),
        jnp.bfloat16(13),
        jnp.asarray(13),
    ):
        found = schedule(count)
        assert isinstance(found, jax.Array) and found.shape == ()
        assert found.dtype == jnp.float32 and not found.weak_type
        assert float(found) == pytest.approx(want, rel=1e-6, abs=1e-7)
    assert float(schedule(-5)) == float(schedule(0))
    assert np.isfinite(float(schedule(10**20)))


@pytest.mark.parametrize("name, args, kwargs", EVERY)
def test_jit_vmap_and_scan_change_nothing(name, args, kwargs):
    schedule = make(name, args, kwargs)
    want = schedule(STEPS)
    assert want.shape == STEPS.shape and want.dtype == jnp.float32 and not want.weak_type
    counts = jnp.asarray(STEPS)
    same = dict(rtol=1e-6, atol=1e-6 * float(jnp.abs(want).max()))
    np.testing.assert_allclose(values(schedule, STEPS[::13]), want[::13], **same)
    assert jax.eval_shape(schedule, counts[:4].reshape(2, 2)).shape == (2, 2)

    def step(count, _):
        return count + 1, schedule(count)

    @jax.jit  # one program for all three
    def all_ways(counts, first):
        scanned = jax.lax.scan(step, first, length=len(STEPS))[1]
        return schedule(counts), jax.vmap(schedule)(counts), scanned

    for found in all_ways(counts, jnp.zeros((), jnp.int32)):
        np.testing.assert_allclose(found, want, **same)


def test_counts_that_are_not_real_numbers_are_refused():
    for count in ("3", 3j, None, jnp.complex64(3)):
        with pytest.raises(TypeError, match="called with a number of steps"):
            gx.linear_schedule(0.0, 1.0, 10)(count)


def test_with_64_bits_enabled_schedules_are_float64():
    with jax.enable_x64(True):
        for count in (13, 13.0, np.int64(13), jnp.asarray(13), jnp.asarray(13.0)):
            found = gx.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)(count)
            assert found.dtype == jnp.float64 and not found.weak_type


def numbers(name):
    """Return the fields of a schedule that hold a number and may be traced."""
    fixed = {
        "cosine_decay_restarts": {"first_decay_steps", "t_mul"},
        "linear_onecycle_schedule": {"transition_steps", "pct_start", "pct_final"},
        "cosine_onecycle_schedule": {"transition_steps", "pct_start"},
    }
    return lambda field: field not in fixed.get(name, ())


@pytest.mark.parametrize("name, args, kwargs", EACH)
def test_fields_may_be_traced(name, args, kwargs):
    """Every number may be mapped over; the values are those of separate schedules."""
    if name in ("sgdr_schedule", "join_schedules", "product_schedule"):
        return
    schedule = make(name, args, kwargs)
    may_vary = numbers(name)
    fields = {f: getattr(schedule, f) for f in schedule.__dataclass_fields__}
    for field, x in fields.items():
        if isinstance(x, bool) or not isinstance(x, int | float) or not may_vary(field):
            continue
        given = jnp.asarray([x, x])  # an int stays int32, a float becomes float32

        def run(x, field=field):
            made = gx.replace(schedule, **{field: x})
            assert made != schedule and "live" in repr(made)
            with pytest.raises(TypeError, match="hashable"):
                hash(made)
            return made(jnp.asarray(STEPS))

        want = schedule(STEPS)
        found = jax.jit(jax.vmap(run))(given)
        # A rate rounded to float32, to the power of a hundred.
        scale = 3e-6 * float(jnp.abs(want).max())
        for row in found:
            np.testing.assert_allclose(row, want, rtol=1e-5, atol=scale, err_msg=field)


def test_the_parts_of_a_composition_may_be_traced():
    def run(steps, scale):
        warm = gx.warmup_cosine_decay_schedule(0.0, 1.0, steps, 3 * steps)
        joined = gx.join_schedules((gx.linear_schedule(0.0, scale, steps), scale), (steps,))
        piecewise = gx.piecewise_constant_schedule(1.0, {5: scale, 2: 0.5})
        cycles = gx.sgdr_schedule(
            [dict(init_value=0.0, peak_value=scale, warmup_steps=2, decay_steps=steps)] * 3
        )
        return jnp.stack([s(jnp.asarray(STEPS)) for s in (warm, joined, piecewise, cycles)])

    found = jax.vmap(run)(jnp.asarray([10, 20]), jnp.asarray([0.5, 0.25]))
    for row, args in zip(found, [(10, 0.5), (20, 0.25)], strict=True):
        np.testing.assert_allclose(row, run(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 5])
def test_zero_steps_may_be_traced(count):
    """The conventions for an empty transition hold where only the run knows that it is empty."""
    line = jax.jit(lambda steps: gx.linear_schedule(1.0, 0.0, steps)(count))
    warm = jax.jit(lambda steps: gx.warmup_constant_schedule(0.0, 1.0, steps)(count))
    peak = jax.jit(lambda x: gx.warmup_cosine_decay_schedule(0.0, x, 0, 10)(count))
    assert float(line(0)) == float(line(-1)) == 1.0
    assert float(warm(0)) == 1.0
    assert float(peak(0.0)) == 0.0


# ---------------------------------------------------------------------------------- being values


@pytest.mark.parametrize("name, args, kwargs", EVERY)
def test_every_schedule_is_a_value(name, args, kwargs):
    schedule = make(name, args, kwargs)
    assert isinstance(schedule, gx.Schedule)
    assert schedule == make(name, args, kwargs)
    assert hash(schedule) == hash(make(name, args, kwargs))
    assert eval(repr(schedule), names_of(gx) | {"inf": math.inf}) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert gx.from_json(gx.to_json(schedule)) == schedule
    assert gx.replace(schedule) == schedule
    assert schedule != gx.constant_schedule(12.0)


def test_a_schedule_prints_the_call_that_made_it():
    text = "piecewise_constant_schedule(init_value=1.0, boundaries_and_scales={10: 0.1, 20: 0.5})"
    assert repr(gx.piecewise_constant_schedule(1, {20: 0.5, np.int64(10): np.float64(0.1)})) == text
    warm = gx.warmup_cosine_decay_schedule(0.0, 1.0, 10, 1e2)
    assert repr(warm) == (
        "warmup_cosine_decay_schedule(init_value=0.0, peak_value=1.0, warmup_steps=10, "
        "decay_steps=100, end_value=0.0, exponent=1.0)"
    )
    constant = gx.warmup_constant_schedule(0.0, 1.0, 10)
    assert constant.expand() == gx.join_schedules(
        (gx.linear_schedule(0.0, 1.0, 10), gx.constant_schedule(1.0)), (10,)
    )
    assert "cycle" not in repr(gx.polynomial_schedule(1.0, 0.0, 1.0, 10))
    assert "cycle=True" in repr(gx.polynomial_schedule(1.0, 0.0, 1.0, 10, cycle=True))


def test_spellings_of_one_schedule_are_equal():
    one = gx.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1})
    assert one == gx.piecewise_constant_schedule(1.0, {20.0: 0.1, 10: 0.5})
    assert one == gx.piecewise_constant_schedule(1.0, [(20, 0.1), (10, 0.5)])
    assert gx.linear_schedule(0, 1, 10.0) == gx.linear_schedule(np.float64(0.0), 1.0, np.int32(10))
    assert gx.join_schedules([gx.constant_schedule(1.0), 2.0], [5]) == gx.join_schedules(
        (1.0, gx.constant_schedule(2)), (5.0,)
    )
    assert gx.linear_schedule(0, 1, 10) != gx.linear_schedule(0, 1, 11)


def test_equal_schedules_share_one_compiled_program():
    traces = []

    def run(schedule, count):
        traces.append(schedule)
        return schedule(count)

    jitted = jax.jit(run, static_argnums=0)
    for _ in range(2):
        jitted(gx.piecewise_constant_schedule(1.0, {3: 0.5}), 1)
        jitted(gx.warmup_constant_schedule(0.0, 1.0, 3), 1)
    assert len(traces) == 2


def test_as_schedule_takes_numbers_and_functions():
    f = optax.constant_schedule(0.5)
    line = gx.linear_schedule(0.0, 1.0, 10)
    assert gx.as_schedule(f) is f and gx.as_schedule(line) is line
    for x in (0.5, np.float32(0.5), jnp.float32(0.5)):
        assert gx.as_schedule(x) == gx.constant_schedule(0.5)
    for x in (None, "0.5", True, gx.linear_schedule, gx.ndim_at_least(2), gx.scale(0.1), {}):
        with pytest.raises(TypeError, match="as_schedule: x must be a number or a function"):
            gx.as_schedule(x)


def test_join_takes_plain_functions():
    seen = []

    def plain(count):
        seen.append(count)
        return 0.25

    joined = gx.join_schedules((plain, optax.linear_schedule(1.0, 0.0, 10)), (5,))
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(joined(jnp.asarray([0, 4, 5, 10, 20])), [0.25, 0.25, 1, 0.5, 0])
    assert seen[0].dtype == jnp.int32
    assert "plain" in repr(joined)
    assert gx.join_schedules((plain,), ())(STEPS).shape == STEPS.shape


def test_schedule_is_an_abstract_class_to_derive_from():
    with pytest.raises(TypeError):
        gx.Schedule()

    @gx.value
    class twice(gx.Schedule):
        value: float

        def __call__(self, count):
            return jnp.float32(2 * self.value)

    assert float(gx.join_schedules((twice(1.0), 0.0), (3,))(1)) == 2.0


def test_a_product_multiplies_value_by_value():
    line = gx.linear_schedule(1.0, 0.0, 10)
    product = gx.product_schedule(line, lambda n: 2.0 * n, 0.5)
    np.testing.assert_allclose(values(product), values(line) * STEPS, rtol=1e-6)
    product = gx.product_schedule(line, 0.5)
    assert product == eval(repr(product), names_of(gx))


def test_a_schedule_drives_an_optimizer():
    schedule = gx.warmup_cosine_decay_schedule(0.0, 0.5, 2, 6)
    tx = gx.scale_by_learning_rate(schedule)
    params = {"w": jnp.ones(3)}
    state = tx.init(params)
    for n in range(8):
        updates, state = tx.update(params, state, params)
        np.testing.assert_allclose(updates["w"], -schedule(n) * np.ones(3), rtol=1e-6)


# -------------------------------------------------------------------------------------- mistakes

WRONG = [
    ("constant_schedule", ("a",), TypeError, "constant_schedule: value must be a number, got 'a'"),
    ("constant_schedule", (math.nan,), ValueError, "value must be a number, got nan"),
    ("constant_schedule", (np.ones(2),), TypeError, "value must be a number, got an array"),
    ("constant_schedule", (True,), TypeError, "value must be a number, got True"),
    ("linear_schedule", (math.inf, 0, 1), ValueError, "init_value must be finite, got inf"),
    ("linear_schedule", (None, 0, 1), TypeError, "init_value must be a number, got None"),
    ("linear_schedule", (1, 0, math.inf), ValueError, "transition_steps must be finite, got inf"),
    ("linear_schedule", (1, 0, "10"), TypeError, "transition_steps must be a number, got '10'"),
    ("linear_schedule", (1, 0, 5, -1), ValueError, "transition_begin must be at least 0, got -1"),
    ("polynomial_schedule", (1, 0, -1, 5), ValueError, "power must be at least 0, got -1.0"),
    ("polynomial_schedule", (1, 0, 1, 5, -2), ValueError, "transition_begin must be at least 0"),
    (
        "exponential_decay",
        (1, 0, 0.5),
        ValueError,
        "transition_steps must be greater than 0, got 0",
    ),
    ("exponential_decay", (1, 5, 0.0), ValueError, "decay_rate must be greater than 0, got 0.0"),
    ("exponential_decay", (1, 5, 0.5, -1), ValueError, "transition_begin must be at least 0"),
    ("exponential_decay", (1, 5, 0.5, 0, 1), TypeError, "staircase must be True or False, got 1"),
    ("exponential_decay", (1, 5, 0.5, 0, False, math.inf), ValueError, "end_value must be finite"),
    ("natural_exp_decay", (1, 5, -0.5), ValueError, "decay_rate must be at least 0, got -0.5"),
    ("inverse_time_decay", (1, 5, -0.5), ValueError, "decay_rate must be at least 0, got -0.5"),
    ("inverse_time_decay", (1, -5, 0.5), ValueError, "transition_steps must be greater than 0"),
    ("cosine_decay_schedule", (1, 0), ValueError, "decay_steps must be greater than 0, got 0."),
    ("cosine_decay_schedule", (1, 5, 0, -1), ValueError, "exponent must be at least 0, got -1.0"),
    ("linear_cosine_decay", (1, 0), ValueError, "decay_steps must be greater than 0, got 0"),
    ("linear_cosine_decay", (1, 5, -1), ValueError, "num_periods must be at least 0, got -1.0"),
    ("cosine_decay_restarts", (1, 0), ValueError, "first_decay_steps must be greater than 0"),
    (
        "cosine_decay_restarts",
        (1, 5, 0.5),
        ValueError,
        "t_mul must be 1 or at least 1.001, got 0.5",
    ),
    ("cosine_decay_restarts", (1, 5, 2, -1), ValueError, "m_mul must be at least 0, got -1.0"),
    ("linear_sign_decay", (0,), ValueError, "decay_steps must be greater than 0, got 0"),
    ("cosine_sign_decay", (5, 0), ValueError, "num_periods must be greater than 0, got 0.0"),
    ("rectified_warmup_schedule", (0.9, 3), ValueError, "threshold must be at least 4, got 3.0"),
    ("restart_sign_decay", (5, 1, -1), ValueError, "zero_after must be at least 0, got -1.0"),
    ("piecewise_constant_schedule", (1, 3), TypeError, "must be a dict {step: scale}, got 3"),
    ("piecewise_constant_schedule", (1, abs), TypeError, "must be a dict {step: scale}, got"),
    ("piecewise_constant_schedule", (1, [1, 2]), TypeError, "must be a dict {step: scale}"),
    ("piecewise_constant_schedule", (1, {5: -1}), ValueError, "scale at step 5 must be finite and"),
    ("piecewise_constant_schedule", (1, {5: math.nan}), ValueError, "scale at step 5 must be"),
    ("piecewise_constant_schedule", (1, {5: "x"}), TypeError, "step 5 must be a number, got 'x'"),
    ("piecewise_constant_schedule", (1, {5: None}), TypeError, "step 5 must be a number, got None"),
    ("piecewise_constant_schedule", (1, {2.5: 1}), TypeError, "must be integers, got 2.5"),
    ("piecewise_constant_schedule", (1, {"5": 1}), TypeError, "must be integers, got '5'"),
    ("piecewise_constant_schedule", (1, {-5: 1}), ValueError, "must be at least 0, got -5"),
    ("piecewise_constant_schedule", (1, [(5, 1), (5, 2)]), ValueError, "has the step 5 twice"),
    (
        "piecewise_interpolate_schedule",
        ("linaer", 1, {5: 1}),
        ValueError,
        "interpolate_type must be one of 'linear', 'cosine', got 'linaer'. Did you mean 'linear'?",
    ),
    ("piecewise_interpolate_schedule", ("cosine", 1, {5: -1}), ValueError, "scale at step 5"),
    ("linear_onecycle_schedule", (0, 1), ValueError, "transition_steps must be greater than 0"),
    ("linear_onecycle_schedule", (9.5, 1), TypeError, "transition_steps must be an integer, got 9"),
    ("linear_onecycle_schedule", (10, 1, 0.9, 0.5), ValueError, "increasing steps, got 9, 5 and"),
    ("linear_onecycle_schedule", (1, 1), ValueError, "increasing steps, got 0, 0 and the end 1"),
    ("linear_onecycle_schedule", (10, 1, 0.1, 1.0), ValueError, "pct_final must be in [0, 1)"),
    ("linear_onecycle_schedule", (10, 1, 0.3, 0.8, 0), ValueError, "div_factor must be greater"),
    ("cosine_onecycle_schedule", (10, 1, 1.0), ValueError, "pct_start must be in [0, 1), got 1.0"),
    (
        "cosine_onecycle_schedule",
        (10, 1, 0.3, 2, 0),
        ValueError,
        "final_div_factor must be greater",
    ),
    ("warmup_constant_schedule", (0, 1, -1), ValueError, "warmup_steps must be at least 0, got -1"),
    ("warmup_constant_schedule", (0, "x", 1), TypeError, "peak_value must be a number, got 'x'"),
    (
        "warmup_cosine_decay_schedule",
        (0, 1, 10, 10),
        ValueError,
        "decay_steps must be greater than warmup_steps, which it includes, got 10 and 10.",
    ),
    ("cyclic_schedule", (0, 1, 0), ValueError, "transition_steps must be greater than 0"),
    ("cyclic_schedule", (0, 1, 9, "up"), ValueError, "mode must be one of 'triangular', 'triang"),
    ("cyclic_schedule", (0, 1, 9, "triangular", 0.5), ValueError, "gamma must be 1 with mode='tri"),
    ("cyclic_schedule", (0, 1, 9, "exp_range", 0), ValueError, "gamma must be greater than 0"),
    (
        "warmup_exponential_decay_schedule",
        (0, 1, 5, 0, 0.5),
        ValueError,
        "transition_steps must be",
    ),
    (
        "warmup_exponential_decay_schedule",
        (0, 1, 5, 5, -1),
        ValueError,
        "decay_rate must be greater",
    ),
    ("cooldown_from", (1.0, -1, 10), ValueError, "start must be at least 0, got -1"),
    ("cooldown_from", (1.0, 5, 0), ValueError, "steps must be greater than 0, got 0"),
    ("cooldown_from", ("1", 5, 9), TypeError, "schedule must be a schedule, a function of the co"),
    (
        "cooldown_from",
        (1.0, 5, 9, "cosin"),
        ValueError,
        "shape must be one of '1-sqrt', 'linear', 'cosine', '1-square', or a schedule, got 'cosin'."
        " Did you mean 'cosine'?",
    ),
    ("cooldown_from", (1.0, 5, 9, 0.5), ValueError, "'1-square', or a schedule, got 0.5"),
    ("cooldown_from", (1.0, 5, 9, lambda a, b: a), TypeError, "shape must be a schedule, a funct"),
    ("cooldown_from", (1.0, 5, 9, "linear", math.inf), ValueError, "end_value must be finite"),
    (
        "cooldown_from",
        (gx.schedules.WrappedSchedule(abs), 5, 9),
        TypeError,
        "got WrappedSchedule(schedule_fn=abs). Its state has no place there.",
    ),
    (
        "warmup_stable_decay_schedule",
        (0, 1, 60, 0.5, 100),
        ValueError,
        "total_steps must be at least warmup_steps + decay_steps, got 100 for 60 + 50.",
    ),
    ("warmup_stable_decay_schedule", (0, 1, 10, 1.0, 99), ValueError, "decay_steps=1.0 may be one"),
    ("warmup_stable_decay_schedule", (0, 1, 1.0, 10, 99), ValueError, "warmup_steps=1.0 may be"),
    ("warmup_stable_decay_schedule", (0, 1, 9, 0.001, 99), ValueError, "decay_steps=0.001 of 99"),
    ("warmup_stable_decay_schedule", (0, 1, 9, 0, 99), ValueError, "decay_steps must be greater"),
    ("warmup_stable_decay_schedule", (0, 1, -9, 9, 99), ValueError, "warmup_steps must be at leas"),
    ("warmup_stable_decay_schedule", (0, 1, 9, 9, 1e-5), ValueError, "total_steps must be at leas"),
    ("warmup_stable_decay_schedule", (0, 1, 9, 9, 99, 0, "exp"), ValueError, "shape must be one"),
    ("sgdr_schedule", ([],), ValueError, "sgdr_schedule: cosine_kwargs must hold at least one"),
    ("sgdr_schedule", ([3],), TypeError, "sgdr_schedule: cosine_kwargs[0] must be a dict, got 3"),
    (
        "sgdr_schedule",
        ([dict(init_value=0, peak_value=1, warmup_steps=5, decay_steps=5)],),
        ValueError,
        "sgdr_schedule: cosine_kwargs[0]: warmup_cosine_decay_schedule: decay_steps must be",
    ),
    ("join_schedules", ((), ()), ValueError, "join_schedules: schedules must hold at least one"),
    ("join_schedules", ((1.0, 2.0), ()), ValueError, "2 schedules need 1 boundaries, got 0"),
    (
        "join_schedules",
        ((1.0, "x"), (3,)),
        TypeError,
        "schedules[1] must be a schedule, a function",
    ),
    ("join_schedules", ((1.0, 2.0, 3.0), (5, 3)), ValueError, "must increase, got 5 before 3"),
    ("join_schedules", ((1.0, 2.0, 3.0), (5, 5)), ValueError, "must increase, got 5 before 5"),
    (
        "join_schedules",
        ((1.0, 2.0), (-1,)),
        ValueError,
        "boundaries[0] must be finite and at least",
    ),
    ("join_schedules", ((1.0, 2.0), (math.nan,)), ValueError, "boundaries[0] must be finite"),
    ("join_schedules", ((1.0, 2.0), ("3",)), TypeError, "boundaries[0] must be a number, got '3'"),
    (
        "join_schedules",
        ((1.0, 2.0), (None,)),
        TypeError,
        "boundaries[0] must be a number, got None",
    ),
    ("join_schedules", (1.0, ()), TypeError, "schedules must be a tuple, got 1.0"),
]


@pytest.mark.parametrize("name, args, error, words", WRONG)
def test_a_mistake_is_refused_under_the_name_of_the_schedule(name, args, error, words):
    with pytest.raises(error, match=f"^{name}: .*{re.escape(words.removeprefix(f'{name}: '))}"):
        getattr(gx, name)(*args)


def test_a_number_that_decides_the_program_must_not_be_traced():
    def cycles(x):
        return gx.cosine_decay_restarts(1.0, 10, x)(3)

    with pytest.raises(TypeError, match="cosine_decay_restarts: t_mul must be a Python number"):
        jax.jit(cycles)(2.0)
    with pytest.raises(TypeError, match="linear_onecycle_schedule: pct_start must be a Python"):
        jax.jit(lambda x: gx.linear_onecycle_schedule(10, 1.0, x)(3))(0.3)


def test_every_schedule_is_tested():
    tested = {p.values[0] for p in EVERY}
    named = {n for n in names_of(gx) if re.search(r"_(schedules?|decay|decay_restarts|from)$", n)}
    others = {"as_schedule", "scale_by_schedule", "decoupled_weight_decay", "layerwise_decay"}
    assert named - others <= tested


def test_a_share_of_the_steps_that_rounds_up_is_the_step_itself():
    """0.55 times 100 is 55.00000000000001."""
    decay = gx.cosine_sign_decay(100, 1.0, 0.55)
    assert [bool(decay(n)) for n in (54, 55, 56)] == [True, False, False]
