"""A loss in which rows of tables are looked up, and its derivative."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax import jaxprs
from gradxform.errors import shown
from gradxform.leaves import Path, path_str
from gradxform.leaves.row_sparse import RowSparse
from gradxform.sparse.interpret import DenseUse, Table, attach_probe
from gradxform.sparse.lookups import Source
from gradxform.sparse.plans import plan_of_jaxpr
from gradxform.types import Array


class DifferentiatedLeaf(NamedTuple):
    """A differentiated leaf."""

    path: Path
    value: Array
    is_table: bool


class Loss:
    """A loss as a program of its differentiated leaves."""

    def __init__(
        self,
        part: str,
        function: Callable[..., Any],
        has_aux: bool,
        leaves: list[DifferentiatedLeaf],
    ):
        self.part, self.leaves = part, leaves
        self.tables = [leaf for leaf in leaves if leaf.is_table]
        self.aux_structure: Any = None
        self.aux_leaves: list[Any] = []  # None stands for an array

        def traced(*values: Any) -> list[Any]:
            loss, aux = pair_of(part, function(*values)) if has_aux else (function(*values), None)
            check_loss(part, loss)
            aux_leaves, self.aux_structure = jax.tree.flatten(aux)
            self.aux_leaves = [None if isinstance(x, jax.Array) else x for x in aux_leaves]
            return [loss, *(x for x in aux_leaves if isinstance(x, jax.Array))]

        jaxpr, consts = jaxprs.traced(traced, [leaf.value for leaf in leaves])
        tables = [Source(i, (leaf.value.dtype,)) for i, leaf in enumerate(self.tables)]
        sources = self._merged(tables, [None] * (len(leaves) - len(tables)))
        is_loss = [i == 0 for i, _ in enumerate(jaxpr.outvars)]
        self.plan = plan_of_jaxpr(jaxpr, consts, sources, is_loss)

    def differentiate(self, mixed: str, unused: Any) -> tuple[Any, Any, list[Any]]:
        """Return the loss, `aux`, and the gradients of the leaves; see `value_and_grad_of_part`."""
        if self.plan.dense and mixed == "error":
            raise ValueError(self._refusal(self.plan.dense[0]))
        free = [leaf.value for leaf in self.leaves if not leaf.is_table]
        dense = {use.table: self.tables[use.table].value for use in self.plan.dense}
        probes = [lookup.probe() for lookup in self.plan.lookups]

        def run(free: list[Any], dense: dict[int, Any], probes: list[Any]) -> tuple[Any, Any]:
            tables = [Table(leaf.value, dense.get(t)) for t, leaf in enumerate(self.tables)]
            out, rows = self.plan.run(self._merged(tables, free), probes, attach_probe)
            loss, *aux = (x.look if isinstance(x, Table) else x for x in out)
            return loss, (aux, rows)

        # `run` closes over the tables: as arguments they would have gradients of their own size.
        differentiate = jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True)
        (loss, (aux, rows)), gradients = differentiate(free, dense, probes)
        free_gradients, dense_gradients, probe_gradients = gradients
        sparse: list[Any] = self._row_sparse(rows, probe_gradients)
        for t, array in dense_gradients.items():
            sparse[t] = sparse[t].add_to(array) if sparse[t].values.size else array
        if unused is None:
            used = dense.keys() | {lookup.source.table for lookup in self.plan.lookups}
            sparse = [g if t in used else None for t, g in enumerate(sparse)]
        return loss, self._aux(aux), self._merged(sparse, free_gradients)

    def _merged(self, tables: list[Any], others: list[Any]) -> list[Any]:
        """Return the tables and the other leaves in the order of all leaves."""
        next_tables, next_others = iter(tables), iter(others)
        merged = []
        for leaf in self.leaves:
            merged.append(next(next_tables) if leaf.is_table else next(next_others))
        return merged

    def _row_sparse(self, rows: list[Array], probe_gradients: list[Array]) -> list[RowSparse]:
        """Return the gradients of the tables, from the rows that were looked up."""
        indices: list[list[Array]] = [[] for _ in self.tables]
        values: list[list[Array]] = [[] for _ in self.tables]
        lookups = zip(self.plan.lookups, rows, probe_gradients, strict=True)
        for lookup, looked_up, cotangent in lookups:
            touched, gradient = lookup.gradient(looked_up, cotangent)
            indices[lookup.source.table].append(touched)
            values[lookup.source.table].append(gradient)
        for t, leaf in enumerate(self.tables):
            if not indices[t]:
                indices[t].append(jnp.zeros(0, jnp.int32))
                values[t].append(jnp.zeros((0, *leaf.value.shape[1:]), leaf.value.dtype))
        return [
            RowSparse(
                _joined_lookup_parts(indices[t]),
                _joined_lookup_parts(values[t]),
                leaf.value.shape[0],
            )
            for t, leaf in enumerate(self.tables)
        ]

    def _aux(self, arrays: list[Any]) -> Any:
        """Return `aux` with these arrays in it."""
        next_arrays = iter(arrays)
        leaves = [next(next_arrays) if x is None else x for x in self.aux_leaves]
        return jax.tree.unflatten(self.aux_structure, leaves)

    def _refusal(self, use: DenseUse) -> str:
        at = f" at {use.line}" if use.line else ""
        return (
            f"{self.part}: the table {path_str(self.tables[use.table].path)} is used by "
            f'{use.primitive}{at}, which is not a plain row lookup. Pass mixed="dense" for a dense '
            "gradient of this table, or leave it out of where."
        )


def _joined_lookup_parts(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def pair_of(part: str, out: Any) -> tuple[Any, Any]:
    """Return what a loss function with `has_aux` returns, as a pair."""
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(
            f"{part}: with has_aux=True the loss function must return a pair (loss, aux), got "
            f"{_described(out)}."
        )
    return out[0], out[1]


def check_loss(part: str, loss: Any) -> None:
    """Require a real scalar."""
    is_real = isinstance(loss, float) or (
        hasattr(loss, "dtype") and jnp.issubdtype(loss.dtype, jnp.floating)
    )
    if not is_real or jnp.ndim(loss):
        raise TypeError(f"{part}: the loss must be a real scalar, got {_described(loss)}.")


def _described(x: Any) -> str:
    if hasattr(x, "dtype"):
        return f"an array of shape {jnp.shape(x)} and dtype {x.dtype}"
    return shown(x)
