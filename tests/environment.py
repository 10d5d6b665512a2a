"""The environment of processes that tests start, and how long they may take."""

import functools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What every process here does before it does anything else.
START = "import jax, gradxform.distributed; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"


def environment(**more: str) -> dict[str, str]:
    """Return it: this checkout, one device, and programs that compile soon rather than run fast."""
    ours = "JAX_", "XLA_", "PJRT_", "FORCE_"
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    env |= {"XLA_FLAGS": flags.strip(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return env | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | more


@functools.cache
def start_seconds() -> float:
    """Return how long a process takes to start on this machine, measured once."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", START], env=environment(), check=True, timeout=900)
    return time.monotonic() - began


def limit(starts: float, least: float) -> float:
    """Return a limit of time in seconds: what so many starts of a process take, not below `least`.

    A machine may be ten times as slow as another, or as itself an hour ago. A limit is for what
    would never end: nothing here is a measurement of speed.

    Args:
      starts: how many starts of a process, one after another, the limit is worth.
      least: seconds, enough on an idle machine.
    """
    return max(least, starts * start_seconds())
