"""What the site says of each optimizer and wrapper, found by running it; kept in the cache."""

import concurrent.futures
import dataclasses
import inspect
import itertools
import multiprocessing
import os
import pathlib
import time
import warnings
from typing import Any

import jax

import gradxform as gx
from docs.site import badges, cache, look, runs, samples
from gradxform.catalog import Entry, entries, entry
from gradxform.testing.case import inside
from tests import quick_compiling

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a part.

    Args:
      entry: the part.
      config: the transform that was drawn, as it prints; "" without.
      data: what running it has shown, see `look.seen`; {} without.
      badges: the promises that it keeps.
    """

    entry: Entry
    config: str
    data: dict[str, Any]
    badges: tuple[str, ...]

    @property
    def slots(self) -> str:
        """How many numbers it keeps for each parameter: "0", "1", ... or "factored"."""
        if not self.data:
            return ""
        whole = round(self.data["bytes"] / 4)
        if abs(self.data["bytes"] / 4 - whole) < 1e-3 and (whole or self.data["bytes"] < 1e-3):
            return str(whole)
        return "factored"


# ------------------------------------------------------------------------------------ collecting


def _sources(tx: Any) -> list[pathlib.Path]:
    """Return the files that say what a transform does."""
    modules = {inspect.getfile(type(x)) for x in inside(tx) if type(x).__module__ != "builtins"}
    own = [pathlib.Path(p) for p in modules if "gradxform" in pathlib.Path(p).parts]
    return [*sorted(own), *(HERE / f"{name}.py" for name in ("look", "runs", "surfaces"))]


def _value(tx: Any) -> Any:
    try:
        return gx.to_config(tx)
    except (TypeError, ValueError):  # it holds a function
        return " ".join(repr(tx).split())


# Most small programs serve every part, so that a process keeps what it compiled; but not for ever,
# for each takes memory.
_FORGET_AFTER = 25
_DONE = itertools.count(1)


def _start() -> None:
    """Leave out the costly passes of the compiler."""
    jax.config.update("jax_disable_most_optimizations", True)


def _task(kind: str, name: str) -> Any:
    """Run in another process: return what is asked, and now and then forget what was compiled."""
    try:
        if kind == "badges":
            return badges.kept(name)
        part = entry(name)
        make = samples.make_of(part)
        assert make is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with_all = name in samples.ON_ALL_EXAMPLES
            return runs.both(make, samples.takes_rate(part), with_all) | look.seen(make(1e-3))
    finally:
        if next(_DONE) % _FORGET_AFTER == 0:
            jax.clear_caches()


def _library() -> list[pathlib.Path]:
    folders = (cache.ROOT / "gradxform", cache.ROOT / "tests" / "catalogue")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def collect(log: Any) -> dict[str, Facts]:
    """Return the facts of all optimizers and wrappers by name, in the order of the catalogue.

    Args:
      log: called with a line of text now and then while something is measured.
    """
    parts = [e for e in entries("optimizers", "wrappers") if ":" not in e.name]
    configs: dict[str, str] = {}
    keys: dict[tuple[str, str], str] = {}
    library = cache.digest(*_library(), HERE / "badges.py")
    rows = {}
    for part in parts:
        make = samples.make_of(part)
        if make is None and part.name not in samples.WITHOUT:
            raise ValueError(f"docs/site/samples.py has no sample of {part.name}; add one.")
        if make is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tx = make(1e-3)
            configs[part.name] = str(tx)
            sources = _sources(tx)
            with_all = part.name in samples.ON_ALL_EXAMPLES
            keys["runs", part.name] = cache.digest(_value(tx), jax.__version__, with_all, *sources)
        row = badges.row_of(part.name)
        if row is not None:
            rows[part.name] = row
            keys["badges", row] = cache.digest(row, jax.__version__, library)
    found = {task: cache.read(task[0], key) for task, key in keys.items()}
    missing = [task for task, data in found.items() if data is None]
    for task, data in _measured(missing, log):
        cache.write(task[0], keys[task], data)
        found[task] = data
    facts = {}
    for part in parts:
        run = found.get(("runs", part.name)) or {}
        kept = found.get(("badges", rows.get(part.name, ""))) or ()
        facts[part.name] = Facts(part, configs.get(part.name, ""), run, tuple(kept))
    return facts


def _measured(tasks: list[tuple[str, str]], log: Any) -> Any:
    """Yield tasks with their results, in the order in which they are done."""
    if not tasks:
        return
    # Several devices, for the promise about sharding; and compiling takes longer here than running.
    # The children read it when they import JAX.
    flags = os.environ.get("XLA_FLAGS", "")
    ours = f"--xla_force_host_platform_device_count=8 {quick_compiling.xla_flags()}"
    os.environ["XLA_FLAGS"] = f"{flags} {ours}".strip()
    began = time.perf_counter()
    try:
        context = multiprocessing.get_context("spawn")
        workers = min(os.cpu_count() or 1, 8)
        with concurrent.futures.ProcessPoolExecutor(workers, context, _start) as pool:
            futures = {pool.submit(_task, *task): task for task in tasks}
            for n, future in enumerate(concurrent.futures.as_completed(futures), 1):
                task = futures[future]
                try:
                    yield task, future.result()
                except Exception as error:  # an optimizer may raise anything; name it
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise RuntimeError(f"{task[1]} ({task[0]}): {error}") from error
                if n % 20 == 0 or n == len(tasks):
                    seconds = time.perf_counter() - began
                    log(f"{n} of {len(tasks)} runs in {seconds:.0f} s, the last of {task[1]}")
    finally:
        os.environ["XLA_FLAGS"] = flags
