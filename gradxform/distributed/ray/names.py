"""The names of centers on a cluster."""

import time
from typing import Any

from gradxform.distributed.center.refusal import CenterUnavailableError
from gradxform.distributed.ray.calls import last_line, ray_library, within
from gradxform.errors import did_you_mean, shown

# Centers of all drivers and workers are found here, whatever namespace these have themselves.
NAMESPACE = "gradxform"
LOOK_AGAIN = 0.2  # seconds between two looks for a name
LIST_WITHIN = 5.0  # seconds to list all names, for an error message


def check_name(part: str, name: Any) -> str:
    """Return the name of a center; require it to be one."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(f"{part}: name must be a string without '/', got {shown(name)}.")
    return name


def actor_name(name: str, index: int) -> str:
    """Return the name of one of the actors of a center."""
    return f"{name}/{index}"


def find_actor(part: str, name: str, index: int, deadline: float) -> Any:
    """Return an actor of a center by the center's name, also one that comes before a deadline.

    Raises:
      CenterUnavailableError: if it does not.
    """
    ray = ray_library(part)
    began = time.monotonic()
    full_name = actor_name(name, index)
    while True:
        remaining = deadline - time.monotonic()
        try:
            return within(
                part,
                remaining,
                f"look up center {name!r}",
                lambda: ray.get_actor(full_name, namespace=NAMESPACE),
            )
        except ValueError as error:  # an actor of that name is not there, or not yet
            if time.monotonic() + LOOK_AGAIN < deadline:
                time.sleep(LOOK_AGAIN)
                continue
            every = within(
                part,
                LIST_WITHIN,
                "list its centers",
                lambda: ray.util.list_named_actors(all_namespaces=True),
            )
            names = [one["name"] for one in every if one["namespace"] == NAMESPACE]
            centers = sorted({one.rpartition("/")[0] for one in names})
            listed = ", ".join(map(repr, centers)) or "none"
            raise CenterUnavailableError(
                f"{part}: no center named {name!r} on this cluster within "
                f"{max(0.0, deadline - began):.3g} s; there are: {listed}."
                f"{did_you_mean(name, centers)}"
            ) from error
        except ray.exceptions.RaySystemError as error:
            raise CenterUnavailableError(
                f"{part}: the cluster does not work ({last_line(error)}); start it again."
            ) from error
