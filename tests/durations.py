"""How long each test takes, in seconds of the processor, as a file that `make durations` writes.

Whether a test is `long` (tests/tiers.py) is read from that file: a measurement decides it. Seconds
of the processor, of the test's process and the processes that it waits for, hardly change with what
else the machine does.
"""

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.groups import group_of

FILE = Path(__file__).with_name("durations.json")
SHORTEST = 0.02  # what takes less is not in the file
USUAL = "[*]"  # in the place of a case: what most cases of a test function take
# A case stands out, and is in the file by itself, if it is off by more than this, and by more than
# what is usual.
STANDS_OUT = 0.15


def read() -> dict[str, float]:
    """Return the seconds of tests by name: what is usual of each function, and what stands out."""
    files = json.loads(FILE.read_text())
    return {
        f"{file}::{function}{arguments}": taken
        for file, functions in files.items()
        for function, cases in functions.items()
        for arguments, taken in cases.items()
    }


def of(names: Iterable[str], seconds: dict[str, float]) -> dict[str, float]:
    """Return the seconds of tests: their own, or else the usual ones of their functions.

    Tests of which nothing is known are left out. Those that stand out are there in any case.
    """
    out = {name: taken for name, taken in seconds.items() if not name.endswith(USUAL)}
    for name in names:
        usual = function_of(name) + USUAL
        if name not in out and usual in seconds:
            out[name] = seconds[usual]
    return out


def function_of(name: str) -> str:
    """Return the name of a test without its arguments."""
    return name.partition("[")[0]


def write(seconds: dict[str, float], how: str) -> None:
    """Write the seconds of tests: what is usual of each function, and the cases that stand out.

    Args:
      seconds: those of a run, by the test's name.
      how: "anew" forgets what the file says; "longer" keeps it for tests that did not run or took
        less. Where all tests run, many find their programs compiled by others, which may be long.
    """
    before = read() if how == "longer" else {}
    seconds = {k: max(x, of([k], before).get(k, 0.0)) for k, x in seconds.items()}
    cases: dict[str, list[float]] = defaultdict(list)
    for name, taken in seconds.items():
        cases[function_of(name)].append(taken)
    usual = {
        function + USUAL: before.get(function + USUAL, statistics.median(taken))
        for function, taken in cases.items()
        if function not in seconds
    }
    kept = before | usual
    for name, taken in seconds.items():
        typical = kept.get(function_of(name) + USUAL)
        if typical is None or abs(taken - typical) > max(STANDS_OUT, typical):
            kept[name] = taken
        else:
            kept.pop(name, None)
    files: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for name, taken in sorted(kept.items()):
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
