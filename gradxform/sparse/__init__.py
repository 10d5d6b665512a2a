"""Row-sparse gradients: `RowSparse`, how to get one, and what transforms do with it."""

from gradxform.rowsparse import RowSparse as RowSparse
from gradxform.transforms.densify import densify as densify
from gradxform.wrappers.rows import (
    only_dense as only_dense,
    only_rows as only_rows,
    sparse_semantics as sparse_semantics,
)
