"""The machine on which figures are measured."""

import datetime
import importlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax


def describe() -> dict[str, Any]:
    """Return the processor, the device and the versions, ready for JSON."""
    device = jax.devices()[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": _cores(),
        "load": load(),
        "system": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "openblas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("jax", "jaxlib", "numpy", "optax", "gradxform")},
    }


def load() -> float | None:
    """Return the load average of the last minute; None if the system does not have it."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def one_line(machine: dict[str, Any]) -> str:
    """Return the description on one line, for a title."""
    where = f"{machine['cpu']}, {machine['cores']} cores"
    if machine["backend"] != "cpu":
        where = f"{machine['device']} ({machine['backend']}), host {where}"
    return (
        f"{where}; jax {machine['jax']}, optax {machine['optax']}, "
        f"gradxform {machine['gradxform']}, Python {machine['python']}; {machine['date'][:10]}"
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")  # Linux only; `platform.processor` is often empty there
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return getattr(importlib.import_module(name), "__version__", "unknown")
