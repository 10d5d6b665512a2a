"""Functions without arguments in a transform, in their place the numbers of this moment."""

from typing import Any

from gradxform._jax.versions import is_tracing
from gradxform.numerics import value_at
from gradxform.schedules.basic import constant_schedule
from gradxform.slots import zero_count
from gradxform.values import Hole, put_live
from gradxform.values.called import Called, has_called, replace_called


def with_numbers_of_now(tx: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a transform with holes for its functions without arguments, and their numbers.

    In a program that is being traced they stay, and raise their error when they are called.
    """
    if is_tracing():
        return tx, ()
    live: dict[Called, Any] = {}  # a function in two places is called once

    def constant(called: Called) -> Any:
        if called not in live:
            live[called] = value_at(called, zero_count())
        return _schedule_of_number_now(list(live).index(called))

    return replace_called(tx, constant), tuple(live.values())


def of_this_moment(tx: Any) -> Any:
    """Return a transform with constants for what its functions without arguments return now."""
    if not has_called(tx):
        return tx
    bare, live = with_numbers_of_now(tx)
    return put_live(bare, tuple(x.item() for x in live))


def _schedule_of_number_now(index: int) -> Any:
    """Return a schedule of the number that a program gets as an argument."""
    hole: Any = Hole(index)
    return constant_schedule(hole)
