"""Strictness is set once, for every test: eight devices, no implicit promotion, no warnings."""

import contextlib
import ctypes
import gc
import os
import pathlib
import secrets
import time

from tests import quick_compiling

# Before JAX looks at its devices.
os.environ["JAX_PLATFORMS"] = "cpu"
# Before Keras is imported, by whatever test.
os.environ["KERAS_BACKEND"] = "jax"
# Ray reads these when it is imported, by whatever test.
os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it listens beyond the loopback interface
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()

os.environ["XLA_FLAGS"] += " " + quick_compiling.xla_flags()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

from tests import durations, groups, tiers, touched  # noqa: E402
from tests.programs import Programs  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the time goes to compiling programs that run once. What is left out are LLVM's costly
# passes; what XLA does to a program stays.
jax.config.update("jax_disable_most_optimizations", True)
# Nor does a program say which lines of Python each of its operations comes from.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Where in JAX an expected error was raised, nobody reads: to find out takes a tenth of the time of
# the tests of bad input.
jax.config.update("jax_traceback_filtering", "off")
# More than a third of the programs are compiled more than once: by tests whose functions differ
# though their programs do not, after the compiled ones have been forgotten, and in other processes.
programs = Programs()
jax.config.update("jax_compilation_cache_dir", str(programs.own))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Examples may be slow because they compile.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.load_profile("project")


def pytest_addoption(parser):
    parser.addoption(
        "--all-promises",
        action="store_true",
        help="try every promise also on variants and recipes whose parts are tried on it",
    )
    parser.addoption(
        "--write-durations",
        choices=["anew", "longer"],
        help="write how long each test takes into tests/durations.json, or only where it is longer",
    )
    parser.addoption(
        "--minutes",
        type=float,
        help="leave out the long tests that have not begun after so many minutes, and say how many",
    )
    parser.addoption(
        "--concerning",
        action="append",
        default=[],
        help="run only what a change of this file concerns (tests/touched.py)",
    )


def pytest_configure(config):
    if how := config.getoption("--write-durations"):
        config.pluginmanager.register(durations.Recorder(how))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marks
def pytest_collection_modifyitems(config, items):
    if files := config.getoption("--concerning"):
        concerns = touched.concern(map(pathlib.PurePosixPath, files))
        config.hook.pytest_deselected(items=[item for item in items if not concerns(item)])
        items[:] = filter(concerns, items)
    tiers.mark_long(items)
    groups.group_by_file(items)
    if hasattr(config, "workerinput"):  # a worker of xdist
        groups.longest_first(items, durations.of([item.nodeid for item in items], durations.read()))


BEGAN = time.monotonic()
OUT_OF_TIME = "out of time"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    limit = item.config.getoption("--minutes")
    if limit and time.monotonic() - BEGAN > 60 * limit and item.get_closest_marker("long"):
        pytest.skip(OUT_OF_TIME)


def pytest_terminal_summary(terminalreporter, config):
    skipped = terminalreporter.stats.get("skipped", [])
    if left := sum(OUT_OF_TIME in str(report.longrepr) for report in skipped):
        minutes = config.getoption("--minutes")
        terminalreporter.section(f"{left} long tests were left out, after {minutes:g} minutes")


def pytest_unconfigure():
    """Leave what was compiled to other processes."""
    programs.close()


@pytest.fixture
def eight_devices():
    """Eight devices, which all but `make test-processors` have."""
    if jax.device_count() < 8:
        pytest.skip(f"needs eight devices, there are {jax.device_count()}")
    return jax.devices()[:8]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector pass over what stays to the end: modules and all the tests.

    To look there for what can go takes a third of the time of collecting.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        # Hypothesis makes its random numbers at its first test, and warns where it does not find
        # who holds them: on Python 3.14, where the holder is frozen already.
        hypothesis.given(hypothesis.strategies.none())(lambda _: None)()
        gc.collect()
        gc.freeze()
        gc.enable()
        # Compiling makes many objects and few cycles: looking less often saves a twentieth.
        gc.set_threshold(50_000, 20, 20)


# Compiled programs stay with the process, some 0.8 MB each, until they are forgotten: a worker
# would hold 5 GB at the end of `make test`. To forget them costs seconds of compiling anew, so this
# is done at the end of a file, once they are many, and inside of a file only if it makes very many;
# and half as often where the machine has 16 GB or more.
HAS_MUCH_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") > 16e9
MANY_PROGRAMS, MOST_PROGRAMS = (2000, 3000) if HAS_MUCH_MEMORY else (1000, 2000)
_programs = [0]


def _count_programs(event, _, **__):
    if event == "/jax/core/compile/backend_compile_duration":
        _programs[0] += 1


jax.monitoring.register_event_duration_secs_listener(_count_programs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Forget the compiled programs once they are many, and give their memory back."""
    result = yield
    ends = nextitem is None or nextitem.path != item.path
    if ends:
        programs.exchange()
    if _programs[0] >= (MANY_PROGRAMS if ends else MOST_PROGRAMS):
        _programs[0] = 0
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):  # of glibc, which keeps what is freed
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    return result
