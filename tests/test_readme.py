"""The README: its code runs as it stands, and its numbers are the recorded ones."""

import itertools
import re
import statistics

import jax
import jax.numpy as jnp
import pytest

from gradxform.catalog import KINDS, entries
from tests.environment import ROOT

TEXT = (ROOT / "README.md").read_text()
FIRST_SCREEN = TEXT.partition("## A training loop")[0]


def blocks():
    return re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def rows(text, heading):
    """Return the rows of the first table under a heading, as lists of cells."""
    table = re.search(r"(?:^\|.*\n)+", text.partition(heading)[2], flags=re.MULTILINE)
    assert table is not None
    lines = [line.strip("|").split(" | ") for line in table[0].splitlines()[2:]]
    return [[cell.strip() for cell in cells] for cells in lines]


def own(kind):
    """Return the names of the library's parts; those that tests register have a colon."""
    return [entry.name for entry in entries(kind) if ":" not in entry.name]


def test_the_training_loop_trains():
    loop = blocks()[0]
    assert len(loop.strip().splitlines()) <= 15
    params = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros((2,))}}

    def loss_fn(params, batch):
        out = batch @ params["dense"]["kernel"] + params["dense"]["bias"][None]
        return jnp.mean(out * out)

    scope = {"params": params, "loss_fn": loss_fn, "batches": [jnp.ones((4, 3))] * 50}
    before = loss_fn(params, scope["batches"][0])
    exec(loop, scope)
    assert scope["loss"] < before


def test_the_optimizer_of_your_own_runs():
    scope = {"__name__": "readme"}
    exec(blocks()[1], scope)
    tx, params = scope["tx"], {"w": jnp.ones((2, 2), jnp.bfloat16)}
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert updates["w"].dtype == jnp.bfloat16


def test_the_first_screen_says_why_and_how_to_install():
    assert len(FIRST_SCREEN.splitlines()) <= 50
    assert "\n    pip install .\n" in FIRST_SCREEN
    for system in ("macOS", "Linux", "Windows"):
        assert system in FIRST_SCREEN


def test_the_figures_of_the_first_screen_are_the_measured_ones():
    speed = (ROOT / "docs" / "speed.md").read_text()
    compared = rows(speed, "# ")
    median = statistics.median(float(trace) for _, _, trace, _ in compared)
    assert f"{median:.2f} of Optax's time (median of {len(compared)} optimizers)" in FIRST_SCREEN
    measured = rows(TEXT, "## Speed")
    eager = [float(row[5]) for row in measured]
    assert re.search(rf"takes\s{min(eager)} to\s{max(eager)} of it", FIRST_SCREEN)
    [clipped] = [row for row in measured if row[:2] == ["one-16M", "clip+adamw"]]
    assert clipped[6] == "< 0.1% / 100.0%" and f"takes {clipped[4]} of the time" in FIRST_SCREEN
    table = (ROOT / "docs" / "sparse.md").read_text()
    [sparse] = re.findall(r"takes ([\d.]+) ms with row-sparse gradients", FIRST_SCREEN)
    [dense] = re.findall(r"It takes ([\d.]+) ms\s+with Optax", FIRST_SCREEN)
    assert re.search(rf"\b{sparse}\b.*\b{dense}\b", table)


@pytest.mark.parametrize("kind", KINDS)
def test_it_counts_the_parts(kind):
    [said] = [row[1] for row in rows(TEXT, "## What is included") if row[0] == kind]
    assert re.match(r"\d+", said)[0] == str(len(own(kind)))
    if kind == "optimizers":
        assert f"as they do for the {len(own(kind))} optimizers" in FIRST_SCREEN


def test_its_families_have_every_optimizer_once():
    families = rows(TEXT, "## Optimizers")
    names = [re.findall(r"`(\w+)`", row[2]) for row in families]
    assert [int(row[1]) for row in families] == list(map(len, names))
    assert sorted(itertools.chain(*names)) == own("optimizers")


def test_it_has_no_link_that_breaks_on_a_package_index():
    targets = re.findall(r"\]\(([^)]*)\)|^\[[^]]+\]: *(\S+)|(?:href|src)=\"([^\"]*)\"", TEXT, re.M)
    assert [t for t in map("".join, targets) if not t.startswith("https://")] == []


def test_the_files_that_it_names_exist():
    named = re.findall(r"\b(?:docs|examples)/[\w/]+\.(?:md|py)\b|\b[A-Z]+\.(?:md|cff)\b", TEXT)
    assert len(set(named)) > 12
    assert [name for name in named if not (ROOT / name).is_file()] == []
