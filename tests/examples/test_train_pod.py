"""The example `examples/train_pod.py`: slices train together, are lost, and others go on."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import train_pod

from tests.environment import ROOT, environment, limit
from tests.examples.checkpoints import assert_same_arrays, of_replicas
from tests.examples.example_runs import cells, refused

EXAMPLE = ROOT / "examples" / "train_pod.py"

# Orbax and what it imports warn of their own deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("eight_devices")]

SMALL = ["--text", "json", "--layers", "1", "--width", "16", "--length", "8", "--batch-size", "12"]
QUICK = [*SMALL, "--launcher", "here", "--slices", "2", "--devices", "2"]
QUICK += ["--steps", "12", "--period", "3", "--save-every", "6"]


def run(*argv):
    """Run the example in this process, which must succeed; return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with jax.numpy_dtype_promotion("standard"):  # Flax's layers in bfloat16 need it
            assert train_pod.main([str(a) for a in argv]) == 0
    assert err.getvalue() == "" and "PJRT_NPROC" not in os.environ
    return out.getvalue()


def history_of(out):
    return json.loads((Path(out) / "history.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a run that nothing interrupted, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, run(*QUICK, "--out", out)


@pytest.fixture
def stopped(whole, tmp_path):
    """The directory of a run that was stopped after its first checkpoint, of step 6."""
    out = tmp_path / "stopped"
    shutil.copytree(whole[0], out)
    shutil.rmtree(out / "checkpoints" / "12")
    return out


def test_an_interrupted_run_resumes_bit_for_bit(whole, tmp_path, monkeypatch, capsys):
    def save_then_interrupt(manager, step, *rest, save=train_pod.save):
        save(manager, step, *rest)
        raise KeyboardInterrupt

    whole, said = whole
    assert said.startswith("outer(") and "\nstep   12/12  loss " in said
    last = re.search(r"Held-out loss (\S+) in [\d.]+ s; wrote (.+)", said)
    assert all(Path(path).exists() for path in re.split(", | and ", last[2]))
    assert (whole / "training.png").read_bytes()[:4] == b"\x89PNG"
    with monkeypatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(train_pod, "save", save_then_interrupt)
        cut = [*QUICK, "--out", tmp_path / "cut"]
        message = refused(train_pod, capsys, *cut, code=130)
    go_on = f"--resume --out {tmp_path / 'cut'}"
    assert message.endswith(f"step 6 is saved; go on with: python examples/train_pod.py {go_on}\n")
    again = run("--launcher", "here", *go_on.split(), "--beside", whole)
    assert "after step 6 of 12" in again
    assert history_of(whole) == history_of(tmp_path / "cut")
    arrays, _ = of_replicas(whole, 12)
    assert any("still" in path or "own" in path for path in arrays), list(arrays)
    assert_same_arrays(arrays, of_replicas(tmp_path / "cut", 12)[0])


def test_other_slices_go_on_and_tower_sends_more(stopped, tmp_path):
    said = run("--resume", "--slices", "3", "--launcher", "here", "--out", stopped)
    assert cells(said)["slices x devices"] == "2 x 2 from step 0, 3 x 2 from step 6"
    history = history_of(stopped)
    assert history["steps"] == [0, 3, 6, 9, 12] and history["losses"][-1] < history["losses"][2]
    arrays, _ = of_replicas(stopped, 12)
    assert {len(x) for path, x in arrays.items() if "params" in path} == {3}
    few = [*QUICK[:-4], "--steps", "2", "--save-every", "2"]
    tower = run(*few, "--method", "tower", "--out", tmp_path / "tower")
    assert cells(tower)["steps left out"].startswith("0,")
    assert history_of(tmp_path / "tower")["sent"][-1] / 2 > 5 * history["sent"][2] / 6


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--method towr", "--method: no method named 'towr'. Did you mean 'tower'?"),
        ("--method tower --period 3", "--period: tower exchanges at every step"),
        ("--steps 35", "--steps 35: must be a multiple of 10, the steps to an exchange"),
        ("--save-every 5", "--save-every 5: must be a multiple of 10"),
        ("--slices 0", "--slices: must be a whole number from 1, got '0'"),
        ("--devices x", "--devices: must be a whole number from 1, got 'x'"),
        ("--batch-size 7", "--batch-size 7: must be at least 8, a window for each device"),
        ("--width 10", "--width 10: must be a multiple of 4"),
        ("--compress int4", "invalid choice: 'int4'"),
        ("--outer-momentum 1", "--outer-momentum 1: must be below 1"),
        ("--text nothing", "the standard library has no part 'nothing'"),
        ("--launcher here --elastic", "--launcher here does not start processes again"),
        ("--launcher here --slices 400 --batch-size 9999", "--slices 400 --devices 4: there are"),
        ("--beside x --launcher here --slices 1 --devices 1", "x/history.json: No such file"),
        ("--resume", "no checkpoint in runs/pod to resume"),
        ("--slice 3", "unknown argument '--slice'. Did you mean '--slices'"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    assert words in refused(train_pod, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written
    # What is meant for 1600 devices would be as many threads in every process that follows.
    assert dict(os.environ) == before


def test_what_cannot_be_resumed_is_said(stopped, monkeypatch, capsys):
    out = ["--out", str(stopped)]
    message = refused(train_pod, capsys, "--resume", "--period", "5", *out)
    assert "cannot resume with --period 5: the run" in message and "was started with 3" in message

    def dies(*_):
        raise train_pod.Died("process 1 of 2 was killed by SIGKILL.")

    monkeypatch.setattr(train_pod, "launch", dies)
    message = refused(train_pod, capsys, "--resume", "--slices", "3", *out, code=1)
    go_on = f"python examples/train_pod.py --resume --out {stopped} --slices 2"
    assert message.endswith(f"Step 6 is saved; go on with a slice less: {go_on}\n")
    message = refused(train_pod, capsys, "--resume", "--slices", "1", *out, code=1)
    assert message.endswith("was killed by SIGKILL.\n")  # no slice is left
    (stopped / "checkpoints" / "6" / "history" / "metadata").write_text("{}")
    message = refused(train_pod, capsys, "--resume", "--launcher", "here", *out)
    assert "cannot read the checkpoint of step 6" in message


@pytest.mark.xdist_group("processes")
def test_a_killed_slice_is_left_behind(tmp_path):
    longest = limit(90, 300)
    argv = [*SMALL, "--slices", "2", "--devices", "2", "--steps", "200", "--period", "2"]
    argv += ["--save-every", "40", "--elastic", "--timeout", str(longest), "--out", tmp_path / "x"]
    log = (tmp_path / "log").open("w")
    command = [sys.executable, "-u", str(EXAMPLE), *map(str, argv)]
    process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    until = time.monotonic() + longest
    try:
        while not (tmp_path / "x" / "checkpoints" / "40").is_dir():
            assert time.monotonic() < until and process.poll() is None, log_of(tmp_path)
            time.sleep(0.02)
        pids = re.search(r"The slices are the processes (\d+), (\d+)", log_of(tmp_path))
        os.kill(int(pids[2]), signal.SIGKILL)
        code = process.wait(until - time.monotonic())
    finally:
        process.send_signal(signal.SIGTERM)  # and so its processes end
        try:
            process.wait(limit(5, 30))
        finally:
            process.kill()
            log.close()
    said = log_of(tmp_path)
    assert code == 0, said
    assert "process 1 of 2 was killed by SIGKILL" in said
    step = int(re.search(r"\n1 slice goes on from step (\d+)\.", said)[1])
    assert step % 40 == 0 and step >= 40
    assert cells(said)["slices x devices"] == f"2 x 2 from step 0, 1 x 2 from step {step}"
    history = history_of(tmp_path / "x")
    assert history["steps"][-1] == 200 and history["losses"][-1] < history["losses"][1]
    assert history["sent"][-1] == history["sent"][history["steps"].index(step)] > 0
    assert (tmp_path / "x" / "training.png").is_file()


def log_of(tmp_path):
    """What the example has said; and, where it names their logs, what its processes have."""
    said = (tmp_path / "log").read_text(errors="replace")
    kept = re.search(r"What they said is in (\S+)/\.", said)
    logs = sorted(Path(kept[1]).glob("*.txt")) if kept else []
    return "\n".join([said, *(path.read_text(errors="replace") for path in logs)])
