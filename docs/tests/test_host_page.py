"""The center and the workers of docs/host.md train together, as processes of their own."""

import os
import subprocess
import sys

import numpy as np

from docs.site import blocks
from tests.environment import limit


def test_the_center_and_the_workers_train(tmp_path):
    blocks.run(blocks.DOCS / "host.md", tmp_path)
    for program in ("center.py", "worker.py"):
        assert len((tmp_path / program).read_text().splitlines()) <= 25
    seconds = limit(40, 120)
    running = []

    def run(*args):
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        env |= {"CENTER_SECRET": "a secret of more than 16 bytes", "PYTHONPATH": str(blocks.ROOT)}
        running.append(
            subprocess.Popen(
                [sys.executable, *args], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
        )
        return running[-1]

    try:
        center = run("center.py")
        address = center.stdout.readline().strip()
        workers = [run("worker.py", address) for _ in range(2)]
        assert center.wait(seconds) == 0
        assert "{}" in center.stdout.read()  # refused nothing
        for worker in workers:
            assert "no answer from the center" in worker.communicate(timeout=seconds)[0]
            assert worker.returncode == 0
        with np.load(tmp_path / "center.npz") as saved:
            [w] = [v for k, v in saved.items() if v.shape == (10,)]
            np.testing.assert_allclose(w, 1, atol=0.01)
    finally:
        for process in running:
            process.kill()
            process.communicate()
