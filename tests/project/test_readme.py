"""The README: its numbers are the recorded ones, and what it names exists."""

import itertools
import re
import statistics

import pytest

from docs.site import families
from gradxform.commands.catalog import registered_parts
from tests.environment import ROOT

TEXT = (ROOT / "README.md").read_text()
HOME = (ROOT / "docs" / "index.md").read_text()
FIRST_SCREEN = TEXT.partition("## A training loop")[0]


def rows(text, heading):
    """Return the rows of the first table under a heading, as lists of cells."""
    table = re.search(r"(?:^\|.*\n)+", text.partition(heading)[2], flags=re.MULTILINE)
    assert table is not None
    lines = [line.strip("|").split(" | ") for line in table[0].splitlines()[2:]]
    return [[cell.strip() for cell in cells] for cells in lines]


# Those that tests register have a colon.
OPTIMIZERS = [entry.name for entry in registered_parts("optimizers") if ":" not in entry.name]


def test_the_first_screen_says_why_and_how_to_install():
    assert len(FIRST_SCREEN.splitlines()) <= 30
    assert "\n    pip install .\n" in FIRST_SCREEN
    assert "\npip install .\n" in HOME
    for system in ("macOS", "Linux", "Windows"):
        assert system in FIRST_SCREEN and system in HOME


@pytest.mark.parametrize("text", [FIRST_SCREEN, HOME.partition("## Install")[0]])
def test_the_figures_of_the_first_screen_are_the_measured_ones(text):
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    speed = (ROOT / "docs" / "speed.md").read_text()
    compared = rows(speed, "# ")
    median = statistics.median(float(trace) for _, _, trace, _ in compared)
    assert f"{median:.2f} of Optax's time (median of {len(compared)} optimizers)" in text
    measured = rows(speed, "## Chains on trees")
    eager = [float(row[5]) for row in measured]
    assert re.search(rf"takes\s{min(eager)} to\s{max(eager)} of it", text)
    [clipped] = [row for row in measured if row[:2] == ["one-16M", "clip+adamw"]]
    assert clipped[6] == "< 0.1% / 100.0%" and f"takes {clipped[4]} of the time" in text
    table = (ROOT / "docs" / "sparse.md").read_text()
    [sparse] = re.findall(r"takes ([\d.]+) ms with row-sparse gradients", text)
    [dense] = re.findall(r"It takes ([\d.]+) ms\s+with Optax", text)
    assert re.search(rf"\b{sparse}\b.*\b{dense}\b", table)


def test_it_counts_the_optimizers():
    [said] = re.findall(r"There are more than (\d+)\.", TEXT)
    assert int(said) < len(OPTIMIZERS) <= int(said) + 20


def test_its_table_of_families_is_that_of_the_optimizers():
    assert families.readme() == TEXT, "run `make tables`"
    named = [re.findall(r"`(\w+)`", row[1]) for row in rows(TEXT, "## Optimizers")]
    assert sorted(itertools.chain(*named)) == OPTIMIZERS


def test_it_has_no_link_that_breaks_on_a_package_index():
    targets = re.findall(r"\]\(([^)]*)\)|^\[[^]]+\]: *(\S+)|(?:href|src)=\"([^\"]*)\"", TEXT, re.M)
    assert [t for t in map("".join, targets) if not t.startswith("https://")] == []


def test_the_files_that_it_names_exist():
    named = re.findall(r"\b(?:docs|examples)/[\w/]+\.(?:md|py)\b|\b[A-Z]+\.(?:md|cff)\b", TEXT)
    assert len(set(named)) > 12
    assert [name for name in named if not (ROOT / name).is_file()] == []
