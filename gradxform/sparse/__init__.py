"""Row-sparse gradients: `RowSparse`, how to get one, and what transforms do with it."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.leaves.row_sparse import RowSparse as RowSparse
    from gradxform.optimizers.adaptive import sparse_adagrad as sparse_adagrad
    from gradxform.optimizers.embeddings import (
        lazy_adam as lazy_adam,
        lazy_adamw as lazy_adamw,
        rowwise_adagrad as rowwise_adagrad,
    )
    from gradxform.sparse.gradient import grad as grad, value_and_grad as value_and_grad
    from gradxform.transforms.densify import densify as densify
    from gradxform.transforms.embeddings import (
        scale_by_adam_catching_up as scale_by_adam_catching_up,
        scale_by_rowwise_rss as scale_by_rowwise_rss,
    )
    from gradxform.wrappers.accumulation.rows import accumulate_rows as accumulate_rows
    from gradxform.wrappers.sparse import (
        only_dense as only_dense,
        only_rows as only_rows,
        sparse_semantics as sparse_semantics,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
