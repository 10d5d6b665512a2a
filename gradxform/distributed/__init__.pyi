# Written by `make tables`; do not edit.
from gradxform.distributed.averaging.demo import demo as demo
from gradxform.distributed.averaging.elastic import (
    AgnState as AgnState,
    ElasticAverageState as ElasticAverageState,
    agn as agn,
    elastic_average as elastic_average,
)
from gradxform.distributed.averaging.eval_params import eval_params as eval_params
from gradxform.distributed.averaging.model_average import (
    ModelAverageState as ModelAverageState,
    model_average as model_average,
)
from gradxform.distributed.averaging.outer import OuterState as OuterState, outer as outer
from gradxform.distributed.averaging.outer_recipes import (
    bmuf as bmuf,
    diloco as diloco,
    post_local_sgd as post_local_sgd,
    slowmo as slowmo,
)
from gradxform.distributed.averaging.stale import (
    DropStaleState as DropStaleState,
    drop_stale as drop_stale,
)
from gradxform.distributed.averaging.synchronous import (
    SyncReplicasState as SyncReplicasState,
    sync_replicas as sync_replicas,
)
from gradxform.distributed.averaging.tower import (
    TowerState as TowerState,
    scale_loss as scale_loss,
    tower as tower,
)
from gradxform.distributed.matrices.shard_matrices import shard_matrices as shard_matrices
from gradxform.distributed.programs.measures import exchange_metrics as exchange_metrics
from gradxform.distributed.replicas.replicas import Replicas as Replicas
from gradxform.distributed.replicas.resize import resize_replicas as resize_replicas
from gradxform.distributed.specs.state_sharding import state_sharding as state_sharding
from gradxform.distributed.specs.state_specs import state_specs as state_specs
from gradxform.distributed.wire.axis import (
    AlreadyReducedError as AlreadyReducedError,
    local_view as local_view,
)
from gradxform.distributed.wire.compression import (
    Compression as Compression,
    dct_top_k as dct_top_k,
    float8 as float8,
    int8 as int8,
    sign as sign,
    top_k as top_k,
)
from gradxform.distributed.wire.feedback import (
    FeedbackState as FeedbackState,
    LowRankState as LowRankState,
)
from gradxform.distributed.wire.powersgd import powersgd as powersgd
from gradxform.distributed.zero.wire import (
    ZeroFeedbackState as ZeroFeedbackState,
    ZeroLowRankState as ZeroLowRankState,
)
from gradxform.distributed.zero.zero import Zero1State as Zero1State, zero1 as zero1
from gradxform.testing import hlo as hlo, hlo_schedule as hlo_schedule
