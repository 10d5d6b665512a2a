"""A table of what storages do to a transform."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.slots import zeros_like
from gradxform.testing import check_storage, random_gradients
from tests.leaves.test_storage import normal

pytestmark = pytest.mark.numeric

PARAMS = {"w": normal((32, 512)), "b": normal((16,))}
GRADS = random_gradients(PARAMS, 5)


def test_fewer_bits_cost_more():
    report = check_storage(gx.adam(1e-2), PARAMS, GRADS)
    errors = [report[name].update_error for name in ("8 bits", "4 bits")]
    assert 0 < errors[0] < 0.1 < errors[1] < 1
    assert report["bfloat16"].update_error < 0.01
    sizes = [report[name].bytes_per_parameter for name in ("bfloat16", "8 bits", "4 bits")]
    np.testing.assert_allclose(sizes, [4, 2.03, 1.03], atol=0.01)
    assert report["8 bits"].state_error < 1 / 16 < report["4 bits"].state_error
    text = str(report)
    assert "after 5 steps" in text and "error of the update" in text
    assert not report.outliers and "blocks with" not in text


def test_blocks_with_an_outlier_are_named():
    grads = {"w": normal((32, 512)).at[3, 7].set(300.0), "b": normal((16,))}
    report = check_storage(gx.trace(0.9), PARAMS, grads)
    (outlier,) = report.outliers
    assert outlier.slot == "['trace']['w']" and (outlier.blocks, outlier.with_outlier) == (64, 1)
    assert 15 < outlier.largest <= 16
    assert "['trace']['w']: 1 of 64, up to 1" in str(report)
    assert "after 1 step\n" in str(report)
    calm = check_storage(gx.trace(0.9), PARAMS, GRADS[0])
    assert report["4 bits"].state_error != calm["4 bits"].state_error


class MaxState(NamedTuple):
    largest: gx.NonNegativeSlot


@gx.transform
class scale_by_max(gx.ArrayRule):
    locality = "entry"

    def init(self, params):
        return MaxState(zeros_like(params))

    def rule(self, g, largest, p):
        largest = jnp.maximum(jnp.abs(g), largest)
        return g / (largest + 1e-8), largest


def test_a_rule_of_ones_own():
    report = check_storage(scale_by_max(), PARAMS, GRADS)
    assert report["8 bits"].refusal is None and report["8 bits"].update_error < 0.1


def test_a_refusal_is_a_line_of_the_table():
    report = check_storage(gx.MultiSteps(gx.adam(1.0), 2), PARAMS, GRADS)
    assert "computes with the slot acc_grads" in report["8 bits"].refusal
    assert "8 bits: quantize_state: " in str(report)


def test_storages_of_ones_own():
    storages = {"nu only": lambda tx: gx.quantize_state(tx, which="nu")}
    report = check_storage(gx.adam(1e-2), PARAMS, GRADS, storages=storages)
    assert [f.storage for f in report.findings] == ["nu only"]
    np.testing.assert_allclose(report["nu only"].bytes_per_parameter, 5.02, atol=0.01)
    with pytest.raises(KeyError, match="no storage named '8 bits'; there are"):
        report["8 bits"]


def test_small_arrays_are_stored_where_one_asks_for_it():
    params = {"w": normal((8, 16))}
    report = check_storage(gx.adam(1e-2), params, [params], block=16, min_size=0)
    assert report["8 bits"].state_error > 0
    assert check_storage(gx.adam(1e-2), params, [params])["8 bits"].state_error == 0


@pytest.mark.parametrize("grads", [[], {"w": jnp.ones(3)}, [{"w": jnp.ones(3)}], 3])
def test_gradients_of_another_structure_are_refused(grads):
    with pytest.raises(ValueError, match="check_storage: grads must be gradients with the struc"):
        check_storage(gx.adam(1e-2), PARAMS, grads)


def test_what_is_not_a_transform_is_refused():
    with pytest.raises(TypeError, match="check_storage: tx must have init and update"):
        check_storage("adam", PARAMS, GRADS)
