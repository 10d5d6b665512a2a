"""The environment of processes that tests start."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """Return it: this checkout, one device, and programs that compile soon rather than run fast."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "FORCE_"))}
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    env |= {"XLA_FLAGS": flags.strip(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return env | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | more
