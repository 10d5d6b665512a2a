"""Which tests are `long`: `make test` leaves them out, and `make test-rest` runs them.

A test is long by what it costs, as tests/durations.json says, and never by judgement. Of the cases
of one test function the cheapest are quick: each function says something that others do not. The
promises of a part are weighed together: they compile the same rules. What the change at hand
touches is never long (tests/touched.py).
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests import durations, touched

# In seconds of the processor: what the quick cases of one test function take together; and all
# promises of a part, where they take longer, are long.
LONGEST_FUNCTION, LONGEST_PART = 0.15, 2.0

# Promises that are tried for every row, and those that are also tried unless the part is long.
OF_EVERY_ROW = {"follows_its_reference", "is_a_value", "goes_to_json_and_back"}
OF_EVERY_PART = {
    "holes_pass",
    "leaks_no_traced_arrays",
    "looks_no_further_than_it_says",
    "narrow_parameters_have_wide_slots",
    "state_is_a_scan_carry",
    "takes_abstract_parameters",
    "touches_rows_or_refuses",
}
PROMISE = "test_every_part_keeps_the_promise"
# The marks of tests that are always quick (pyproject.toml says what they mean).
NEVER_LONG = ("end_to_end", "reference")
# The other ways in which replicas run mean the same (tests/distributed/modes.py).
QUICK_MODE = "vmap"


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that are long."""
    items = [*items]
    seconds = durations.of([item.nodeid for item in items], durations.read())
    parts, cases = _parts(seconds), _long_cases(seconds)
    concern = touched.concern(touched.changed())
    for item in items:
        if _is_long(item, parts, cases) and not concern(item):
            item.add_marker(pytest.mark.long)


def _parts(seconds: dict[str, float]) -> dict[str, float]:
    """Return the seconds of all promises of a part, by its name."""
    parts: dict[str, float] = defaultdict(float)
    for name, taken in seconds.items():
        _, found, row = name.partition(f"{PROMISE}[")
        if found:
            parts[_part(row.rpartition("-")[0])] += taken
    return parts


def _part(row: str) -> str:
    return row.partition("/")[0]


def _long_cases(seconds: dict[str, float]) -> set[str]:
    """Return the tests that are left once the cheapest of their function have taken its time."""
    long: set[str] = set()
    taken: dict[str, float] = defaultdict(float)
    for name, of_it in sorted(seconds.items(), key=lambda pair: (pair[1], pair[0])):
        function = durations.function_of(name)
        taken[function] += of_it
        if taken[function] > LONGEST_FUNCTION:
            long.add(name)
    return long


def _is_long(item: pytest.Item, parts: dict[str, float], cases: set[str]) -> bool:
    if any(item.get_closest_marker(mark) for mark in NEVER_LONG):
        return False
    arguments = getattr(item, "callspec", None)
    params = arguments.params if arguments else {}
    if getattr(item, "originalname", "") == PROMISE:
        if params["promise"] in OF_EVERY_ROW:
            return False
        return params["promise"] not in OF_EVERY_PART or parts[_part(params["name"])] > LONGEST_PART
    of_replicas = item.nodeid.startswith("tests/distributed/")
    if of_replicas and "mode" in params:
        return params["mode"] != QUICK_MODE
    return item.nodeid in cases
