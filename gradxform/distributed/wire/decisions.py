"""Finding exchanges under a condition that each replica decides for itself.

If replicas disagree about such a condition, they wait for each other forever. If one program
computes all replicas, it sums in what one replica should have left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from gradxform._jax.jaxprs import as_open_jaxpr, collective_axes, is_literal, jaxprs_of, line_of
from gradxform.leaves import dtype_of

# Primitives after which all replicas have the same value.
_EQUALIZING = {"psum", "pmax", "pmin", "all_gather", "psum_invariant", "all_gather_invariant"}
# Primitives that give each replica a part of its own, also of what is the same on all.
_PARTING = {"reduce_scatter", "all_to_all", "ppermute"}


def check_decisions(closed: Any, args: Sequence[Any], shared: Sequence[bool], axis: str) -> None:
    """Require that all replicas decide alike whether to exchange.

    A value that is computed from a replica's own floating numbers or booleans may differ, until a
    sum over the replicas makes it the same. Integers are trusted to be counts of steps.

    Args:
      closed: the jaxpr of one replica's program.
      args: the flat arguments of the program.
      shared: for each argument, whether it is known to be the same on all replicas.
      axis: the axis of replicas.

    Raises:
      ValueError: if a condition around an exchange may differ; the message has its line.
    """
    flags = [not s and _may_decide_differently(x) for x, s in zip(args, shared, strict=True)]
    _Reader(axis).read(closed, flags)


def differing_results(closed: Any, flags: Sequence[bool], axis: str) -> list[bool]:
    """Return for every result of a program whether it may differ between the replicas of an axis.

    Args:
      closed: the jaxpr of one replica's program.
      flags: for each argument, whether it may differ.
      axis: the axis of replicas.
    """
    return _Reader(axis, refuses=False).read(closed, flags)


def _may_decide_differently(x: Any) -> bool:
    dtype = dtype_of(x)
    return jnp.issubdtype(dtype, jnp.inexact) or dtype == jnp.bool_


class _Reader:
    """Tracks through a program which values may differ between replicas."""

    def __init__(self, axis: str, refuses: bool = True) -> None:
        self.axis, self.refuses = axis, refuses

    def read(self, closed: Any, flags: Sequence[bool]) -> list[bool]:
        """Return for every result whether it may differ, given which arguments may."""
        jaxpr = as_open_jaxpr(closed)[0]
        differs = dict(zip(jaxpr.invars, flags, strict=True))

        def may_differ(atoms: Sequence[Any]) -> list[bool]:
            return [not is_literal(v) and differs.get(v, False) for v in atoms]

        for eqn in jaxpr.eqns:
            results = self.results(eqn, may_differ(eqn.invars))
            differs |= dict(zip(eqn.outvars, results, strict=True))
        return may_differ(jaxpr.outvars)

    def results(self, eqn: Any, flags: list[bool]) -> list[bool]:
        """Return for every result of an operation whether it may differ."""
        kind, params = eqn.primitive.name, eqn.params
        n = len(eqn.outvars)
        if kind == "axis_index":
            return [params["axis_name"] == self.axis] * n
        names = params.get("axes", params.get("axis_name", ()))
        names = names if isinstance(names, tuple | list) else (names,)
        if kind in _PARTING and self.axis in names:
            return [True] * n
        if kind in _EQUALIZING and not params.get("axis_index_groups"):
            return [any(flags) and self.axis not in names] * n
        if kind == "cond":
            return self.branches(eqn, flags)
        if kind == "while":
            return self.while_loop(eqn, flags)
        if kind == "scan":
            return self.scan(eqn, flags)
        # The body of a call tells which of its results differ; else all may.
        inner = jaxprs_of(eqn)
        if len(inner) == 1 and len(as_open_jaxpr(inner[0][1])[0].invars) == len(flags):
            results = self.read(inner[0][1], flags)
            if len(results) == n:
                return results
        return [any(flags)] * n

    def branches(self, eqn: Any, flags: list[bool]) -> list[bool]:
        """Return for every result of a `lax.cond` or `lax.switch` whether it may differ."""
        predicate, *operands = flags
        results = [self.read(branch, operands) for branch in eqn.params["branches"]]
        if predicate:
            self.require_no_exchange(eqn, eqn.params["branches"])
        return [predicate or any(outs) for outs in zip(*results, strict=True)]

    def while_loop(self, eqn: Any, flags: list[bool]) -> list[bool]:
        """Return for every result of a `lax.while_loop` whether it may differ."""
        n, k = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        carry = self.settled(
            lambda carry: self.read(body, flags[n : n + k] + carry), flags[n + k :]
        )
        (predicate,) = self.read(test, flags[:n] + carry)
        if predicate:
            self.require_no_exchange(eqn, (test, body))
        return [predicate or x for x in carry]

    def scan(self, eqn: Any, flags: list[bool]) -> list[bool]:
        """Return for every result of a `lax.scan` whether it may differ."""
        body = eqn.params["jaxpr"]
        inner = as_open_jaxpr(body)[0]
        # Arrays that the loop slices have one more axis outside; others are carried or constant.
        k = len(eqn.outvars) - _decisions_with_another_rank(eqn.outvars, inner.outvars)
        n = len(flags) - k - _decisions_with_another_rank(eqn.invars, inner.invars)
        rows = flags[n + k :]
        carry = self.settled(lambda x: self.read(body, flags[:n] + x + rows)[:k], flags[n : n + k])
        return self.read(body, flags[:n] + carry + rows)

    @staticmethod
    def settled(turn: Callable[[list[bool]], list[bool]], carry: list[bool]) -> list[bool]:
        """Return for each value of a loop's carry whether it may differ after any turn."""
        while True:
            new = [a or b for a, b in zip(carry, turn(carry), strict=True)]
            if new == carry:
                return carry
            carry = new

    def require_no_exchange(self, eqn: Any, inside: Sequence[Any]) -> None:
        """Refuse an exchange under a condition that may differ."""
        if not self.refuses or not any(self.axis in collective_axes(x) for x in inside):
            return
        where = line_of(eqn)
        raise ValueError(
            f"Replicas: every replica decides from its own numbers whether to take part in an "
            f"exchange over {self.axis!r}{f', at {where}' if where else ''}. Replicas that "
            "disagree wait for each other forever, or leave out what the others need. "
            "gradxform.apply_if_finite and gradxform.MultiSteps agree first; for a condition of "
            f"your own, take lax.pmin of it over {self.axis!r}."
        )


def _decisions_with_another_rank(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Return how many values of a scan have another rank in its body."""
    pairs = zip(outside, inside, strict=True)
    return sum(len(a.aval.shape) != len(b.aval.shape) for a, b in pairs)
