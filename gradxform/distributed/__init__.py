"""Distributed training: everything that names a mesh axis, a replica or a sharding."""

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
from gradxform.registry import close_package as _close_package

_close_package(__name__, ["hlo", "hlo_schedule"])
