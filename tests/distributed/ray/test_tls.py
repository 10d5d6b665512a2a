"""Processes that join a center's cluster with its certificate, and without."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
import trustme

from tests.distributed.ray.test_ray import JOIN
from tests.environment import environment, limit

pytestmark = pytest.mark.xdist_group("ray")

SERVE = """
import sys, time
import jax.numpy as jnp, ray
import gradxform as gx
from gradxform.distributed import center, ray as gr
ray.init(
    num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1"
)
served = gr.RayCenter(
    {"w": jnp.ones(3)}, center.agn(gx.sgd(1.0)), "pushed", timeout=float(sys.argv[1])
)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


def certificate(folder):
    """The variables with which Ray encrypts, for a new certificate of this machine alone."""
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    pems = {"SERVER_KEY": own.private_key_pem, "SERVER_CERT": own.cert_chain_pems[0]}
    variables = {"RAY_USE_TLS": "1"}
    for name, pem in (pems | {"CA_CERT": authority.cert_pem}).items():
        variables[f"RAY_TLS_{name}"] = path = str(folder / f"{name}.pem")
        pem.write_to_path(path)
    return variables


@contextlib.contextmanager
def served(env, log):
    """The address of a cluster with a center, in a process of its own."""
    seconds = limit(60, 120)
    with log.open("w") as messages:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(seconds)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        )
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("127.0.0.1:"), log.read_text()
            yield address
            process.stdin.close()  # and so it ends its cluster
            process.wait(seconds)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_who_has_the_certificate_joins_and_who_has_not_is_told(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed; the extra `ray` has it")
    env = environment(**certificate(tmp_path))
    with served(env, tmp_path / "log") as address:
        said, seconds = {}, {"1": limit(40, 60), "0": 4.0}
        for encrypts, most in seconds.items():
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", JOIN, address, str(most)],
                env=env | {"RAY_USE_TLS": encrypts},
                capture_output=True,
                text=True,
                timeout=limit(60, 90),
            )
            assert done.returncode == 0, done.stderr
            said[encrypts] = json.loads(done.stdout.splitlines()[-1])
        assert time.monotonic() - began < limit(20, 40)
    assert said["1"] == 0
    assert "does not let this process join within 4 s" in said["0"], said
    assert "RAY_USE_TLS" in said["0"]
    assert not os.environ.get("RAY_USE_TLS")
