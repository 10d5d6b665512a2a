"""How long each test takes, in seconds of the processor, as a file that `make durations` writes.

Whether a test is `long` (tests/tiers.py) is read from that file: a measurement decides it. Seconds
of the processor, of the test's process and the processes that it waits for, hardly change with what
else the machine does.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.groups import group_of

FILE = Path(__file__).with_name("durations.json")
SHORTEST = 0.02  # what takes less is not in the file


def read() -> dict[str, float]:
    """Return the seconds of the tests that take longest, by the test's name."""
    files = json.loads(FILE.read_text())
    return {
        f"{file}::{function}{arguments}": taken
        for file, functions in files.items()
        for function, cases in functions.items()
        for arguments, taken in cases.items()
    }


def function_of(name: str) -> str:
    """Return the name of a test without its arguments."""
    return name.partition("[")[0]


def write(seconds: dict[str, float], how: str) -> None:
    """Write the seconds of tests, by file and function: a change of one test changes one line.

    Args:
      seconds: those of a run, by the test's name.
      how: "anew" forgets what the file says; "longer" keeps it for tests that did not run or took
        less. Where all tests run, many find their programs compiled by others, which may be long.
    """
    if how == "longer":
        before = read()
        seconds = before | {k: max(x, before.get(k, 0.0)) for k, x in seconds.items()}
    files: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for name, taken in sorted(seconds.items()):
        if taken >= SHORTEST:
            file, _, function = function_of(name).partition("::")
            files[file][function][name.removeprefix(function_of(name))] = round(taken, 2)
    FILE.write_text(json.dumps(files, indent=0, ensure_ascii=False) + "\n")


def processor_seconds() -> float:
    """Return the seconds of the processor that this process and those it waited for have taken."""
    return sum(os.times()[:4])


class Recorder:
    """A plugin that measures every test and writes the file at the end, also under xdist."""

    def __init__(self, how: str):
        self.how = how
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
        if not hasattr(session.config, "workerinput"):
            write(self.seconds, self.how)
