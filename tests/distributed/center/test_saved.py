"""A center after a restart: its file, and requests whose answers were lost."""

import collections
import io
import pickle
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.distributed import center as gc
from gradxform.distributed.center import center as center_module
from tests.distributed.center.test_center import PARAMS, full
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

METHODS = {
    "elastic": gc.elastic(0.25),
    "agn": gc.agn(gx.adam(0.5)),
    "drop_stale": gc.drop_stale(gx.sgd(0.5), 1),
}


def held(center):
    """Return all arrays and counts that a center holds, as a dict."""
    now = center._now
    answered = {k: [*v[:3], v.params is None] for k, v in now.answered.items()}
    answers = {k: v.params for k, v in now.answered.items()}
    return [now.params, now.state, answers], [now.global_step, now.stale_counter, answered]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_run_that_was_saved_in_the_middle_goes_on_bit_for_bit(tmp_path, method):
    key = jax.random.key(0)

    def run(center, events):
        for i in events:
            g = jax.tree.map(
                lambda p, i=i: jax.random.normal(jax.random.fold_in(key, i), p.shape), PARAMS
            )
            step = {"local_step": i // 2} if method.counts_staleness else {}
            ask(center, method.operation, i % 3, i, g, **step)
        return center

    whole = run(gc.Center(PARAMS, method), range(12))
    run(gc.Center(PARAMS, method), range(7)).save(tmp_path / "center.npz")
    other = gc.Center(full(9.0), method).load(tmp_path / "center.npz")
    assert other.global_step + other.stale_counter == 7
    (found, counts), (wanted, wanted_counts) = held(run(other, range(7, 12))), held(whole)
    assert_identical(found, wanted)
    assert counts == wanted_counts
    assert [p.name for p in tmp_path.iterdir()] == ["center.npz"]


def test_every_dtype_is_stored(tmp_path):
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones((), jnp.float16), "c": jnp.ones((0, 2))}
    tx = gx.chain(gx.add_noise(0.1, 0.5, key=3), gx.scale_by_adam(mu_dtype="bfloat16"))
    center = gc.Center(params, gc.agn(tx))
    center.save(tmp_path / "center.npz")
    other = gc.Center(jax.tree.map(jnp.zeros_like, params), gc.agn(tx)).load(
        tmp_path / "center.npz"
    )
    assert_identical(other.params, params)
    states = [jax.tree.leaves(c._now.state) for c in (center, other)]
    assert [x.dtype for x in states[0]] == [x.dtype for x in states[1]]


def test_the_file_of_another_center_is_refused(tmp_path):
    path = tmp_path / "center.npz"
    gc.Center(PARAMS, gc.agn(gx.sgd(0.1))).save(path)
    center = gc.Center({"w": jnp.ones(2)}, gc.elastic(0.1))
    for other, method, match in [
        (PARAMS | {"more": jnp.ones(1)}, gc.agn(gx.sgd(0.1)), "leaf"),
        (PARAMS | {"scale": jnp.ones(2)}, gc.agn(gx.sgd(0.1)), r"of shape \(2,\) here"),
        (PARAMS, gc.agn(gx.adam(0.1)), "but the file does not"),
    ]:
        with pytest.raises(ValueError, match=match):
            gc.Center(other, method).load(path)
    with pytest.raises(ValueError, match=r"is of a center with agn, but this one has elastic"):
        gc.Center(PARAMS, gc.elastic(0.1)).load(path)
    assert_identical(center.params, {"w": jnp.ones(2)})


def test_a_renamed_layer_does_not_take_the_table_of_another(tmp_path):
    path = tmp_path / "center.npz"
    gc.Center({"a": jnp.zeros(3), "b": jnp.ones(3)}, gc.agn(gx.adam(0.1))).save(path)
    center = gc.Center({"b": jnp.full(3, 5.0), "z": jnp.full(3, 6.0)}, gc.agn(gx.adam(0.1)))
    with pytest.raises(
        ValueError, match=r"center\.npz: the file has a leaf .*\['a'\], but the center does not"
    ):
        center.load(path)
    assert_identical(center.params, {"b": jnp.full(3, 5.0), "z": jnp.full(3, 6.0)})
    assert_identical(
        gc.Center({"b": jnp.full(3, 5.0), "a": jnp.full(3, 6.0)}, gc.agn(gx.adam(0.1)))
        .load(path)
        .params,
        {"b": jnp.ones(3), "a": jnp.zeros(3)},
    )


def test_two_leaves_of_one_name_are_refused():
    twice = collections.OrderedDict([(1, jnp.ones(2)), ("1", jnp.zeros(2))])
    with pytest.raises(ValueError, match=r"Center: two leaves are called \['1'\]"):
        gc.Center(twice, gc.elastic(0.1))


def saved(tmp_path):
    """A center after an exchange, and the bytes of its file."""
    center = gc.Center(PARAMS, gc.elastic(0.1))
    ask(center, "exchange", 1, 1, PARAMS)
    center.save(tmp_path / "center.npz")
    return center, (tmp_path / "center.npz").read_bytes()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path, whole: path.write_bytes(b""),
        lambda path, whole: path.write_bytes(whole[: len(whole) // 2]),
        lambda path, whole: path.write_bytes(whole[:-1]),
        lambda path, whole: path.write_bytes(whole[len(whole) // 2 :]),
        lambda path, whole: path.write_bytes(whole.replace(b"<f4", b"<f8", 1)),
        lambda path, whole: path.write_bytes(pickle.dumps({"w": np.ones(2)})),
        lambda path, whole: path.write_text("step,loss\n1,0.5\n"),
        lambda path, whole: np.savez(path, w=np.ones(2)),
        lambda path, whole: path.write_bytes(npy(np.ones(2))),
        lambda path, whole: np.savez(path, about=np.asarray([object()], dtype=object)),
        lambda path, whole: np.savez(path, about=np.asarray('{"format": "another"}')),
        lambda path, whole: np.savez(path, about=np.asarray("[]")),
    ],
    ids=[
        *("empty", "half", "one byte short", "second half", "altered", "pickled", "text"),
        *("npz", "npy", "npz with objects", "another format", "no object"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_with_its_path(tmp_path, spoil):
    center, whole = saved(tmp_path)
    path = tmp_path / "center.npz"
    spoil(path, whole)
    before = center._now
    with pytest.raises(ValueError, match=r"center\.npz was not written by save\(\)") as refused:
        center.load(path)
    told = "".join(traceback.format_exception(refused.value))
    assert "pickle" not in told.replace("allow_pickle=False", ""), told
    assert center._now is before


def test_a_file_that_is_not_there_is_an_error_with_its_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"center\.npz"):
        gc.Center(PARAMS, gc.elastic(0.1)).load(tmp_path / "center.npz")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["params", "state", "answered"])
def test_a_file_with_a_nan_is_refused_with_the_path_of_the_leaf(tmp_path, where, bad):
    if where == "answered":
        center = gc.Center(PARAMS, gc.elastic(0.1))
        ask(center, "exchange", 1, 1, PARAMS)
    else:
        center = gc.Center(PARAMS, gc.agn(gx.adam(0.1)))
    path, now = tmp_path / "center.npz", center._now
    spoiled = [now.params[0].at[0].set(bad), *now.params[1:]]
    if where == "params":
        center._now = now._replace(params=spoiled)
    elif where == "state":
        adam, *rest = now.state
        center._now = now._replace(state=(adam._replace(mu=center._tree(spoiled)), *rest))
    else:
        [(name, last)] = now.answered.items()
        center._now = now._replace(answered={name: last._replace(params=spoiled)})
    center.save(path)
    center._now = now
    if np.isnan(bad) or where == "params":
        with pytest.raises(ValueError, match=r"center\.npz has an? .* in .*\['dense'\]\['bias'\]"):
            center.load(path)
        assert center._now is now
    elif where == "state":  # the best loss so far of a reduction on a plateau starts there
        center.load(path)


# ------------------------------------------------------------- requests that are sent again


def ask(center, operation, who, number, tree, **more):
    """Carry out a request at the center itself, and return its answer."""
    header = {"operation": operation, "worker": f"{who:032x}", "number": number} | more
    header["version"] = gx.__version__
    return center.answer(header, [np.asarray(x) for x in jax.tree.leaves(tree)])


def same_answers(a, b):
    assert a[0] == b[0]
    assert_identical([*map(jnp.asarray, a[1])], [*map(jnp.asarray, b[1])])


def reloaded(center, method, tmp_path):
    """Return a center restarted from the file of another."""
    center.save(tmp_path / "center.npz")
    return gc.Center(full(9.0), method).load(tmp_path / "center.npz")


@pytest.mark.parametrize("method", [gc.agn(gx.sgd(1.0)), gc.drop_stale(gx.sgd(1.0), 0)])
def test_a_push_is_applied_once_though_the_center_died_before_its_answer(tmp_path, method):
    step = {"local_step": 0} if method.counts_staleness else {}
    center = gc.Center(PARAMS, method)
    answer = ask(center, "push", 1, 7, full(1.0), **step)
    stale = ask(center, "push", 2, 3, full(1.0), **step)
    center = reloaded(center, method, tmp_path)
    same_answers(ask(center, "push", 2, 3, full(1.0), **step), stale)
    again = ask(center, "push", 1, 7, full(1.0), **step)
    assert again[0]["applied"] and again[0]["global_step"] == center.global_step
    assert_identical(center.params, jax.tree.unflatten(center._treedef, stale[1]))
    if method.counts_staleness:  # the second was dropped, and is not dropped again
        same_answers(again, answer)
        assert (center.global_step, center.stale_counter) == (1, 1)
    else:
        assert center.global_step == 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_exchange_gets_the_answer_that_it_got_before(tmp_path, restart):
    method = gc.elastic(0.5)
    center = gc.Center(PARAMS, method)
    first = ask(center, "exchange", 1, 1, full(4.0))
    second = ask(center, "exchange", 2, 1, full(8.0))
    if restart:
        center = reloaded(center, method, tmp_path)
        assert center.global_step == 2
    params = center.params
    same_answers(ask(center, "exchange", 1, 1, full(4.0)), first)
    same_answers(ask(center, "exchange", 2, 1, full(8.0)), second)
    assert_identical(center.params, params)
    assert center.global_step == 2
    third = ask(center, "exchange", 1, 2, full(4.0))
    assert third[0]["global_step"] == 3
    same_answers(ask(center, "exchange", 1, 2, full(4.0)), third)


@pytest.mark.parametrize("restart", [False, True])
def test_a_request_older_than_the_last_one_is_refused_by_the_center_itself(tmp_path, restart):
    method = gc.agn(gx.sgd(1.0))
    center = gc.Center(PARAMS, method)
    ask(center, "push", 1, 5, full(1.0))
    if restart:
        center = reloaded(center, method, tmp_path)
    params = center.params
    for number in (4, 0):
        answer, _ = ask(center, "push", 1, number, full(1.0))
        assert answer["refused"] == "replayed"
        assert f"request {number} of a worker that has sent 5" in answer["why"]
    assert_identical(center.params, params)
    assert center.global_step == 1
    ask(center, "push", 2, 4, full(1.0))  # another worker counts for itself
    ask(center, "push", 1, 6, full(1.0))
    assert center.global_step == 3


def test_old_answers_are_dropped_before_they_fill_the_memory(tmp_path, monkeypatch):
    nbytes = sum(p.nbytes for p in jax.tree.leaves(PARAMS))
    monkeypatch.setattr(center_module, "KEPT_BYTES", 2 * nbytes)
    method = gc.elastic(0.5)
    center = gc.Center(PARAMS, method)
    answers = [ask(center, "exchange", who, 1, full(1.0 + who)) for who in range(4)]
    for one in (center, reloaded(center, method, tmp_path)):
        for who in (2, 3):
            same_answers(ask(one, "exchange", who, 1, full(1.0 + who)), answers[who])
        for who in (0, 1):  # still known, so that it is not carried out again
            answer, _ = ask(one, "exchange", who, 1, full(1.0 + who))
            assert "request 1 again, but its answer is no longer kept" in answer["why"]
        assert one.global_step == 4


def test_the_answers_of_a_limited_number_of_workers_are_kept(monkeypatch):
    monkeypatch.setattr(center_module, "REMEMBERED", 2)
    center = gc.Center(PARAMS, gc.agn(gx.sgd(1.0)))
    for who, number in [(0, 1), (1, 1), (0, 2), (2, 1)]:
        ask(center, "push", who, number, full(1.0))
    assert [int(k, 16) for k in center._now.answered] == [0, 2]
