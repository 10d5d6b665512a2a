"""Section `imports`: what it costs to import the library, and to make a first optimizer.

Each sample is a fresh process: the CPU seconds, of all threads, from the end of `import jax,
jax.numpy` to the end of a statement. The libraries take turns.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.timing import machine

LIBRARIES = (OURS, THEIRS)
IMPORT = "import {} as lib"
USE = (
    f"{IMPORT}\n"
    "lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(lib.cosine_decay_schedule(1e-3, 100)))"
)
# What is measured: the statements, whether compiled files are there, and the largest ratio.
CASES = {
    "import": (IMPORT, True, 1.0),
    "import, a first optimizer": (USE, True, 1.15),
    "import, without byte code": (IMPORT, False, 1.0),
    "a first optimizer, without byte code": (USE, False, 1.15),
}
SAMPLE = """
import sys, time
import jax, jax.numpy
begun, known = time.process_time(), set(sys.modules)
{}
print(time.process_time() - begun, len(set(sys.modules) - known))
"""


def run(options: Options, job: Job) -> Results:
    """Start the processes, in turns."""
    repeats = 2 if options.quick else options.repeats
    results: Results = {
        "section": "imports",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    job.plan(len(CASES) * repeats)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _copy_to(home)
        for name, (code, compiled, limit) in CASES.items():
            if compiled:
                for library in LIBRARIES:  # writes the byte code
                    _sample(code, library, home, compiled)
            else:
                shutil.rmtree(home)
                _copy_to(home)
            samples: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            modules = {}
            for turn in range(repeats):
                job.begin(name)
                for library in LIBRARIES[:: 1 if turn % 2 else -1]:
                    seconds, modules[library] = _sample(code, library, home, compiled)
                    samples[library].append(seconds)
                job.advance()
            case = {"case": name, "limit": limit, "modules": modules, "samples": samples}
            results["cases"].append(case | _figures(samples))
            job.save(results)
    return results


def _copy_to(home: Path) -> None:
    """Copy both libraries, without their byte code: both are then found in the same way."""
    for library in LIBRARIES:
        spec = find_spec(library)
        assert spec is not None and spec.submodule_search_locations is not None
        [source] = spec.submodule_search_locations
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, home / library, ignore=ignored)


def _sample(code: str, library: str, home: Path, compiled: bool) -> tuple[float, int]:
    env = os.environ | {"PYTHONPATH": str(home), "JAX_PLATFORMS": "cpu"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if not compiled:
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    program = SAMPLE.format(code.format(library))
    argv = [sys.executable, "-P", "-c", program]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, cwd=home)
    seconds, modules = done.stdout.split()
    return float(seconds), int(modules)


def _figures(samples: dict[str, list[float]]) -> dict[str, Any]:
    medians = {library: statistics.median(x) for library, x in samples.items()}
    return {"median": medians, "ratio": medians[OURS] / medians[THEIRS]}


def show(results: Results, console: Console) -> None:
    """Print a row for each case."""
    title = "CPU seconds beyond those of import jax, jax.numpy"
    table = Table(title=title, title_justify="left")
    for column in ("", *LIBRARIES, "ratio", "at most", ""):
        table.add_column(column, justify="right" if column else "left")
    for case in results["cases"]:
        cells = [f"{case['median'][x]:.3f} ({case['modules'][x]} modules)" for x in LIBRARIES]
        reached = "reached" if case["ratio"] <= case["limit"] else "missed"
        table.add_row(case["case"], *cells, f"{case['ratio']:.2f}", f"{case['limit']}", reached)
    console.print(machine.one_line(results["machine"]), highlight=False)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write a bar for each case: the ratio."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.5 * len(cases) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    axes.barh([case["case"] for case in cases], [case["ratio"] for case in cases])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds, of those of Optax")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="CPU seconds of the import, and of a first optimizer",
    run=run,
    show=show,
    draw=draw,
)
