"""The workloads by name. A new one is a module that returns a `Workload`, and a line here."""

import functools
from collections.abc import Callable

from benchmarks.subjects.workloads.characters import characters
from benchmarks.subjects.workloads.digits import digits
from benchmarks.subjects.workloads.factorization import factorization
from benchmarks.subjects.workloads.recommendation import recommendation
from benchmarks.subjects.workloads.regression import regression
from benchmarks.subjects.workloads.variational import variational
from benchmarks.subjects.workloads.workload import Workload

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "digits": digits,
    "characters": characters,
    "recommendation": recommendation,
    "regression": regression,
    "factorization": factorization,
    "variational": variational,
}


@functools.cache
def workload(name: str) -> Workload:
    """Return a workload, which is made once."""
    return WORKLOADS[name]()
