"""Steps outside of jit: nothing is compiled after the first ones."""

import contextlib

import jax
import pytest

from gradxform.testing.promise import settings
from tests.catalogue import CASES, WRAPPERS


@contextlib.contextmanager
def counting_programs():
    """Count the programs that are compiled in this context."""
    count = [0]

    def listen(event, _, **__):
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def programs_of_later_steps(case):
    """Return how many programs the second, third and fourth step compile."""
    tree = case.params()
    (g,) = case.gradients(tree, 1)
    with settings(case):
        state = case.bound.init(tree)
        _, state = case.bound.update(g, state, tree)
        with counting_programs() as count:
            for _ in range(3):
                _, state = case.bound.update(g, state, tree)
    return count[0]


@pytest.mark.parametrize("name", WRAPPERS)
def test_later_steps_of_a_wrapper_compile_nothing(name):
    assert programs_of_later_steps(CASES[name]) == 0
