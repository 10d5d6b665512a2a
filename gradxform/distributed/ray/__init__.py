"""Asynchronous training on a cluster of Ray: centers as actors, workers wherever Ray runs.

It needs the extra `gradxform[ray]`. Ray starts the processes, restarts a killed center, moves the
arrays, and protects the cluster with its own tokens and TLS; `gradxform.distributed.center` does
the arithmetic.

    ray.init()
    center = RayCenter(params, elastic(moving_rate=0.1), name="digits", checkpoint="digits.npz")

    @ray.remote
    def train():
        worker = RayWorker("digits")
        params = worker.join().params
        ...
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.ray.center import RayCenter as RayCenter
    from gradxform.distributed.ray.worker import RayWorker as RayWorker
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
