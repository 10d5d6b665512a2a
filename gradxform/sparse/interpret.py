"""Running a program that looks up rows of tables, with a probe at every lookup.

A probe is a zero that is added to the looked-up rows. The table itself is not differentiated: its
gradient is that of the probes, at the rows that were looked up.

    table --Alias--> cast table --Rows--> values --join--> values + probe --Plain--> loss
                          |                                                            ^
                          +--------- other uses of the table, its `dense` role --------+

A `Plan` is a jaxpr with its equations grouped into such steps. It takes the probes in the order of
its lookups, and returns the rows (their indices) in that order, besides its results.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from gradxform._jax import jaxprs, versions as _compat
from gradxform.numerics import looked_up
from gradxform.sparse.lookups import Lookup, Source
from gradxform.types import Array

# A function of the values of looked-up rows and a probe that returns their sum.
Join = Callable[[Array, Array], Array]

# The results of a step or plan, and the rows of its lookups.
Results = tuple[list[Any], list[Any]]


class Table(NamedTuple):
    """A table in its two roles. In a tangent, None stands for zeros."""

    look: Any  # the array in which rows are looked up; not differentiated
    dense: Any = None  # the array for all other uses, if there are any


class DenseUse(NamedTuple):
    """A use of a table other than a row lookup."""

    table: int
    primitive: str
    line: str | None  # of the user's program, if known


@jax.custom_jvp
def attach_probe(values: Array, probe: Array) -> Array:
    """Return `values`, with the derivative of `values + probe`.

    Unlike the sum, this keeps the sign of a zero.
    """
    del probe
    return looked_up(values)


@functools.partial(attach_probe.defjvp, symbolic_zeros=True)
def _attach_probe_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    nonzero = [t for t in tangents if not isinstance(t, SymbolicZero)]
    tangent = functools.reduce(jnp.add, nonzero) if nonzero else jnp.zeros_like(primals[0])
    return attach_probe(*primals), tangent


class Step(abc.ABC):
    """Some equations: the variables that they read and write, and the lookups among them."""

    reads: Sequence[Any]
    writes: Sequence[Any]

    @property
    def lookups(self) -> Sequence[Lookup]:
        """Return the lookups among the equations, each with a probe of its own."""
        return ()

    @abc.abstractmethod
    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        """Return the values of `writes`, and the rows of the lookups."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A jaxpr in steps."""

    constants: Sequence[tuple[Any, Any]]  # the variables and their values
    reads: Sequence[Any]
    writes: Sequence[Any]
    steps: Sequence[Step]
    sources: Sequence[Source | None]  # for each of `writes` the table that it holds, if any
    dense: Sequence[DenseUse]

    @property
    def lookups(self) -> list[Lookup]:
        """Return the lookups of all steps."""
        return [lookup for step in self.steps for lookup in step.lookups]

    def run(self, values: Sequence[Any], probes: Sequence[Array], join: Join) -> Results:
        """Return the results, and the rows that were looked up, in the order of the probes."""
        env = dict(self.constants)
        env.update(zip(self.reads, values, strict=True))
        remaining, rows = list(probes), []
        for step in self.steps:
            count = len(step.lookups)
            out, step_rows = step.apply(
                _interpreted_atoms(env, step.reads), remaining[:count], join
            )
            remaining = remaining[count:]
            env.update(zip(step.writes, out, strict=True))
            rows += step_rows
        return _interpreted_atoms(env, self.writes), rows


def _interpreted_atoms(env: dict[Any, Any], atoms: Sequence[Any]) -> list[Any]:
    return [atom.val if jaxprs.is_literal(atom) else env[atom] for atom in atoms]


def _table_as_array(value: Any, variable: Any) -> Any:
    """Return `value` as an array; a table in its dense role."""
    if not isinstance(value, Table):
        return value
    if value.dense is not None:
        return value.dense
    return _compat.zeros_of(variable.aval) if value.look is None else value.look


def _table_as_lookups(value: Any, variable: Any) -> Any:
    """Return `value` as an array; a table in its role for lookups."""
    return _table_as_array(Table(value.look) if isinstance(value, Table) else value, variable)


@dataclass(frozen=True, eq=False)
class Plain(Step):
    """Equations that are evaluated unchanged."""

    function: Callable[..., list]
    reads: Sequence[Any]
    writes: Sequence[Any]

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        return self.function(*map(_table_as_array, values, self.reads)), []


@dataclass(frozen=True, eq=False)
class Alias(Step):
    """An equation, such as a cast, that returns a table in another form."""

    function: Callable[..., list]
    reads: Sequence[Any]
    writes: Sequence[Any]
    origins: Sequence[int | None]  # for each of `writes` the index of its table in `reads`

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        if all(isinstance(v, Table) and v.look is None and v.dense is None for v in values):
            return [Table(None) for _ in self.writes], []
        looks = self.function(*map(_table_as_lookups, values, self.reads))
        denses: list[Any] = [None] * len(looks)
        if any(isinstance(v, Table) and v.dense is not None for v in values):
            denses = self.function(*map(_table_as_array, values, self.reads))
        out = []
        for look, dense, origin in zip(looks, denses, self.origins, strict=True):
            if origin is None:
                out.append(look)
            elif values[origin].dense is None:
                out.append(Table(look))
            else:
                out.append(Table(look, dense))
        return out, []


@dataclass(frozen=True, eq=False)
class Rows(Step):
    """A lookup of rows."""

    function: Callable[..., list]
    reads: Sequence[Any]  # the variables of the function, then the operands besides the table
    writes: Sequence[Any]
    table: int  # the index of the table in `reads`
    inputs: int  # how many of `reads` the function takes
    lookup: Lookup

    @property
    def lookups(self) -> Sequence[Lookup]:
        return [self.lookup]

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        rows = self.lookup.rows(*values[self.inputs :])
        if values[self.table].look is None:  # a tangent of zeros
            return probes, [rows]
        reads = self.reads[: self.inputs]
        (looked_up_values,) = self.function(*map(_table_as_lookups, values[: self.inputs], reads))
        return [join(looked_up_values, probes[0])], [rows]


@dataclass(frozen=True, eq=False)
class Inline(Step):
    """A call of a jitted function, replaced by the body of the function."""

    plan: Plan
    reads: Sequence[Any]
    writes: Sequence[Any]

    @property
    def lookups(self) -> Sequence[Lookup]:
        return self.plan.lookups

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        return self.plan.run(values, probes, join)


@dataclass(frozen=True, eq=False)
class Remat(Step):
    """A body under `jax.checkpoint`, which stays under it."""

    plan: Plan
    reads: Sequence[Any]
    writes: Sequence[Any]
    params: dict[str, Any]

    @property
    def lookups(self) -> Sequence[Lookup]:
        return self.plan.lookups

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        prevent = self.params["prevent_cse"]
        body = jax.checkpoint(
            lambda values, probes: self.plan.run(values, probes, join),
            prevent_cse=prevent if isinstance(prevent, bool) else any(prevent),
            policy=self.params["policy"],
        )
        return body(values, probes)


@dataclass(frozen=True, eq=False)
class Scan(Step):
    """A scan with lookups in a table that is the same in all its iterations."""

    plan: Plan
    reads: Sequence[Any]
    writes: Sequence[Any]
    constants: int  # how many of `reads` are constant; after them comes the carry
    carried: int  # how many of `reads` are the carry; the scan runs over those after them
    params: dict[str, Any]

    @property
    def lookups(self) -> Sequence[Lookup]:
        length = self.params["length"]
        return [k._replace(lengths=(length, *k.lengths)) for k in self.plan.lookups]

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        constants = values[: self.constants]
        arrays = list(map(_table_as_array, values[self.constants :], self.reads[self.constants :]))

        def body(carry: list[Any], xs: Any) -> tuple[list[Any], Any]:
            inputs, probes = xs
            out, rows = self.plan.run([*constants, *carry, *inputs], probes, join)
            out = list(map(_table_as_array, out, self.plan.writes))
            return out[: self.carried], (out[self.carried :], rows)

        keywords = {k: self.params[k] for k in ("length", "reverse", "unroll")}
        if self.params.get("_split_transpose"):
            keywords["_split_transpose"] = True
        carry, xs = arrays[: self.carried], (arrays[self.carried :], probes)
        carry, (ys, rows) = jax.lax.scan(body, carry, xs, **keywords)
        return [*carry, *ys], rows


@dataclass(frozen=True, eq=False)
class CustomJvp(Step):
    """A function with a derivative of its own, which looks up rows of the table's tangent."""

    function: Callable[..., list]
    reads: Sequence[Any]
    writes: Sequence[Any]
    plan: Plan  # of its derivative: arguments and tangents -> results and tangents
    tables: Sequence[bool]  # for each of `reads` whether it is a table
    differentiable: Sequence[int]  # the indices in `reads` of those that have a tangent

    @property
    def lookups(self) -> Sequence[Lookup]:
        return self.plan.lookups

    def apply(self, values: list[Any], probes: list[Array], join: Join) -> Results:
        @jax.custom_jvp
        def f(values: list[Any], probes: list[Array]) -> Results:
            tangents = {i: self._zero_tangent(i, values[i]) for i in self.differentiable}
            _, _, rows = self._derivative(values, tangents, probes)
            return self.function(*values), rows

        @functools.partial(f.defjvp, symbolic_zeros=True)
        def _(primals: Any, tangents: Any) -> tuple[Results, Results]:
            (values, _), (moves, probes) = primals, tangents
            of_inputs = {i: self._tangent(i, moves[i]) for i in self.differentiable}
            out, of_outputs, rows = self._derivative(
                values, of_inputs, list(map(_instantiated_probe_tangent, probes))
            )
            next_tangents = iter(of_outputs)
            tangent = [
                next(next_tangents) if jaxprs.is_inexact(x) else _symbolic_zero_tangent(x)
                for x in out
            ]
            return (out, rows), (tangent, list(map(_symbolic_zero_tangent, rows)))

        return f([_table_as_lookups(v, r) for v, r in zip(values, self.reads, strict=True)], probes)

    def _zero_tangent(self, i: int, value: Any) -> Any:
        return Table(None) if self.tables[i] else jnp.zeros_like(value)

    def _tangent(self, i: int, tangent: Any) -> Any:
        if not self.tables[i]:
            return _instantiated_probe_tangent(tangent)
        return Table(None if isinstance(tangent, SymbolicZero) else tangent)

    def _derivative(
        self, values: list[Any], tangents: dict[int, Any], probes: list[Array]
    ) -> tuple[list[Any], list[Any], list[Array]]:
        """Return the results, their tangents, and the rows of the lookups."""
        inputs = [*values, *(tangents[i] for i in self.differentiable)]
        out, rows = self.plan.run(inputs, probes, jnp.add)
        out = list(map(_table_as_array, out, self.plan.writes))
        count = len(self.writes)
        return out[:count], out[count:], rows


def _instantiated_probe_tangent(tangent: Any) -> Array:
    return _compat.zeros_of(tangent.aval) if isinstance(tangent, SymbolicZero) else tangent


def _symbolic_zero_tangent(x: Any) -> Any:
    return zero_from_primal(x, symbolic_zeros=True)
