"""Which tests one worker of xdist runs, one after another, and in which order workers take them."""

from collections import defaultdict
from collections.abc import Sequence

import pytest

SHORT = 0.02  # seconds, of a test that nobody has measured, or that takes too little to be kept


def group_by_file(items: Sequence[pytest.Item]) -> None:
    """Give a test without a group its file: one worker then compiles the programs of a file."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Put the groups that take longest first, so that no worker ends long after the others."""
    total: dict[str, float] = defaultdict(float)
    for item in items:
        total[group_of(item)] += seconds.get(item.nodeid, SHORT)
    items.sort(key=lambda item: (-total[group_of(item)], group_of(item)))


def group_of(item: pytest.Item) -> str:
    """Return the name of a test's group."""
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else item.nodeid.partition("::")[0]
