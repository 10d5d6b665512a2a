"""How long each test takes, in seconds of the processor, as a file that `make durations` writes.

Whether a test is `long` (tests/tiers.py) is read from that file: a measurement decides it. Seconds
of the processor, of the test's process and the processes that it waits for, hardly change with what
else the machine does.
"""

import json
import os
from pathlib import Path

import pytest

from tests.groups import group_of

FILE = Path(__file__).with_name("durations.json")
SHORTEST = 0.1  # what takes less is not in the file


def read() -> dict[str, float]:
    """Return the seconds of the tests that take longest, by the test's name."""
    return json.loads(FILE.read_text())


def processor_seconds() -> float:
    """Return the seconds of the processor that this process and those it waited for have taken."""
    return sum(os.times()[:4])


class Recorder:
    """A plugin that measures every test and writes the file at the end, also under xdist."""

    def __init__(self):
        self.began = 0.0
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self):
        self.began = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "teardown":
            report.processor_seconds = processor_seconds() - self.began
            # xdist adds the group to the name.
            report.test = item.nodeid.removesuffix(f"@{group_of(item)}")
        return report

    def pytest_runtest_logreport(self, report):
        # Workers send their reports, with all attributes, to the process that writes the file.
        if report.when == "teardown":
            self.seconds[report.test] = report.processor_seconds

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workerinput"):
            return
        kept = {
            name: round(seconds, 2)
            for name, seconds in sorted(self.seconds.items())
            if seconds >= SHORTEST
        }
        FILE.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n")
