"""Asynchronous training: a center, and workers that come and go.

It runs ElasticAverage, AGN and DropStaleGradient as TensorFlow did: no worker waits for another, a
worker that dies does not stop the others, and a restarted worker joins from the center. Unlike
everything else in `gradxform.distributed`, workers do not share a JAX program.

A `Center` is one object in one process, and a `Worker` reaches it through any function that takes
requests to it. `gradxform.distributed.ray` puts centers and workers on the machines of a cluster.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.center.center import Center as Center
    from gradxform.distributed.center.methods import (
        Method as Method,
        agn as agn,
        drop_stale as drop_stale,
        elastic as elastic,
        elastic_gradient as elastic_gradient,
    )
    from gradxform.distributed.center.refusal import (
        CenterUnavailableError as CenterUnavailableError,
        RefusedError as RefusedError,
    )
    from gradxform.distributed.center.worker import (
        Pulled as Pulled,
        Pushed as Pushed,
        Worker as Worker,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
