"""The runs that the site shows of each optimizer and wrapper, and the file in which they are kept.

    python -m docs.site.recorded [NAME ...]

It runs all parts, or those that are named, and writes their lines of docs/site/data/parts.jsonl.
The build of the site reads the file and runs none of them. A line says which transform was run:
when a sample has changed since, the build asks for the line to be written anew.
"""

import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from docs.site import badges, runs, samples
from gradxform.commands.catalog import Entry, registered_part, registered_parts
from tests import quick_compiling

FILE = pathlib.Path(__file__).parent / "data" / "parts.jsonl"
# Most small programs serve every part, so that a process keeps what it compiled; but not for ever,
# for each takes memory.
_FORGET_AFTER = 25
_DONE = itertools.count(1)


def parts() -> list[Entry]:
    """Return all optimizers and wrappers of the library, in the order of the catalogue."""
    return [part for part in registered_parts("optimizers", "wrappers") if ":" not in part.name]


def sample_of(part: Entry) -> Any:
    """Return the transform that is run for a part, or None for a part without a sample."""
    make = samples.make_of(part)
    if make is None:
        if part.name not in samples.WITHOUT:
            raise ValueError(f"docs/site/samples.py has no sample of {part.name}; add one.")
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(1e-3)


def config_of(part: Entry) -> str:
    """Return the transform that is run for a part, as it prints; "" for a part without a sample."""
    tx = sample_of(part)
    return "" if tx is None else str(tx)


def record(part: Entry) -> dict[str, Any]:
    """Run a part, and return its line: the transform, what its runs have shown, and its badges."""
    make = samples.make_of(part)
    run: dict[str, Any] = {}
    if make is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with_all = part.name in samples.ON_ALL_EXAMPLES
            run = runs.both(make, samples.takes_rate(part), with_all)
    row = badges.row_of(part.name)
    kept = badges.kept(row) if row is not None else []
    return {"name": part.name, "config": config_of(part), "run": run, "badges": kept}


# ---------------------------------------------------------------------------------------- the file


def read() -> dict[str, dict[str, Any]]:
    """Return the line of every part by its name.

    Raises:
      ValueError: naming a part without a line, a line without a part, or one of another transform.
    """
    lines = _lines()
    known = {part.name: part for part in parts()}
    for name in lines.keys() - known.keys():
        raise ValueError(f"{FILE.name}: there is no part named {name}; remove its line.")
    for name, part in known.items():
        if name not in lines:
            raise ValueError(f"{FILE.name} has no runs of {name}; {_remedy(name)}")
        if lines[name]["config"] != config_of(part):
            raise ValueError(
                f"{FILE.name} has runs of {lines[name]['config']}, and the sample of {name} is now "
                f"{config_of(part)}; {_remedy(name)}"
            )
    return {name: lines[name] for name in known}


def _remedy(name: str) -> str:
    return f'run `make docs-data ARGS="{name}"`.'


def _lines() -> dict[str, dict[str, Any]]:
    if not FILE.is_file():
        return {}
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return {line["name"]: line for line in lines}


def write(lines: dict[str, dict[str, Any]]) -> None:
    """Write the lines of parts, one part a line."""
    text = "".join(json.dumps(lines[name], ensure_ascii=False) + "\n" for name in sorted(lines))
    FILE.write_text(text, encoding="utf-8")


# ---------------------------------------------------------------------------------------- the runs


def _start() -> None:
    """Leave out the costly passes of the compiler."""
    jax.config.update("jax_disable_most_optimizations", True)


def _task(name: str) -> dict[str, Any]:
    """Return the line of a part, in another process; now and then forget what was compiled."""
    try:
        return record(registered_part(name))
    finally:
        if next(_DONE) % _FORGET_AFTER == 0:
            jax.clear_caches()


def measured(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of parts, in the order in which they are done; each core runs one."""
    # Several devices, for the promise about sharding; and compiling takes longer here than running.
    # The children read it when they import JAX.
    flags = os.environ.get("XLA_FLAGS", "")
    ours = f"--xla_force_host_platform_device_count=8 {quick_compiling.xla_flags()}"
    os.environ["XLA_FLAGS"] = f"{flags} {ours}".strip()
    try:
        context = multiprocessing.get_context("spawn")
        workers = min(os.cpu_count() or 1, 8)
        with concurrent.futures.ProcessPoolExecutor(workers, context, _start) as pool:
            futures = {pool.submit(_task, name): name for name in names}
            for future in concurrent.futures.as_completed(futures):
                try:
                    yield future.result()
                except Exception as error:  # an optimizer may raise anything; name it
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise RuntimeError(f"{futures[future]}: {error}") from error
    finally:
        os.environ["XLA_FLAGS"] = flags


def main(names: Sequence[str]) -> int:
    """Run parts, all or those named, and write their lines anew."""
    known = [part.name for part in parts()]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"There is no optimizer or wrapper named {unknown[0]}.", file=sys.stderr)
        return 2
    lines = {name: line for name, line in _lines().items() if name in known}
    began = time.monotonic()
    for n, line in enumerate(measured(names or known), 1):
        lines[line["name"]] = line
        if n % 20 == 0 or n == len(names or known):
            print(f"{n} of {len(names or known)} parts in {time.monotonic() - began:.0f} s")
    write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
