"""A worker of a center on a cluster of Ray."""

from gradxform.distributed.center.worker import Worker
from gradxform.distributed.ray.calls import check_timeout
from gradxform.distributed.ray.center import RayCenter
from gradxform.errors import must_be
from gradxform.types import PyTree


class RayWorker(Worker):
    """A `Worker` of a center on a cluster of Ray, in a task, an actor or a driver.

        worker = RayWorker("digits")
        params = worker.join().params
        ...
        params, step = worker.exchange(params)

    Each call waits for the answer, up to `timeout` seconds. If the center restarts meanwhile, the
    request is sent again; the center carries it out once. See `Worker` for the calls.

    Args:
      center: the center, or its name.
      like: a tree with the structure, shapes and dtypes of the parameters. Defaults to what the
        center says.
      address: the address of the cluster, if this process is not connected to Ray: see
        `RayCenter.connect`. Keyword-only.
      timeout: the limit of time of a call, in seconds. Keyword-only.

    Raises:
      ImportError: if Ray is not installed.
      TypeError: if `center` is another object.
      ValueError: if an argument is out of range.
      CenterUnavailableError: without such a cluster or center.
      RefusedError: if the center has another version of gradxform.
    """

    def __init__(
        self,
        center: RayCenter | str,
        like: PyTree = None,
        *,
        address: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        timeout = check_timeout("RayWorker", timeout)
        if isinstance(center, str):
            center = RayCenter.connect(center, address, timeout=timeout)
        if not isinstance(center, RayCenter):
            raise TypeError(must_be("RayWorker", "center", "a RayCenter or its name", center))
        send = center.sender("RayWorker", timeout)
        super().__init__(send, center.like if like is None else like, part="RayWorker")
