"""From a jaxpr to a `Plan`: follow the tables through it, and classify their uses."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax import jaxprs, versions as _compat
from gradxform.sparse import lookups
from gradxform.sparse.interpret import (
    Alias,
    CustomJvp,
    DenseUse,
    Inline,
    Plain,
    Plan,
    Remat,
    Rows,
    Scan,
    Step,
)
from gradxform.sparse.lookups import Source

# Primitives that return a table as a table, entry by entry.
ALIASES = {
    "convert_element_type",
    "copy",
    "copy_p",
    "device_put",
    "layout_constraint",
    "mesh_cast",
    "name",
    "optimization_barrier",
    "pvary",
    "reshard",
    "sharding_constraint",
}


class Setting(NamedTuple):
    """The context of a jaxpr."""

    call: str | None = None  # the line of the call; lines inside may be those of an earlier call
    linear: bool = False  # whether tables stand for tangents


TOP = Setting()


def plan_of_jaxpr(
    jaxpr: Any,
    consts: Sequence[Any],
    sources: Sequence[Source | None],
    differentiated: Sequence[bool],
    setting: Setting = TOP,
) -> Plan:
    """Return the plan of `jaxpr`.

    Args:
      jaxpr: the program.
      consts: the values of its constants.
      sources: for each of its inputs the table that it holds, if any.
      differentiated: whether each output is differentiated; the others may use tables in any way.
      setting: the context of the program.
    """
    return _LookupPlanner(jaxpr, sources, differentiated, setting).plan(consts)


class _LookupPlanner:
    def __init__(self, jaxpr: Any, sources: Any, differentiated: Any, setting: Setting):
        self.jaxpr, self.setting = jaxpr, setting
        self.alive = _alive_variables(jaxpr, differentiated)
        self.sources = {
            v: source for v, source in zip(jaxpr.invars, sources, strict=True) if source
        }
        self.dense: list[DenseUse] = []

    def plan(self, consts: Sequence[Any]) -> Plan:
        parts: list[list[Any] | Step] = []  # runs of unchanged equations, and steps
        for eqn in self.jaxpr.eqns:
            step = self.step(eqn) if self.matters(eqn) else None
            if step is not None:
                parts.append(step)
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(eqn)
            else:
                parts.append([eqn])
        return Plan(
            constants=list(zip(self.jaxpr.constvars, consts, strict=True)),
            reads=self.jaxpr.invars,
            writes=self.jaxpr.outvars,
            steps=self.steps_of(parts),
            sources=[self.source(v) for v in self.jaxpr.outvars],
            dense=self.dense,
        )

    def source(self, atom: Any) -> Source | None:
        """Return the table that a variable holds, if any."""
        return None if jaxprs.is_literal(atom) else self.sources.get(atom)

    def matters(self, eqn: Any) -> bool:
        """Whether `eqn` reads a table, and its results are differentiated."""
        return any(map(self.source, eqn.invars)) and any(_differentiated_results(eqn, self.alive))

    def steps_of(self, parts: list[Any]) -> list[Step]:
        """Return the steps, with each run of equations between them as one `Plain` step."""
        needed = set(jaxprs.variables_in(self.jaxpr.outvars))
        steps: list[Step] = []
        # From the end, because a step writes only what later ones read.
        for part in reversed(parts):
            if isinstance(part, list):
                outputs = jaxprs.variables_in(v for eqn in part for v in eqn.outvars)
                inputs = jaxprs.variables_in(v for eqn in part for v in eqn.invars)
                inside = set(outputs)
                reads = [v for v in inputs if v not in inside]
                writes = [v for v in outputs if v in needed]
                function = jaxprs.as_function(self.jaxpr, part, reads, writes)
                part = Plain(function, reads, writes)
            needed |= set(jaxprs.variables_in(part.reads))
            steps.append(part)
        return steps[::-1]

    # ------------------------------------------------------------------------- one equation

    def step(self, eqn: Any) -> Step | None:
        """Return `eqn` as a step, or None if it is evaluated unchanged."""
        name = eqn.primitive.name
        if name == "stop_gradient":
            return None
        if name in ALIASES:
            return self.alias(eqn)
        if source := self.source(eqn.invars[0]):
            if lookup := lookups.find(eqn, source):
                if not jaxprs.in_this_mesh(eqn):
                    return self.refuse(eqn, eqn.invars, " (in a mesh of its own: out_sharding)")
                return self.rows(eqn, lookup)
        if inner := jaxprs.called(eqn):
            return self.inline(eqn, *inner)
        if name == "custom_jvp_call":
            if self.setting.linear:  # the derivative of a linear function is the function itself
                return self.inline(eqn, *jaxprs.as_open_jaxpr(eqn.params["call_jaxpr"]))
            return self.custom_jvp(eqn)
        if (body := jaxprs.rematerialized(eqn)) is not None:
            inner_plan = self.inner(eqn, body, [])
            self.write(eqn.outvars, inner_plan.sources)
            if not _plan_has_tables(inner_plan):
                return None
            return Remat(inner_plan, eqn.invars, eqn.outvars, eqn.params)
        if name == "scan":
            return self.scan(eqn)
        return self.refuse(eqn, eqn.invars)

    def refuse(self, eqn: Any, atoms: Sequence[Any], how: str = "") -> None:
        """Note that the tables among `atoms` are used for something other than row lookups."""
        line = jaxprs.line_of(eqn, self.setting.call)
        for source in filter(None, map(self.source, atoms)):
            self.dense.append(DenseUse(source.table, f"{eqn.primitive.name}{how}", line))

    def write(self, variables: Sequence[Any], sources: Sequence[Source | None]) -> None:
        """Note the tables that variables hold."""
        self.sources.update((v, s) for v, s in zip(variables, sources, strict=True) if s)

    def function(self, eqn: Any) -> tuple[Any, list[Any], list[Any]]:
        """Return `eqn` as a function, and the variables that it reads and writes."""
        reads, writes = jaxprs.variables_in(eqn.invars), jaxprs.variables_in(eqn.outvars)
        return jaxprs.as_function(self.jaxpr, [eqn], reads, writes), reads, writes

    def alias(self, eqn: Any) -> Step | None:
        sources = []
        for before, after in zip(eqn.invars, eqn.outvars, strict=True):
            source = self.source(before)
            if source and not jnp.issubdtype(after.aval.dtype, jnp.floating):
                if jaxprs.is_inexact(after.aval):
                    return self.refuse(eqn, eqn.invars)
                source = None  # integers are not differentiated
            if source and after.aval.dtype != before.aval.dtype:
                source = source._replace(dtypes=(*source.dtypes, after.aval.dtype))
            if source:
                new_axes = _compat.varying_axes(after.aval) - _compat.varying_axes(before.aval)
                source = source._replace(axes=(*source.axes, *sorted(new_axes)))
            sources.append(source)
        function, reads, writes = self.function(eqn)
        self.write(eqn.outvars, sources)
        inputs = dict(zip(eqn.outvars, eqn.invars, strict=True))
        origins = [reads.index(inputs[v]) if self.source(v) else None for v in writes]
        return Alias(function, reads, writes, origins)

    def rows(self, eqn: Any, lookup: lookups.Lookup) -> Step:
        function, reads, writes = self.function(eqn)
        operands = list(eqn.invars[1:])
        table = reads.index(eqn.invars[0])
        return Rows(function, [*reads, *operands], writes, table, len(reads), lookup)

    def inner(self, eqn: Any, jaxpr: Any, consts: Sequence[Any], sources: Any = None) -> Plan:
        """Return the plan of a jaxpr that `eqn` runs, and note its dense uses of tables."""
        differentiated = _differentiated_results(eqn, self.alive)
        if eqn.primitive.name == "scan":  # any part of the carry may reach any result
            differentiated = [True] * len(differentiated)
        library = jaxprs.is_library_function(jaxpr)
        call = jaxprs.line_of(eqn, self.setting.call) if library else None
        sources = [self.source(v) for v in eqn.invars] if sources is None else sources
        inner_plan = plan_of_jaxpr(
            jaxpr, consts, sources, differentiated, self.setting._replace(call=call)
        )
        self.dense += inner_plan.dense
        return inner_plan

    def inline(self, eqn: Any, jaxpr: Any, consts: Sequence[Any]) -> Step | None:
        inner_plan = self.inner(eqn, jaxpr, consts)
        self.write(eqn.outvars, inner_plan.sources)
        return Inline(inner_plan, eqn.invars, eqn.outvars) if _plan_has_tables(inner_plan) else None

    def scan(self, eqn: Any) -> Step | None:
        jaxpr, consts = jaxprs.as_open_jaxpr(eqn.params["jaxpr"])
        # Outside, the arrays that are scanned over have one more axis than in the body.
        carried = sum(map(_same_rank, eqn.outvars, jaxpr.outvars))
        constants = sum(map(_same_rank, eqn.invars, jaxpr.invars)) - carried
        self.refuse(eqn, eqn.invars[constants : constants + carried], " (in its carry)")
        self.refuse(eqn, eqn.invars[constants + carried :], " (in what it scans over)")
        sources = [self.source(v) if i < constants else None for i, v in enumerate(eqn.invars)]
        inner_plan = self.inner(eqn, jaxpr, consts, sources)
        line = jaxprs.line_of(eqn, self.setting.call)
        for source in filter(None, inner_plan.sources):
            self.dense.append(DenseUse(source.table, "scan (in what it returns)", line))
        if not inner_plan.lookups:
            return None
        return Scan(inner_plan, eqn.invars, eqn.outvars, constants, carried, eqn.params)

    def custom_jvp(self, eqn: Any) -> Step | None:
        function, reads, writes = self.function(eqn)
        inexact_reads = [i for i, v in enumerate(reads) if jaxprs.is_inexact(v.aval)]
        inexact_writes = [i for i, v in enumerate(writes) if jaxprs.is_inexact(v.aval)]
        avals = [v.aval for v in reads]

        def derivative(*values_and_tangents: Any) -> list[Any]:
            """From values and the tangents of the inexact ones to results and their tangents."""
            values = values_and_tangents[: len(reads)]
            tangents: list[Any] = [np.zeros(v.shape, jax.dtypes.float0) for v in avals]
            for i, tangent in zip(inexact_reads, values_and_tangents[len(reads) :], strict=True):
                tangents[i] = tangent
            out, out_tangents = jax.jvp(function, values, tuple(tangents))
            return [*out, *(out_tangents[i] for i in inexact_writes)]

        jaxpr, consts = jaxprs.traced(derivative, [*avals, *(avals[i] for i in inexact_reads)])
        tables = [self.source(v) for v in reads]
        sources = [None] * len(reads) + [tables[i] for i in inexact_reads]
        differentiated = [False] * len(writes) + [writes[i] in self.alive for i in inexact_writes]
        inner_plan = plan_of_jaxpr(jaxpr, consts, sources, differentiated, Setting(linear=True))
        if inner_plan.dense or any(inner_plan.sources):
            return self.refuse(eqn, [v for v, s in zip(reads, tables, strict=True) if s])
        if not inner_plan.lookups:
            return None  # the table is not differentiated
        is_table = [s is not None for s in tables]
        return CustomJvp(function, reads, writes, inner_plan, is_table, inexact_reads)


def _plan_has_tables(inner_plan: Plan) -> bool:
    return bool(inner_plan.lookups or any(inner_plan.sources))


def _same_rank(v: Any, w: Any) -> bool:
    return len(getattr(v.aval, "shape", ())) == len(getattr(w.aval, "shape", ()))


def _differentiated_results(eqn: Any, alive: set[Any]) -> list[bool]:
    """Whether each result of `eqn` is differentiated; integers never are."""
    return [v in alive and jaxprs.is_inexact(v.aval) for v in eqn.outvars]


def _alive_variables(jaxpr: Any, differentiated: Sequence[bool]) -> set[Any]:
    """Return the variables on which the derivatives of these outputs may depend."""
    outputs = [v for v, flag in zip(jaxpr.outvars, differentiated, strict=True) if flag]
    alive = set(jaxprs.variables_in(outputs))
    for eqn in reversed(jaxpr.eqns):
        flags = _differentiated_results(eqn, alive)
        if not any(flags) or eqn.primitive.name == "stop_gradient":
            continue
        # The body of a call tells which of its arguments matter; else all of them may.
        inner = jaxprs.called(eqn)
        body = inner[0] if inner else jaxprs.rematerialized(eqn)
        inputs = eqn.invars
        if body is not None:
            needed = _alive_variables(body, flags)
            inputs = [v for v, w in zip(eqn.invars, body.invars, strict=True) if w in needed]
        alive |= set(jaxprs.variables_in(inputs))
    return alive
