"""The example `examples/distributed_digits.py`: processes that train together, or end together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed_digits
import distributed_launch
import distributed_methods
import numpy as np
import pytest

from tests.environment import ROOT, environment, limit
from tests.examples.checkpoints import assert_same_arrays, of_replicas
from tests.examples.example_runs import cells, refused

EXAMPLE = ROOT / "examples" / "distributed_digits.py"

# Few steps; all replicas in this process.
QUICK = ["--batch-size", "240", "--mode", "vmap"]


def run(capsys, *argv):
    """Run the example in this process, which must succeed; return what it prints."""
    assert distributed_digits.main([str(a) for a in argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# ------------------------------------------------------------------------- in one process


def test_a_run_reports_its_exchanges_and_its_accuracy(tmp_path, capsys):
    out = run(capsys, *QUICK, "--epochs", "2", "--period", "3", "--out", tmp_path / "x")
    assert out.startswith("model_average(") and out.count("epoch ") == 2
    assert "4 replicas by model_average, period 3" in out
    said = cells(out)
    assert said["exchanges"] == "3" and said["steps"].startswith("10, ")
    assert "1.500 P" in said["sent in an exchange"] and "0.450 P" in said["sent in a step, mean"]
    assert said["bytes"] == "by the rule, not counted"
    last = re.fullmatch(r"Held-out accuracy (\S+) in [\d.]+ s; wrote (.+)", out.splitlines()[-1])
    written = re.split(", | and ", last[2])
    assert len(written) == 4 and all(Path(path).exists() for path in written)
    assert (tmp_path / "x" / "training.png").read_bytes()[:4] == b"\x89PNG"
    history = of_replicas(tmp_path / "x", 2)[1]
    assert history["distance_step"] == list(range(1, 11))
    apart = np.array(history["distance"])
    np.testing.assert_allclose(apart[2::3], 0, atol=1e-6)
    assert np.all(apart[[0, 1, 3, 4, 6, 7, 9]] > 1e-4)
    assert f"{history['held_out_accuracy'][-1]:.4f}" == last[1] == said["held-out accuracy"]


@pytest.mark.parametrize("method", distributed_methods.METHODS)
def test_every_method_trains(method, tmp_path, capsys):
    period = ["--period", "2"] if method in distributed_methods.EVERY_PERIOD else []
    argv = [*QUICK, "--epochs", "1", "--processes", "2", "--method", method, *period]
    out = run(capsys, *argv, "--optimizer", "sgd", "--out", tmp_path)
    assert f"2 replicas by {method}" in out
    history = of_replicas(tmp_path, 1)[1]
    assert history["loss"][-1] < history["loss"][0]
    assert history["exchanges"] == [2.0 if period else 5.0]


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, monkeypatch, capsys):
    def save_then_interrupt(manager, epoch, *rest, save=distributed_digits.save):
        save(manager, epoch, *rest)
        if epoch == 1:
            raise KeyboardInterrupt

    argv = [*QUICK, "--epochs", "2", "--method", "elastic_average", "--period", "2"]
    run(capsys, *argv, "--out", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(distributed_digits, "save", save_then_interrupt)
        message = refused(distributed_digits, capsys, *argv, "--out", tmp_path / "cut", code=130)
    assert message.endswith(f"distributed_digits.py --resume --out {tmp_path / 'cut'}\n")
    assert "after epoch 1 of 2" in run(capsys, "--resume", "--out", tmp_path / "cut")
    (a, of_a), (b, of_b) = of_replicas(tmp_path / "whole", 2), of_replicas(tmp_path / "cut", 2)
    assert any("local_center" in path for path in a)
    assert_same_arrays(a, b)
    assert {**of_a, "seconds": 0} == {**of_b, "seconds": 0}


@pytest.mark.parametrize("method", ["zero1", "diloco"])
def test_a_run_continues_with_another_number_of_replicas(method, tmp_path, capsys):
    argv = [*QUICK, "--method", method, "--schedule", "constant", "--out", tmp_path]
    run(capsys, *argv, "--epochs", "1", "--processes", "4")
    before = of_replicas(tmp_path, 1)[0]
    run(capsys, "--resume", "--epochs", "2", "--processes", "3", "--out", tmp_path)
    out = run(capsys, "--resume", "--epochs", "3", "--processes", "6", "--out", tmp_path)
    assert "The checkpoint has 3 replicas; 6 go on." in out and f"6 replicas by {method}" in out
    after, history = of_replicas(tmp_path, 3)
    assert before.keys() == after.keys()
    assert all(x.shape[0] == 6 for x in after.values() if x.ndim)
    assert np.all(np.diff([np.mean(x) for x in np.split(np.array(history["loss"]), 3)]) < 0)
    assert json.loads((tmp_path / "options.json").read_text())["processes"] == 6
    if method == "zero1":  # as if nothing had happened, but for rounding
        run(capsys, *argv[:-1], tmp_path / "whole", "--epochs", "3", "--processes", "2")
        whole = of_replicas(tmp_path / "whole", 3)[1]
        np.testing.assert_allclose(history["loss"], whole["loss"], rtol=1e-3)
        assert "sent in all" in out and history["exchanges"] == whole["exchanges"]


def test_images_that_cannot_be_divided_are_left_out(tmp_path, capsys):
    argv = ["--mode", "vmap", "--batch-size", "500", "--epochs", "1", "--processes", "3"]
    run(capsys, *argv, "--out", tmp_path)
    assert json.loads((tmp_path / "options.json").read_text())["batch_size"] == 500


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--method elastic", "--method: no method named 'elastic'. Did you mean 'elastic_average'"),
        ("--method x", "There are sync, sync_replicas, zero1, model_average, elastic_average, agn"),
        (
            "--method sync --period 3",
            "--period: sync exchanges at every step; leave the option out",
        ),
        ("--period 0", "--period: must be a whole number from 1, got '0'"),
        ("--processes 0", "--processes: must be a whole number from 1, got '0'"),
        ("--process 2", "unknown argument '--process'. Did you mean '--processes'"),
        ("--mode pmapp", "invalid choice: 'pmapp'"),
        ("--timeout -1", "--timeout: must be a positive number, got '-1'"),
        ("--heartbeat x", "--heartbeat: must be a whole number from 1, got 'x'"),
        ("--batch-size 3", "--batch-size 3: must be from 4, an image for each replica, to 1347"),
        ("--batch-size 2000", "--batch-size 2000: must be from 4"),
        ("--optimizer adamm", "no optimizer named 'adamm'. Did you mean 'adam'"),
        ("--optimizer lbfgs --method zero1", "zero1: scale_by_lbfgs looks at the whole tree"),
        ("--optimizer polyak_sgd --mode vmap", "needs the extra argument 'value'"),
        ("--launcher cluster --processes 2", "the cluster says how many processes there are"),
        ("--launcher ray --mode vmap", "--mode vmap is one process"),
        ("--address 10.0.0.1:6379", "only --launcher ray takes it"),
        ("--resume", "no checkpoint in runs/distributed to resume"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(distributed_digits, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, capsys):
    argv = [*QUICK, "--optimizer", "sgd", "--learning-rate", "1e30", "--out", tmp_path]
    message = refused(distributed_digits, capsys, *argv, code=1)
    assert re.search(r"the loss is (nan|inf) at step \d+ of epoch 1; lower", message)


def test_a_dead_process_ends_the_run_in_one_line(tmp_path, monkeypatch, capsys):
    def dies(*_):
        raise distributed_launch.Died("process 1 of 2 was killed by SIGKILL.")

    monkeypatch.setattr(distributed_digits, "launch", dies)
    message = refused(distributed_digits, capsys, "--out", tmp_path, code=1)
    assert message == "distributed_digits.py: error: process 1 of 2 was killed by SIGKILL.\n"


# --------------------------------------------------------------------- starting and ending


SCRIPT = """
import os, sys, time
me = int(sys.argv[-1])
assert sys.argv[1:-1] == ["--x", "--processes", "3", "--coordinator", sys.argv[-3], "--process-id"]
{}
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "if me == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)",
            "process 1 of 3 was killed by SIGK",
        ),
        (
            "if me == 2: raise KeyError(3)\ntime.sleep(60)",
            "process 2 of 3 ended with exit code 1. K",
        ),
        ("if me == 0: sys.exit(7)\ntime.sleep(60)", "process 0 of 3 ended with exit code 7."),
        ("if me: os.abort()\ntime.sleep(0.5)\nos.kill(os.getpid(), 15)", "was killed by SIG"),
        ("if me == 2: sys.exit('me: error: too bad.')\ntime.sleep(60)", "me: error: too bad."),
        ("if me: time.sleep(60)", "not done after 3 s; killed the 3 processes."),
        ("", None),
    ],
)
def test_a_process_that_fails_ends_the_others(body, words, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed_launch.tempfile, "tempdir", str(tmp_path))
    script, asleep = tmp_path / "script.py", limit(40, 60)
    script.write_text(SCRIPT.format(body.replace("sleep(60)", f"sleep({asleep})")))
    begun, pids = time.monotonic(), []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            pids.append(self.pid)

    monkeypatch.setattr(distributed_launch.subprocess, "Popen", Noted)
    before = signal.getsignal(signal.SIGTERM)
    try:
        distributed_launch.launch(
            str(script), ["--x"], 3, 3.0 if "if me: t" in body else asleep / 2, "me: "
        )
    except (distributed_launch.Died, distributed_launch.Said) as error:
        assert words and words in error.args[0]
        kept = isinstance(error, distributed_launch.Died)
        assert len(list(tmp_path.iterdir())) == 1 + kept  # the script, and what they said
    else:
        assert words is None
    assert time.monotonic() - begun < asleep / 2 and len(pids) == 3
    assert signal.getsignal(signal.SIGTERM) is before
    assert all(is_gone(pid) for pid in pids)


def is_gone(pid):
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True


DRIVER = """
import signal, sys
import distributed_launch
# A shell that runs the tests in the background has them ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
if "--process-id" not in sys.argv:
    distributed_launch.launch(__file__, [], 3, None, "me: ")
import os, pathlib
pathlib.Path(sys.argv[-1] + ".pid").write_text(str(os.getpid()))
distributed_launch.end_with_parent()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(how, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(PYTHONPATH=str(ROOT / "examples"), TMPDIR=str(tmp_path)),
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + seconds()
    pids = []
    try:
        while len(pids) < 3:
            assert time.monotonic() < until and driver.poll() is None
            time.sleep(0.05)
            pids = [int(x) for path in tmp_path.glob("*.pid") if (x := path.read_text())]
        driver.send_signal(how)
        code = driver.wait(limit(10, 30))
    finally:
        driver.kill()
        driver.wait()
    assert code == {signal.SIGTERM: 143}.get(how, -how)
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def seconds():
    """Return the limit for whatever is started here."""
    return limit(80, 240)


def start(out, *argv, **env):
    command = [sys.executable, str(EXAMPLE), "--out", str(out), *argv]
    return subprocess.Popen(
        command, env=environment(**env), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.end_to_end
@pytest.mark.xdist_group("processes")
def test_processes_train_as_the_simulation_does(tmp_path, capsys):
    argv = ["--batch-size", "240", "--processes", "2", "--epochs", "2", "--period", "3"]
    longest = seconds()
    process = start(tmp_path / "x", *argv, "--timeout", str(longest))
    try:
        out, err = process.communicate(timeout=longest + limit(5, 30))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and err == "", err
    assert out.startswith("model_average(") and "Gloo" not in out and "\x1b" not in out
    assert "counted in the compiled step" in out and "1.000 P" in out
    run(capsys, *argv, "--mode", "vmap", "--out", tmp_path / "y")
    (a, of_a), (b, of_b) = of_replicas(tmp_path / "x", 2), of_replicas(tmp_path / "y", 2)
    assert a.keys() == b.keys()
    for path, x in a.items():
        np.testing.assert_allclose(x, b[path], rtol=1e-3, atol=1e-4, err_msg=path)
    assert {k: len(v) for k, v in of_a.items()} == {k: len(v) for k, v in of_b.items()}
    np.testing.assert_allclose(of_a["loss"], of_b["loss"], rtol=1e-4)
    np.testing.assert_allclose(of_a["distance"], of_b["distance"], rtol=1e-3, atol=1e-6)


@pytest.mark.xdist_group("ray")
def test_processes_train_on_the_workers_of_ray(tmp_path, capsys):
    pytest.importorskip("ray", reason="ray is not installed; the extra `ray` has it")
    argv = ["--batch-size", "240", "--processes", "2", "--epochs", "1", "--method", "zero1"]
    longest = seconds()
    ways = "--launcher", "ray", "--timeout", str(longest)
    process = start(tmp_path / "x", *argv, *ways)
    try:
        out, err = process.communicate(timeout=longest + limit(20, 60))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and err == "", err
    assert out.startswith("zero1(") and "2 replicas by zero1" in out
    assert "counted in the compiled step" in out
    run(capsys, *argv, "--mode", "vmap", "--out", tmp_path / "y")
    (a, _), (b, _) = of_replicas(tmp_path / "x", 1), of_replicas(tmp_path / "y", 1)
    for path, x in a.items():
        np.testing.assert_allclose(x, b[path], rtol=1e-3, atol=1e-4, err_msg=path)


@pytest.mark.xdist_group("processes")
def test_a_clusters_launcher_needs_no_arguments(tmp_path):
    """Two processes as SLURM would start them."""
    with distributed_launch.socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": port,
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
    }
    argv = ["--batch-size", "240", "--epochs", "1", "--method", "zero1"]
    both = [
        start(tmp_path / "x", *argv, SLURM_PROCID=str(i), SLURM_LOCALID=str(i), **slurm)
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=seconds()) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert [process.returncode for process in both] == [0, 0], said
    assert "2 replicas by zero1" in said[0][0] and "Held-out accuracy" in said[0][0]
    assert "Held-out" not in said[1][0]
    assert {x.shape[0] for x in of_replicas(tmp_path / "x", 1)[0].values()} == {2}
