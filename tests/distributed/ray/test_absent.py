"""What says clearly that Ray, a center or a cluster is not there; these tests run without Ray."""

import socket
import sys
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.distributed import center as gc, ray as gr
from gradxform.distributed.center.layout import divide_leaves, layout_of
from gradxform.distributed.ray import center as center_module, shard as shard_module
from tests.environment import limit

PARAMS = {"w": jnp.ones((4, 3)), "b": jnp.zeros(3), "c": jnp.zeros(())}
METHOD = gc.agn(gx.sgd(0.1))


def ray_of(**names):
    """A module that stands for Ray, in a process that is not connected."""
    return types.SimpleNamespace(__version__="2.60.0", is_initialized=lambda: False, **names)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "ray is not installed; install gradxform[ray]."),
        (types.SimpleNamespace(__version__="2.9.3"), "ray 2.9.3 is too old; install gradxform"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: gr.RayCenter(PARAMS, METHOD),
        lambda: gr.RayCenter.connect("x"),
        lambda: gr.RayWorker("x"),
    ],
)
def test_a_missing_or_old_ray_is_named_with_its_extra(monkeypatch, found, words, make):
    monkeypatch.setitem(sys.modules, "ray", found)
    with pytest.raises(ImportError) as caught:
        make()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def center(*args, **kwargs):
    return gr.RayCenter(*args, **kwargs)


def worker(*args, **kwargs):
    return gr.RayWorker(*args, **kwargs)


REFUSED = [
    (lambda: center(PARAMS, gx.sgd(0.1)), TypeError, "method must be elastic(...), agn("),
    (lambda: center({}, METHOD), ValueError, "params must have arrays"),
    (lambda: center({"w": jnp.ones(2, int)}, METHOD), TypeError, "['w'] has dtype int32"),
    (
        lambda: center(PARAMS | {"b": jnp.inf}, METHOD),
        ValueError,
        "['b'] has a NaN or an inf",
    ),
    (lambda: center(PARAMS, METHOD, ""), ValueError, "name must be a string without '/'"),
    (lambda: center(PARAMS, METHOD, "a/b"), ValueError, "without '/', got 'a/b'"),
    (lambda: center(PARAMS, METHOD, 5), ValueError, "without '/', got 5"),
    (
        lambda: center(PARAMS, METHOD, shards=0),
        ValueError,
        "shards must be at least 1, got 0",
    ),
    (lambda: center(PARAMS, METHOD, shards=1.5), ValueError, "at least 1, got 1.5"),
    (lambda: center(PARAMS, METHOD, shards=4), ValueError, "number of arrays in params, 3"),
    (lambda: center(PARAMS, METHOD, save_every=0), ValueError, "save_every must be at least"),
    (lambda: center(PARAMS, METHOD, timeout=0), ValueError, "timeout must be seconds"),
    (lambda: center(PARAMS, METHOD, timeout="5"), ValueError, "greater than 0, got '5'"),
    (lambda: center(PARAMS, METHOD, checkpoint=""), TypeError, "checkpoint must be a path"),
    (lambda: center(PARAMS, METHOD, resume=True), ValueError, "resume needs the checkpoint="),
    (lambda: center(PARAMS, METHOD, options=[1]), TypeError, "options must be a dict"),
    (
        lambda: center(PARAMS, METHOD, options={"num_cpus": 1, "name": "x"}),
        ValueError,
        "options has 'name', which the center sets itself.",
    ),
    (
        lambda: center(PARAMS, gc.agn(gx.clip_by_global_norm(1.0)), shards=2),
        ValueError,
        "clip_by_global_norm looks at the whole tree, so it cannot run where the arrays are apart; "
        "use shards=1.",
    ),
    (
        lambda: center(PARAMS, gc.agn(gx.chain(gx.add_noise(0.1, 0.5, 0))), shards=2),
        ValueError,
        "add_noise looks at the whole tree",
    ),
    (lambda: center(PARAMS, METHOD), gc.CenterUnavailableError, "call ray.init(...) first"),
    (lambda: worker("x"), gc.CenterUnavailableError, "not connected to Ray"),
    (lambda: worker("x", address=5), ValueError, "address must be 'host:port'"),
    (
        lambda: worker("x", address="head"),
        ValueError,
        "address must be 'host:port' or 'auto'",
    ),
    (lambda: worker("x", timeout=-1), ValueError, "RayWorker: timeout must be seconds"),
    (
        lambda: worker(gc.Center(PARAMS, METHOD)),
        TypeError,
        "center must be a RayCenter or its",
    ),
    (lambda: gr.RayCenter.connect("x/0"), ValueError, "name must be a string without '/'"),
]


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED)
def test_wrong_arguments_are_refused(monkeypatch, make, kind, words):
    monkeypatch.setitem(sys.modules, "ray", ray_of())
    with pytest.raises(kind) as caught:
        make()
    message = str(caught.value)
    assert words in message and "\n" not in message and message.endswith(".")


def test_an_optimizer_of_optax_runs_in_shards_if_it_is_entrywise(monkeypatch):
    optax = pytest.importorskip("optax")
    monkeypatch.setitem(sys.modules, "ray", ray_of())
    with jax.numpy_dtype_promotion("standard"):
        with pytest.raises(gc.CenterUnavailableError, match=r"ray\.init"):  # all else is right
            gr.RayCenter(PARAMS, gc.agn(optax.adam(0.1)), shards=2)
    with pytest.raises(ValueError, match=r"looks further .* use shards=1\."):
        gr.RayCenter(PARAMS, gc.agn(optax.clip_by_global_norm(1.0)), shards=2)


def test_an_address_where_nothing_listens_is_an_error_at_once(monkeypatch):
    """Ray itself tries for five minutes, and then ends the process."""
    monkeypatch.setitem(sys.modules, "ray", ray_of(init=lambda **_: pytest.fail("asked Ray")))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    for make in (gr.RayCenter.connect, lambda name, address: gr.RayWorker(name, address=address)):
        with pytest.raises(gc.CenterUnavailableError, match=f"nothing answers at {address} .*head"):
            make("x", address)


def test_a_cluster_that_ends_the_process_is_an_error(monkeypatch):
    def end(**_):
        raise SystemExit(15)

    monkeypatch.setitem(sys.modules, "ray", ray_of(init=end))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(gc.CenterUnavailableError, match=r"cannot join .*RAY_AUTH_TOKEN"):
            gr.RayCenter.connect("x", address, timeout=limit(1, 5))


# ----------------------------------------------------------------------------- shards and metrics


def test_leaves_are_divided_by_bytes_and_always_alike():
    params = {k: jnp.zeros(n) for k, n in {"a": 10, "b": 7, "c": 7, "d": 4, "e": 0, "f": 2}.items()}
    layout = layout_of("test", params)
    assert divide_leaves(layout, 1) == [[0, 1, 2, 3, 4, 5]]
    assert divide_leaves(layout, 2) == [[0, 3, 5], [1, 2, 4]] == divide_leaves(layout, 2)
    assert {i for leaves in divide_leaves(layout, 6) for i in leaves} == set(range(6))
    assert all(len(leaves) == 1 for leaves in divide_leaves(layout, 6))


def test_shards_have_files_of_their_own_and_see_those_of_another_number(tmp_path):
    path = str(tmp_path / "run.npz")
    assert shard_module.shard_path(path, 0, 1) == path
    second = shard_module.shard_path(path, 1, 2)
    assert second == str(tmp_path / "run.1-of-2.npz")
    assert shard_module.other_file(second, 1, 2) is None
    (tmp_path / "run.0-of-2.npz").touch()
    assert shard_module.other_file(second, 1, 2) is None
    assert shard_module.other_file(path, 0, 1) == str(tmp_path / "run.0-of-2.npz")
    (tmp_path / "run.0-of-3.npz").touch()
    assert shard_module.other_file(second, 1, 2) == str(tmp_path / "run.0-of-3.npz")
    (tmp_path / "run.npz").touch()
    assert shard_module.other_file(second, 1, 2) == path


class Metric:
    """Stands for a metric of Ray."""

    told: ClassVar[list] = []

    def __init__(self, name, description, tag_keys):
        self.name, self.tags = name, {}
        assert name.startswith("gradxform_center_") and description

    def set_default_tags(self, tags):
        self.tags = tags

    def inc(self, value, tags):
        self.told.append((self.name, self.tags | tags, value))

    def set(self, value):
        self.told.append((self.name, self.tags, value))


@pytest.fixture
def told(monkeypatch):
    """What the metrics of Ray are told, without Ray."""
    metrics = types.SimpleNamespace(Counter=Metric, Gauge=Metric)
    util = types.SimpleNamespace(metrics=metrics)
    monkeypatch.setitem(sys.modules, "ray", ray_of(util=util))
    monkeypatch.setitem(sys.modules, "ray.util", util)
    monkeypatch.setitem(sys.modules, "ray.util.metrics", metrics)
    monkeypatch.setattr(Metric, "told", [])
    return Metric.told


def test_counts_become_metrics_of_ray_once(told):
    center = gc.Center(PARAMS, METHOD)
    meters = shard_module.Meters(settings(shards=2, index=1), center)
    worker, tags = gc.Worker(center.answer, PARAMS), {"center": "x", "shard": "1"}
    worker.push(PARAMS)
    worker.push(PARAMS)
    step = ("gradxform_center_global_step", tags, 2)
    applied = ("gradxform_center_requests", tags | {"outcome": "applied"}, 2)
    for new in ([applied, step], [step]):
        told.clear()
        meters.update()
        assert told == new


# ------------------------------------------------------------ the actor, in the process of the test


def settings(path=None, shards=1, index=0, method=METHOD, save_every=1):
    leaves = divide_leaves(layout_of("test", PARAMS), shards)[index]
    path = path and str(path)
    return shard_module.Settings(
        "x", PARAMS, leaves, index, shards, method, path, save_every, False
    )


def parts(of, params=PARAMS):
    leaves = [np.asarray(x) for x in jax.tree.leaves(params)]
    return [leaves[i] for i in of.leaves]


@pytest.fixture
def start(monkeypatch, told):
    def start(of, resume=False, restarted=False):
        monkeypatch.setattr(shard_module, "_is_restarted", lambda: restarted)
        shard = shard_module.Shard(of)
        return shard, shard.start(parts(of), resume)[1]

    return start


def push(shard, number):
    header = {"operation": "push", "worker": "a" * 32, "number": number}
    return shard.answer(header | {"version": gx.__version__}, parts(shard._settings))


def test_an_actor_saves_in_time_and_starts_from_its_save(start, tmp_path):
    path = tmp_path / "run.npz"
    first, problem = start(settings(path, save_every=2))
    assert problem is None and path.exists()  # from the start, so that it can restart
    wanted = [push(first, i)[0] for i in range(5)]
    again, problem = start(settings(path, save_every=2), restarted=True)
    assert problem is None and again.metrics()[0]["global_step"] == 4  # the fifth is lost
    assert push(again, 3)[0][0] == wanted[3][0]  # the fourth is not carried out again
    assert again.metrics()[0]["repeated"] == 1
    (header, arrays), problem = push(again, 4)
    assert problem is None and header == wanted[4][0]
    for x, y in zip(arrays, wanted[4][1], strict=True):
        np.testing.assert_array_equal(x, y)
    other, problem = start(settings(path), resume=True)
    assert problem is None and other.metrics()[0]["global_step"] == 4
    assert other.start(parts(settings(path)), False) == (None, None)  # repeated by Ray
    assert other.metrics()[0]["global_step"] == 4 and other.about()["started"]


@pytest.mark.parametrize(
    ("of", "flags", "words"),
    [
        ({}, {}, "run.npz is of an earlier run; continue from it with resume=True, or choose"),
        ({"shards": 2}, {}, "run.npz is of an earlier run"),
        ({"shards": 2}, {"resume": True}, "of another number of shards does; resume with that"),
        ({"method": gc.elastic(0.1)}, {"resume": True}, "is of a center with agn, but this one"),
        ({"method": gc.agn(gx.adam(0.1))}, {"resume": True}, "but the file does not"),
        ({"path": "gone.npz"}, {"restarted": True}, "gone.npz is not there to restart from"),
        ({"path": "nowhere/run.npz"}, {}, "No such file or directory: "),
    ],
)
def test_an_actor_that_cannot_start_says_why(start, tmp_path, of, flags, words):
    start(settings(tmp_path / "run.npz"))
    saved = (tmp_path / "run.npz").read_bytes()
    of = {**of, "path": tmp_path / of.get("path", "run.npz")}
    shard, problem = start(settings(**of), **flags)
    assert words in problem and "\n" not in problem and not problem.startswith("RayCenter")
    assert (tmp_path / "run.npz").read_bytes() == saved
    if flags.get("restarted"):
        assert shard.about()["problem"] == problem
        assert push(shard, 1) == (({}, []), problem) == (({}, []), shard.metrics()[1])
    else:
        assert not shard.about()["started"] and "was not started" in push(shard, 1)[1]


def test_an_actor_answers_no_request_after_its_last_save(start, tmp_path):
    path = tmp_path / "run.npz"
    shard, _ = start(settings(path, save_every=100))
    push(shard, 1)
    assert shard.finish() == shard.finish() == (None, None)  # Ray may repeat it
    assert push(shard, 2) == (({}, []), "it was stopped")
    other, _ = start(settings(path), resume=True)
    assert other.metrics()[0]["global_step"] == 1
    unsaved, _ = start(settings())
    assert unsaved.finish() == (None, None) and push(unsaved, 1)[1] is None


def test_an_actor_that_cannot_save_says_so(start, tmp_path):
    (tmp_path / "folder").mkdir()
    shard, problem = start(settings(tmp_path / "folder" / "run.npz"))
    assert problem is None
    (tmp_path / "folder" / "run.npz").unlink()
    (tmp_path / "folder").rmdir()
    (header, _), problem = push(shard, 1)
    assert header["applied"] and problem.startswith("No such file or directory: ")
    problem = shard.finish()[1]
    assert problem is not None and problem.startswith("No such file or directory: ")
    assert push(shard, 2)[0][0]["applied"]  # it goes on


# ---------------------------------------------------------------------- shards without their actors


class Local:
    """Stands for an actor: a center of some leaves, called at once."""

    def __init__(self, leaves, method):
        flat, treedef = jax.tree.flatten(PARAMS)
        holes = [x if i in leaves else None for i, x in enumerate(flat)]
        self.center, self.asked = gc.Center(jax.tree.unflatten(treedef, holes), method), []
        self.answer = types.SimpleNamespace(remote=self._answer)

    def _answer(self, header, arrays):
        self.asked.append(header)
        return self.center.answer(header, arrays), None


@pytest.fixture
def in_shards(monkeypatch):
    """Return a center of two shards in this process, its shards, and a worker."""
    monkeypatch.setattr(
        center_module,
        "ask_actors",
        lambda part, name, calls, timeout: [c() for c in calls],
    )

    def make(method):
        center = gr.RayCenter.__new__(gr.RayCenter)
        center._set("x", PARAMS, 2, method.counts_staleness, 60.0)
        shards = [Local(leaves, method) for leaves in center._division]
        center._actors = shards
        return center, shards, gr.RayWorker(center)

    return make


@pytest.mark.parametrize("fresh", [True, False])
def test_the_first_shard_decides_for_all(in_shards, fresh):
    """Also where another shard would decide otherwise, because it has taken other steps."""
    _, shards, worker = in_shards(gc.drop_stale(gx.sgd(1.0), 0))
    header = {"operation": "push", "worker": "c" * 32, "number": 1, "version": gx.__version__}
    ahead = shards[1 if fresh else 0]
    own = [np.ones(np.shape(x), np.float32) for x in jax.tree.leaves(ahead.center.params)]
    ahead.center.answer(header | {"local_step": 0}, own)
    before = [shard.center.params for shard in shards]
    _, step, applied = worker.push(jax.tree.map(jnp.ones_like, PARAMS), 0)
    assert (applied, step) == (fresh, 1)
    for shard, old in zip(shards, before, strict=True):
        for x, y in zip(*map(jax.tree.leaves, (shard.center.params, old)), strict=True):
            np.testing.assert_array_equal(x, y - 1 if fresh else y)


@pytest.mark.parametrize("bad", [np.nan, "shape"])
def test_a_request_that_is_wrong_in_one_part_reaches_no_shard(in_shards, bad):
    center, shards, worker = in_shards(METHOD)
    worker.join()
    send = center.sender("test", 60.0)
    arrays = [np.asarray(x) for x in jax.tree.leaves(PARAMS)]
    arrays[0] = np.zeros(9, np.float32) if bad == "shape" else arrays[0] + np.float32(bad)
    header = {"operation": "push", "worker": "c" * 32, "number": 1, "version": gx.__version__}
    answer, found = send(header, arrays)
    assert answer["refused"] == ("tree" if bad == "shape" else "not finite") and found == []
    assert "['b'] of what was sent" in answer["why"]
    assert [shard.center.global_step for shard in shards] == [0, 0]
    assert [len(shard.asked) for shard in shards] == [2, 2]  # a hello and a pull


def test_a_refusal_of_one_shard_is_one_of_the_center(in_shards):
    _, shards, worker = in_shards(gc.agn(gx.sgd(1e38)))
    grads = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(3), "c": jnp.asarray(1e38)}
    with pytest.raises(gc.RefusedError, match=r"\['c'\] of the center would get a NaN or an inf"):
        worker.push(grads)
    assert sorted(shard.center.global_step for shard in shards) == [0, 1]  # docs/center.md says so
