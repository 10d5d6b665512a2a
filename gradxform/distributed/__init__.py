"""Replicas: what names a mesh axis, a replica or a sharding."""

from gradxform.distributed import hlo as hlo
from gradxform.distributed.averaging import (
    ModelAverageState as ModelAverageState,
    model_average as model_average,
)
from gradxform.distributed.axis import (
    AlreadyReducedError as AlreadyReducedError,
    local_view as local_view,
)
from gradxform.distributed.elastic import (
    AgnState as AgnState,
    ElasticAverageState as ElasticAverageState,
    agn as agn,
    elastic_average as elastic_average,
)
from gradxform.distributed.evaluating import eval_params as eval_params
from gradxform.distributed.outer import (
    OuterState as OuterState,
    bmuf as bmuf,
    diloco as diloco,
    outer as outer,
    post_local_sgd as post_local_sgd,
    slowmo as slowmo,
)
from gradxform.distributed.replicas import Replicas as Replicas
from gradxform.distributed.resize import resize_replicas as resize_replicas
from gradxform.distributed.sharding import state_sharding as state_sharding
from gradxform.distributed.stale import DropStaleState as DropStaleState, drop_stale as drop_stale
from gradxform.distributed.synchronous import (
    SyncReplicasState as SyncReplicasState,
    TowerState as TowerState,
    scale_loss as scale_loss,
    sync_replicas as sync_replicas,
    tower as tower,
)
from gradxform.distributed.zero import Zero1State as Zero1State, zero1 as zero1
