"""How long processes that tests start may take: multiples of a start, never a number of seconds."""

import re
import subprocess

import pytest

from tests import environment

FIXED = re.compile(
    r"(\btimeout=\d{2}|\"timeout\": \d{2}|\.(wait|join)\((timeout=)?\d|\bwait\(timeout=\d|"
    r"monotonic\(\) \+ \d|\b(LIMIT|SECONDS|seconds) ?= ?\d)"
)
FOLDER = environment.ROOT / "tests"
TESTS = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.py"))}


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


WAITING = re.compile(r"subprocess\.(run|Popen)|Thread\(|Timer\(|timeout")


def test_tests_that_wait_for_processes_have_no_fixed_limits():
    waiting = {name: path for name, path in TESTS.items() if WAITING.search(path.read_text())}
    assert len(waiting) > 12
    for name, path in waiting.items():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if name not in ("environment.py", "project/test_environment.py"):
                assert not FIXED.search(line), f"{name}:{number}: {line.strip()}"


# Files that compare numbers and are not run as on other processors, and why.
NOT_NUMERIC = {
    "examples/test_distributed_digits.py": "it starts processes, which train for long",
    "distributed/replicas/test_processes.py": "it starts processes",
    "examples/test_examples.py": "it trains",
    "examples/test_finetune.py": "it trains",
    "examples/test_train_digits.py": "it trains",
}
COMPARING = re.compile(r"assert_allclose|assert_close|check_close|\ballclose\(")


def test_files_that_compare_numbers_run_as_on_other_processors():
    for name, path in TESTS.items():
        source = path.read_text()
        if path.name.startswith("test_") and COMPARING.search(source):
            assert ("pytest.mark.numeric" in source) != (name in NOT_NUMERIC), name
