"""How long processes that tests start may take: multiples of a start, never a number of seconds."""

import re
import subprocess

import pytest

from tests import environment

FIXED = re.compile(r"(\btimeout=\d|\.wait\(\d|\bwait\(timeout=\d|monotonic\(\) \+ \d|LIMIT = \d)")
TESTS = sorted((environment.ROOT / "tests").glob("*.py"))


@pytest.mark.parametrize(("start", "limit"), [(0.5, 60), (2.0, 80), (30.0, 1200)])
def test_a_limit_grows_with_the_measured_start_and_has_a_floor(monkeypatch, start, limit):
    monkeypatch.setattr(environment, "start_seconds", lambda: start)
    assert environment.limit(40, 60) == limit


def test_a_start_is_measured_once(monkeypatch):
    runs = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: runs.append(kwargs["timeout"]))
    environment.start_seconds.cache_clear()
    try:
        assert environment.start_seconds() == environment.start_seconds() < 60
        assert len(runs) == 1 and runs[0] > 0  # itself with a limit
    finally:
        environment.start_seconds.cache_clear()


def test_what_starts_processes_has_no_fixed_limits():
    starting = [path for path in TESTS if re.search(r"subprocess\.(run|Popen)", path.read_text())]
    assert len(starting) > 8
    for path in starting:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.name not in ("environment.py", "test_environment.py"):
                assert not FIXED.search(line), f"{path.name}:{number}: {line.strip()}"
