"""The example `examples/async_ray.py`: it trains on though its center and a worker are killed."""

import re
import subprocess
import sys

import async_figure
import async_ray
import pytest

from tests.environment import ROOT, environment, limit
from tests.examples.example_runs import refused


@pytest.mark.xdist_group("ray")
def test_workers_go_on_though_the_center_and_a_worker_are_killed(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed; the extra `ray` has it")
    argv = ["--workers", "2", "--steps", "240", "--slowest", "0.01", "--out", str(tmp_path / "x")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "async_ray.py"), *argv],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=limit(80, 300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for event in ("center killed", "worker killed", "worker back"):
        assert re.search(rf"^ +[\d.]+ s  {event}$", done.stdout, re.M), done.stdout
    last = re.search(r"^([\d.]+)    held-out accuracy after (\d+) steps", done.stdout, re.M)
    assert float(last[1]) > 0.8 and int(last[2]) >= 240
    assert (tmp_path / "x" / "async.png").stat().st_size > 30_000
    assert (tmp_path / "x" / "center.npz").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--method adam", "invalid choice: 'adam'"),
        ("--workers 0", "must be a whole number from 1"),
        ("--workers 1", "nobody goes on when it is killed"),
        ("--slowest -1", "must be a positive number"),
        ("--address 10.0.0.1:6379", "cannot be killed from here; add --no-kill"),
        ("--worker 2", "Did you mean '--workers'?"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(capsys, tmp_path, argv, words):
    assert words in refused(async_ray, capsys, *argv.split(), "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_machine_without_ray_is_told_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("JAX_PLATFORMS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # so that they are restored
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "")
    assert "install gradxform[ray]" in refused(async_ray, capsys, "--out", tmp_path)


def test_the_figure_is_drawn_also_of_a_worker_that_never_started(tmp_path):
    seen = [(0.0, 0, 0.1), (1.0, 5, 0.4), (2.0, 9, 0.8)]
    counts = {"without pauses": [(0.0, 0), (2.0, 9)], "another": []}
    events = [async_figure.Event(1.0, "worker killed")]
    async_figure.draw(tmp_path / "a.png", "2 workers", seen, counts, events)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
