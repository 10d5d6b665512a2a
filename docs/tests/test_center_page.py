"""The programs of docs/center.md train together on a cluster of Ray, as processes of their own."""

import os
import re
import secrets
import subprocess
import sys

import numpy as np
import pytest

from docs.site import blocks
from tests.environment import environment, limit

# A cluster on the loopback interface, until its input ends.
CLUSTER = """
import sys, ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.mark.xdist_group("ray")
def test_the_center_and_the_workers_train(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed; the extra `ray` has it")
    blocks.run(blocks.DOCS / "center.md", tmp_path)
    for program in ("train.py", "join.py"):
        assert len((tmp_path / program).read_text().splitlines()) <= 32
    seconds = limit(60, 180)
    env = environment(
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
    )
    running = []

    def run(*args, **more):
        running.append(
            subprocess.Popen(
                [sys.executable, *args],
                env=env | more,
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    try:
        cluster = run("-c", CLUSTER)
        address = cluster.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), cluster.communicate(timeout=seconds)
        train, join = run("train.py", RAY_ADDRESS=address), run("join.py", address)
        out, err = train.communicate(timeout=seconds)
        assert train.returncode == 0 and "'refused': 0" in out, out + err
        out, err = join.communicate(timeout=seconds)
        assert join.returncode == 0 and re.search(
            r"center 'line'(: it was stopped| is gone)", out
        ), out + err
        joined = int(out.split()[0])
        with np.load(os.path.join(tmp_path, "line.npz")) as saved:
            step = max(v for v in saved.values() if v.shape == () and v.dtype.kind == "i")
            [w] = [v for k, v in saved.items() if v.shape == (10,)]
            assert 0 < joined <= step > 80  # the workers of the one program and of the other
            np.testing.assert_allclose(w, 1, atol=0.05)
    finally:
        for process in running[1:]:
            process.kill()
        for process in reversed(running):
            process.stdin.close()
            process.wait(seconds)
            process.stdout.close()
            process.stderr.close()
