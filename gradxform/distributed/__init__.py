"""Distributed training: everything that names a mesh axis, a replica or a sharding."""

from typing import TYPE_CHECKING

from gradxform._lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed import hlo as hlo, hlo_schedule as hlo_schedule
    from gradxform.distributed.axis import *
    from gradxform.distributed.compression import *
    from gradxform.distributed.elastic import *
    from gradxform.distributed.eval_params import *
    from gradxform.distributed.feedback import *
    from gradxform.distributed.measures import *
    from gradxform.distributed.model_average import *
    from gradxform.distributed.outer import *
    from gradxform.distributed.outer_recipes import *
    from gradxform.distributed.powersgd import *
    from gradxform.distributed.replicas import *
    from gradxform.distributed.resize import *
    from gradxform.distributed.shard_matrices import *
    from gradxform.distributed.stale import *
    from gradxform.distributed.state_sharding import *
    from gradxform.distributed.state_specs import *
    from gradxform.distributed.synchronous import *
    from gradxform.distributed.tower import *
    from gradxform.distributed.zero import *
    from gradxform.distributed.zero_wire import *
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
