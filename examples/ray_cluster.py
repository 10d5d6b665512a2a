"""A cluster of Ray for the examples: one on this machine alone, or one that runs already."""

import os
import secrets
from typing import Any

from command_line import Refused, one_line


def start(cpus: int, address: str | None) -> Any:
    """Connect to a cluster, and return the module of Ray.

    Args:
      cpus: the processes that a cluster on this machine may run at once, whatever its cores.
      address: the address of a cluster that runs already; None to start one here, which listens on
        the loopback interface only and ends with this process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:  # before the import, which reads the environment
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
    except ImportError as error:
        raise Refused("ray is not installed; install gradxform[ray].") from error
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        options |= {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(**options)
        return ray
    from gradxform.distributed.ray.calls import join_cluster

    try:
        return join_cluster("--address", address, 30.0)
    except (ValueError, OSError) as error:
        raise Refused(one_line(error)) from error
