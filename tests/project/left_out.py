"""A plugin of pytest that lists the tests which a selection leaves out."""

import pytest

SAID = "left out: "
_left_out: list[str] = []


def pytest_deselected(items):
    _left_out.extend(item.nodeid for item in items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    for nodeid in _left_out:
        print(f"\n{SAID}{nodeid}", end="")
