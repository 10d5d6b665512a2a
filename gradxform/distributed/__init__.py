"""Distributed training: everything that names a mesh axis, a replica or a sharding."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.averaging.demo import *
    from gradxform.distributed.averaging.elastic import *
    from gradxform.distributed.averaging.eval_params import *
    from gradxform.distributed.averaging.model_average import *
    from gradxform.distributed.averaging.outer import *
    from gradxform.distributed.averaging.outer_recipes import *
    from gradxform.distributed.averaging.stale import *
    from gradxform.distributed.averaging.synchronous import *
    from gradxform.distributed.averaging.tower import *
    from gradxform.distributed.matrices.shard_matrices import *
    from gradxform.distributed.programs.measures import *
    from gradxform.distributed.replicas.replicas import *
    from gradxform.distributed.replicas.resize import *
    from gradxform.distributed.specs.state_sharding import *
    from gradxform.distributed.specs.state_specs import *
    from gradxform.distributed.wire.axis import *
    from gradxform.distributed.wire.compression import *
    from gradxform.distributed.wire.feedback import *
    from gradxform.distributed.wire.powersgd import *
    from gradxform.distributed.zero.wire import *
    from gradxform.distributed.zero.zero import *
    from gradxform.testing import hlo as hlo, hlo_schedule as hlo_schedule
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
