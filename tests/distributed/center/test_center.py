"""A center and its workers in one process: the arithmetic, refusals, and repeated requests.

What is saved is in test_saved.py, centers in other processes in tests/distributed/ray/.
"""

import contextlib
import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.distributed import center as gc
from tests.distributed.center.traces import TRACES
from tests.environment import limit
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

PARAMS: Any = {
    "dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)},
    "scale": jnp.ones(()),
}


def work_for(center, like=PARAMS):
    return gc.Worker(center.answer, like)


def full(x, like=PARAMS):
    return jax.tree.map(lambda p: jnp.full_like(p, x), like)


@contextlib.contextmanager
def serve(params, method):
    center = gc.Center(params, method)
    yield center, lambda: work_for(center, params)


@pytest.mark.parametrize("follow", TRACES)
def test_a_center_follows_the_recorded_trace(follow):
    follow(serve)


# ------------------------------------------------------------------------------- trees and dtypes


def test_many_kinds_of_leaves_arrive_as_they_were_sent():
    params = {
        "bf16": jnp.arange(3, dtype=jnp.bfloat16),
        "f16": jnp.full((2, 1), 0.1, jnp.float16),
        "complex": jnp.asarray([1 + 2j], jnp.complex64),
        "empty": jnp.zeros((0, 3)),
        "scalar": jnp.asarray(7.0),
        "list": [jnp.ones(2), (jnp.ones((1, 1)), None)],
    }
    center = gc.Center(params, gc.elastic(1.0))
    worker = work_for(center, params)
    assert_identical(worker.join().params, params)
    sent = jax.tree.map(lambda p: p + jnp.ones((), p.dtype), params)
    moved, step = worker.exchange(sent)
    assert_identical(moved, params)  # at a moving rate of 1 the two change places
    assert_identical(center.params, sent)
    assert_identical(worker.local_center, params)
    assert step == 1


def test_small_steps_of_16_bit_parameters_are_not_lost():
    params = {"w": jnp.full((8,), 256.0, jnp.bfloat16)}  # the next bfloat16 is 258
    center = gc.Center(params, gc.elastic(0.01))
    worker = work_for(center, params)
    for _ in range(100):
        worker.exchange({"w": jnp.full((8,), 260.0, jnp.bfloat16)})
    assert center.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(center.params["w"].astype(jnp.float32), 258.0)


def test_other_trees_are_refused_with_the_path_of_the_leaf():
    center = gc.Center(PARAMS, gc.elastic(0.1))
    worker = work_for(center)
    wrong = jax.tree.map(jnp.array, PARAMS)
    wrong["dense"]["kernel"] = jnp.ones((3, 2))
    with pytest.raises(ValueError, match=r"\['dense'\]\['kernel'\] of shape \(3, 2\)"):
        worker.exchange(wrong)
    wrong["dense"]["kernel"] = jnp.ones((2, 3), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"\['dense'\]\['kernel'\] of dtype bfloat16"):
        worker.exchange(wrong)
    with pytest.raises(ValueError, match=r"lacks the leaf \['scale'\]"):
        worker.exchange({"dense": PARAMS["dense"]})
    with pytest.raises(ValueError, match=r"a leaf \['more'\]"):
        worker.exchange(PARAMS | {"more": jnp.ones(1)})
    rows = gx.sparse.RowSparse(jnp.asarray([0]), jnp.ones((1, 3)), 2)
    with pytest.raises(TypeError, match="row-sparse"):
        worker.exchange({"dense": PARAMS["dense"] | {"kernel": rows}, "scale": jnp.ones(())})
    for like in ({"w": jnp.ones(3)}, wrong, PARAMS | {"huge": jnp.ones((1000, 1000))}):
        with pytest.raises(gc.RefusedError, match="the center's own parameters"):
            work_for(center, like).join()
    assert_identical(center.params, PARAMS)
    assert center.global_step == 0
    assert center.refused == {"tree": 3}


def test_a_gradient_that_is_not_finite_is_refused():
    center = gc.Center(PARAMS, gc.agn(gx.sgd(1e38)))
    worker = work_for(center)
    for bad in (np.nan, np.inf):
        grads = full(1.0)
        grads["dense"]["bias"] = jnp.asarray([0.0, bad, 0.0])
        with pytest.raises(gc.RefusedError, match=r"\['dense'\]\['bias'\] of what was sent"):
            worker.push(grads)
    with pytest.raises(gc.RefusedError, match="of the center would"):
        worker.push(full(1e38))
    assert_identical(center.params, PARAMS)
    assert center.global_step == 0 and center.refused == {"not finite": 3}
    worker.push(full(0.0))  # the worker is as good as before
    assert center.global_step == 1


def test_a_method_takes_its_own_calls_only():
    center = gc.Center(PARAMS, gc.elastic(0.1))
    with pytest.raises(gc.RefusedError, match="elastic, whose workers call exchange"):
        work_for(center).push(full(0.0))
    center = gc.Center(PARAMS, gc.agn(gx.sgd(0.1)))
    with pytest.raises(gc.RefusedError, match="agn, whose workers call push"):
        work_for(center).exchange(PARAMS)
    with pytest.raises(gc.RefusedError, match="takes no local_step"):
        work_for(center).push(full(0.0), 0)
    center = gc.Center(PARAMS, gc.drop_stale(gx.sgd(0.1), 2))
    with pytest.raises(gc.RefusedError, match="needs local_step"):
        work_for(center).push(full(0.0))
    assert center.refused == {"operation": 1}


def test_a_center_takes_an_optimizer_of_optax():
    center = gc.Center(PARAMS, gc.drop_stale(optax.sgd(0.5), 0))
    params, _, _ = work_for(center).push(full(1.0), 0)
    assert_identical(params, jax.tree.map(lambda p: p - jnp.float32(0.5), PARAMS))


# --------------------------------------------------------------------------------- several workers


def test_a_stale_gradient_is_dropped_and_counted():
    center = gc.Center(PARAMS, gc.drop_stale(gx.adam(0.1), 1))
    fast, slow = work_for(center), work_for(center)
    began = slow.join().global_step
    for _ in range(2):
        assert fast.push(full(1.0), fast.pull().global_step).applied
    before = center.params
    params, step, applied = slow.push(full(1.0), began)
    assert (applied, step, center.stale_counter) == (False, 2, 1)
    assert_identical(center.params, before)
    assert_identical(params, before)  # from which the slow one goes on
    assert slow.push(full(1.0), step).applied
    counts = {"global_step": 3, "stale_counter": 1, "applied": 3, "dropped": 1}
    assert center.metrics() == counts | {"repeated": 0, "pulled": 3, "refused": 0}


def run_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit(20, 60))
        assert not thread.is_alive()


@pytest.mark.parametrize("step", [1.5, "1", True])
def test_a_step_is_an_integer(step):
    center = gc.Center(PARAMS, gc.drop_stale(gx.sgd(1.0), 2))
    worker = gc.Worker(center.answer, PARAMS)
    with pytest.raises(TypeError, match="Worker: local_step must be an integer, got"):
        worker.push(PARAMS, step)
    assert worker.push(PARAMS, jnp.int32(0)).applied and worker.push(PARAMS, np.int64(1)).applied


def test_exchanges_of_many_workers_are_carried_out_one_by_one():
    # With a rate of 1 the center becomes what a worker sends, and the worker what the center was:
    # what all of them and the center hold are the same numbers all the time, unless one is lost.
    n, rounds, held = 4, 25, {}
    like = {"w": jnp.zeros(1)}
    center = gc.Center(like, gc.elastic(1.0))

    def work(i):
        worker, v = work_for(center, like), {"w": jnp.asarray([1.0 + i])}
        for _ in range(rounds):
            v, _ = worker.exchange(v)
        held[i] = float(v["w"][0])

    run_threads(*(lambda i=i: work(i) for i in range(n)))
    assert center.global_step == n * rounds
    assert sorted([*held.values(), float(center.params["w"][0])]) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_threads_that_share_a_worker_take_turns():
    center = gc.Center(PARAMS, gc.agn(gx.sgd(1.0)))
    worker = work_for(center)
    run_threads(*[lambda: [worker.push(full(1.0)) for _ in range(5)]] * 4)
    assert center.global_step == 20 and center.refused == {}
    assert_identical(center.params, jax.tree.map(lambda p: p - 20, PARAMS))


# ------------------------------------------------------------------------------- repeated requests


def test_a_request_whose_answer_is_lost_is_carried_out_once():
    center = gc.Center(PARAMS, gc.agn(gx.sgd(1.0)))
    lost = []

    def ask_until_answered(header, arrays):
        if header["operation"] == "push" and len(lost) < 3:
            lost.append(center.answer(header, arrays))
            return ask_until_answered(header, arrays)
        return center.answer(header, arrays)

    params, step, applied = gc.Worker(ask_until_answered, PARAMS).push(full(1.0))
    assert len(lost) == 3 and applied and step == 1
    assert_identical(params, jax.tree.map(lambda p: p - 1, PARAMS))
    assert center.metrics()["repeated"] == 3 and center.metrics()["applied"] == 1


@pytest.mark.parametrize("method", [gc.elastic(0.5), gc.agn(gx.sgd(1.0))])
def test_a_request_that_arrives_many_times_at_once_is_carried_out_once(method):
    center = gc.Center(full(0.0), method)
    header = {"operation": method.operation, "worker": "a" * 32, "version": gx.__version__}
    sent, n, rounds = [np.asarray(x) for x in jax.tree.leaves(full(1.0))], 4, 10
    answers, start = [[] for _ in range(n)], threading.Barrier(n)

    def ask(i):
        for number in range(rounds):
            start.wait(limit(20, 60))
            answers[i].append(center.answer(header | {"number": number}, sent))

    run_threads(*(lambda i=i: ask(i) for i in range(n)))
    assert center.global_step == rounds and center.metrics()["repeated"] == (n - 1) * rounds
    for alike in zip(*answers, strict=True):
        assert len({a[0]["global_step"] for a in alike}) == 1
        for answer in alike[1:]:
            assert_identical([*map(jnp.asarray, answer[1])], [*map(jnp.asarray, alike[0][1])])


# --------------------------------------------------------------------------------------- bad input

REFUSED = [
    (lambda: gc.elastic(0.0), ValueError, "elastic: moving_rate must be in (0, 1], got 0.0."),
    (lambda: gc.elastic(1.5), ValueError, "elastic: moving_rate must be in (0, 1], got 1.5."),
    (lambda: gc.elastic(float("nan")), ValueError, "got nan."),
    (lambda: gc.elastic("0.1"), ValueError, "got '0.1'."),
    (lambda: gc.agn(0.1), TypeError, "agn: optimizer must have init and update"),
    (lambda: gc.drop_stale(gx.sgd, 1), TypeError, "call it: sgd(...)"),
    (lambda: gc.drop_stale(gx.sgd(0.1), -1), ValueError, "at least 0, got -1."),
    (lambda: gc.drop_stale(gx.sgd(0.1), 1.5), ValueError, "an integer"),
    (lambda: gc.Center(PARAMS, "elastic"), TypeError, "method must be elastic(...), agn(...)"),
    (lambda: gc.Center(PARAMS, gx.adam(0.1)), TypeError, "method must be elastic(...), agn(...)"),
    (lambda: gc.Center({}, gc.elastic(0.1)), ValueError, "must have arrays"),
    (
        lambda: gc.Center({"w": jnp.ones(2, int)}, gc.elastic(0.1)),
        TypeError,
        "['w'] has dtype int32",
    ),
    (lambda: gc.Center({"w": np.ones(2)}, gc.elastic(0.1)), TypeError, "['w'] has dtype float64"),
    (
        lambda: gc.Center({"w": np.float32("nan")}, gc.elastic(0.1)),
        ValueError,
        "['w'] has a NaN",
    ),
    (lambda: gc.Worker(gc.Center(PARAMS, gc.elastic(0.1)), PARAMS), TypeError, "center.answer"),
    (lambda: gc.Worker(len, {"w": np.ones(2)}), TypeError, "['w'] has dtype float64"),
    (lambda: gc.elastic_gradient(PARAMS, PARAMS, PARAMS, -1.0), ValueError, "rho must be"),
    (
        lambda: gc.elastic_gradient(PARAMS, PARAMS, PARAMS | {"scale": jnp.ones(2)}, 0.1),
        ValueError,
        "['scale'] has shape (), the center has (2,)",
    ),
]


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED)
def test_wrong_arguments_are_refused(make, kind, words):
    with pytest.raises(kind) as caught:
        make()
    message = str(caught.value)
    assert words in message and "\n" not in message and message.endswith(".")


WORKER = {"operation": "push", "worker": "a" * 32, "number": 1, "version": gx.__version__}
ARRAYS = [np.asarray(x) for x in jax.tree.leaves(full(1.0))]
HELLO = {"operation": "hello", "version": gx.__version__}


@pytest.mark.parametrize(
    ("header", "arrays", "reason", "words"),
    [
        ("push", ARRAYS, "malformed", "whose header is 'push'"),
        ({}, [], "version", "the worker has gradxform None"),
        (WORKER | {"version": "0.0.1"}, ARRAYS, "version", "0.0.1, and the center"),
        (WORKER | {"operation": "pop"}, ARRAYS, "operation", "call push, not 'pop'"),
        (WORKER | {"operation": "exchange"}, ARRAYS, "operation", "not 'exchange'"),
        (WORKER, ARRAYS[:1], "malformed", "1 arrays, not 3"),
        (WORKER, [*ARRAYS, ARRAYS[0]], "malformed", "4 arrays, not 3"),
        (WORKER, ARRAYS[::-1], "tree", "['dense']['bias'] of what was sent is not a float32"),
        (WORKER, [x.astype("f8") for x in ARRAYS], "tree", "not a float32 of shape (3,)"),
        (WORKER, [1.0, 2.0, 3.0], "tree", "['dense']['bias'] of what was sent"),
        (WORKER, [x * np.nan for x in ARRAYS], "not finite", "['dense']['bias'] of what was sent"),
        (WORKER | {"worker": "a"}, ARRAYS, "malformed", "without a worker or a number"),
        (WORKER | {"number": -1}, ARRAYS, "malformed", "without a worker or a number"),
        (WORKER | {"number": True}, ARRAYS, "malformed", "without a worker or a number"),
        (WORKER | {"local_step": 1}, ARRAYS, "operation", "takes no local_step, got 1"),
        (HELLO, [], "tree", "lacks the leaf ['dense']['bias']"),
        (HELLO | {"leaves": [["w", "float32", [2]]]}, [], "tree", "has a leaf w"),
        (HELLO | {"leaves": 7}, [], "malformed", "list of leaves"),
    ],
)
def test_a_request_that_no_worker_sends_is_refused_and_logged(
    caplog, header, arrays, reason, words
):
    center = gc.Center(PARAMS, gc.agn(gx.sgd(0.1)))
    with caplog.at_level(logging.WARNING, "gradxform.distributed.center"):
        answer, found = center.answer(header, arrays)
    assert (answer["refused"], found) == (reason, []) and words in answer["why"]
    [record] = caplog.records
    assert f"refused {reason}: " in record.getMessage() and "\n" not in record.getMessage()
    assert center.refused == {reason: 1} and center.metrics()["refused"] == 1
    assert_identical(center.params, PARAMS)
    assert center.answer(WORKER, ARRAYS)[0]["applied"]  # correct requests are carried out


def test_methods_are_values():
    assert gc.elastic(0.1) == gc.elastic(0.1) != gc.elastic(0.2)
    assert eval(repr(gc.elastic(0.1)), vars(gc)) == gc.elastic(0.1)
    assert hash(gc.agn(gx.sgd(0.1))) == hash(gc.agn(gx.sgd(0.1)))


def test_elastic_gradient_can_be_traced():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    made = jax.jit(gc.elastic_gradient)(params, params, PARAMS, 0.5)
    assert_identical(made, jax.tree.map(lambda p: p, params))
