"""The line search of Moré and Thuente: one trial at a time, without a loop of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradxform.transforms.lbfgs.more_thuente import TRIALS, advanced_search, begun_search
from tests.references.more_thuente import more_thuente

pytestmark = pytest.mark.numeric


class Wave:
    """A line with several minima that rises at last, drawn by a seed."""

    def __init__(self, seed):
        self.a, self.b, self.c, self.d, self.e = np.random.default_rng(seed).normal(size=5)
        if self.slope(0.0) > 0:
            self.b, self.d, self.e = -self.b, -self.d, -self.e

    def __call__(self, t):
        wave = self.b * np.sin(3 * self.a * t) + self.e * np.exp(-t)
        return wave + 0.05 * abs(self.c) * t * t + self.d * t

    def slope(self, t):
        wave = 3 * self.a * self.b * np.cos(3 * self.a * t) - self.e * np.exp(-t)
        return wave + 0.1 * abs(self.c) * t + self.d


class More:
    """The first two functions of Moré and Thuente's section 5, which are hard from far away."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, t):
        if self.kind == 1:
            return -t / (t * t + 2)
        return (t + 0.004) ** 5 - 2 * (t + 0.004) ** 4

    def slope(self, t):
        if self.kind == 1:
            return (t * t - 2) / (t * t + 2) ** 2
        return 5 * (t + 0.004) ** 4 - 8 * (t + 0.004) ** 3


step = jax.jit(advanced_search)


def searched(line, t, dtype, **options):
    """The step lengths that a search tries, and its last state."""
    state, seen = begun_search(dtype(line(0.0)), dtype(line.slope(0.0)), dtype(t), **options), []
    while not (state.accepted | state.failed):
        at = float(state.t)
        seen.append(at)
        state = step(state, dtype(line(at)), dtype(line.slope(at)))
    return seen, state


def wanted(line, t):
    """The step lengths that the reference tries, and whether it accepts the last one."""
    search, seen = more_thuente(line(0.0), line.slope(0.0), t), []
    at = next(search)
    while True:
        seen.append(at)
        try:
            at = search.send((line(at), line.slope(at)))
        except StopIteration as end:
            return seen, end.value


LINES = [Wave(seed) for seed in range(60)] + [More(1), More(2)]


def test_every_trial_is_that_of_the_reference():
    lengths = []
    with jax.enable_x64(True):
        for i, line in enumerate(LINES):
            for t in (1e-3, 1.0, 10.0 + i):
                seen, state = searched(line, t, jnp.float64, roundings=0.0)
                theirs, good = wanted(line, t)
                assert bool(state.accepted) == good
                np.testing.assert_allclose(seen, theirs, rtol=1e-6)
                lengths.append(len(seen))
    assert max(lengths) > 5 and np.mean(lengths) > 2


def test_an_accepted_step_satisfies_the_strong_wolfe_conditions():
    for line in LINES[:60]:
        seen, state = searched(line, 0.01, jnp.float32, roundings=0.0)
        t, fall = seen[-1], line.slope(0.0)
        assert state.accepted and float(state.t) == pytest.approx(t)
        assert line(t) <= line(0.0) + 1e-3 * t * fall + 1e-6
        assert abs(line.slope(t)) <= 0.9 * abs(fall) + 1e-6


def test_a_search_never_goes_beyond_the_largest_step():
    class Down:
        def __call__(self, t):
            return -t

        def slope(self, t):
            return -1.0

    seen, state = searched(Down(), 0.5, jnp.float32, largest=3.0)
    assert max(seen) == 3.0 and state.accepted


def test_values_that_are_not_finite_shorten_the_step():
    class Wall:
        def __call__(self, t):
            return (t - 0.01) ** 2 if t < 0.1 else np.nan

        def slope(self, t):
            return 2 * (t - 0.01) if t < 0.1 else np.inf

    seen, state = searched(Wall(), 1.0, jnp.float32)
    assert state.accepted and float(state.t) < 0.1
    assert len(seen) < 6


class Square:
    """A parabola, or a higher power, with its minimum at `far`."""

    def __init__(self, far, power=2):
        self.far, self.power = far, power

    def __call__(self, t):
        return (t / self.far - 1) ** self.power

    def slope(self, t):
        return self.power * (t / self.far - 1) ** (self.power - 1) / self.far


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("far", [1e-9, 1e-6, 1e6, 1e9])
def test_a_minimum_many_decades_away_is_found(far, power):
    line = Square(far, power)
    seen, state = searched(line, 1.0, jnp.float32)
    assert state.accepted and line(seen[-1]) < 0.9 and len(seen) <= TRIALS
    if power == 2 and far < 1:
        assert len(seen) <= 3


def test_a_step_as_far_as_it_may_go_is_accepted_by_its_slopes():
    class Down:
        def __call__(self, t):
            return 1e9 - t

        def slope(self, t):
            return -1.0

    seen, state = searched(Down(), 1.0, jnp.float32, largest=1.0)
    assert state.accepted and seen == [1.0]


def test_a_wall_right_at_the_start_fails():
    class Hole:
        def __call__(self, t):
            return np.nan if t else 1.0

        def slope(self, t):
            return np.nan if t else -1.0

    seen, state = searched(Hole(), 1.0, jnp.float32)
    assert state.failed and len(seen) == TRIALS


@pytest.mark.parametrize(
    ("value", "slope"), [(1.0, 0.0), (1.0, 2.0), (1.0, np.nan), (np.inf, -1.0), (np.nan, -1.0)]
)
def test_a_line_that_does_not_descend_fails_at_once(value, slope):
    assert begun_search(value, slope, 1.0).failed


class Flat:
    """A parabola that float32 cannot see so far above 0: roundings make its start the lowest."""

    def __call__(self, t):
        return 1e4 + 1e-3 * (t > 0)

    def slope(self, t):
        return 1e-4 * (t - 1)


def test_slopes_decide_where_values_differ_by_roundings_only():
    seen, state = searched(Flat(), 0.01, jnp.float32)
    assert state.accepted and len(seen) < 5
    assert abs(Flat().slope(float(state.t))) <= 0.998e-4


def test_without_the_approximate_conditions_such_a_search_fails():
    _, state = searched(Flat(), 0.01, jnp.float32, roundings=0.0)
    assert state.failed


def test_a_search_that_is_over_stays_as_it_is():
    _, state = searched(Wave(0), 1.0, jnp.float32)
    later = step(state, 5.0, 1.0)
    jax.tree.map(np.testing.assert_array_equal, state, later)


def test_under_vmap_every_search_goes_on_by_itself():
    a = jnp.asarray([0.01, 0.5, 3.0, 40.0])
    phi = jax.vmap(jax.value_and_grad(lambda t, a: jnp.cosh(t - a) / jnp.cosh(a)))
    value, slope = phi(jnp.zeros(4), a)
    state = jax.vmap(begun_search)(value, slope, jnp.full(4, 0.1))
    alone = [begun_search(value[i], slope[i], 0.1) for i in range(4)]
    for _ in range(TRIALS):
        state = jax.vmap(advanced_search)(state, *phi(state.t, a))
        for i in range(4):
            v, s = phi(alone[i].t[None], a[i : i + 1])
            alone[i] = step(alone[i], v[0], s[0])
    assert state.accepted.all()
    np.testing.assert_allclose(state.t, [one.t for one in alone], rtol=1e-5)
    np.testing.assert_array_equal(state.count, [one.count for one in alone])


def test_a_search_can_be_carried():
    state = begun_search(1.0, -1.0, 1.0)
    after = jax.eval_shape(advanced_search, state, 0.5, -0.5)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
