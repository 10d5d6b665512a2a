"""Every code block of the documentation runs, and prints and draws what its page shows."""

import ast
import math
import pathlib
import re

import pytest

from docs.site import blocks
from gradxform.commands.catalog import registered_parts

PAGES = {str(page.relative_to(blocks.ROOT)): page for page in blocks.pages()}
BLOCKS = {name: blocks.find(page.read_text()) for name, page in PAGES.items()}
# For one block, of the processor: twice what one takes where no other process shares its caches.
MOST_SECONDS = 50
LANGUAGES = {"python", "py", "console", "sh", "bat", "text", "diff", "json", ""}
# Blocks of ```py do not run: they call what is not installed, or what only the reader has.
FRAGMENTS = {
    "docs/curvature.md": 1,
    "docs/guides/compositions.md": 1,
    "docs/guides/from_pytorch.md": 2,
    "docs/guides/from_tensorflow.md": 1,
    "docs/guides/logging.md": 2,
    "docs/tools.md": 1,
}
# Programs that a page shows as files are started by tests of their own.
PROGRAMS = {"docs/center.md": "test_center_page.py"}


# Keras's variables, and what Orbax imports, warn of their own deprecations.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_and_prints_what_it_shows(name, tmp_path):
    for ran in blocks.run(PAGES[name], tmp_path):
        assert ran.seconds < MOST_SECONDS, f"{name}, line {ran.block.line}"


MESH = re.compile(r"make_mesh\(\s*\(([\d, ]+)\)")
EIGHT = "`XLA_FLAGS=--xla_force_host_platform_device_count=8`"


def test_pages_that_need_eight_devices_say_what_makes_them():
    needing = set()
    for name, found in BLOCKS.items():
        sizes = [m[1] for block in found for m in MESH.finditer(block.code)]
        if any(math.prod(map(int, re.findall(r"\d+", size))) == 8 for size in sizes):
            needing.add(name)
    assert len(needing) >= 5
    assert [name for name in sorted(needing) if EIGHT not in PAGES[name].read_text()] == []


def test_the_number_of_threads_is_not_said_to_make_devices():
    for name, page in PAGES.items():
        text = page.read_text()
        if "PJRT_NPROC" in text:
            assert "does not change how many devices" in " ".join(text.split()), name
            assert EIGHT in text, name


def test_the_fragments_are_few_and_parse():
    fragments = {
        name: [block for block in found if block.language == "py"] for name, found in BLOCKS.items()
    }
    assert {name: len(found) for name, found in fragments.items() if found} == FRAGMENTS
    for name, found in fragments.items():
        for block in found:
            ast.parse(block.code, f"{name}, line {block.line}")


def test_the_programs_have_tests():
    programs = {name for name, found in BLOCKS.items() if any(block.title for block in found)}
    assert programs == PROGRAMS.keys()
    for name, file in PROGRAMS.items():
        assert pathlib.Path(name).name in pathlib.Path(__file__).with_name(file).read_text()


def test_the_guide_to_schedules_has_each_of_them():
    text = PAGES["docs/guides/schedules.md"].read_text()
    names = [entry.name for entry in registered_parts("schedules") if ":" not in entry.name]
    assert len(names) > 20 and [name for name in names if f"gx.{name}(" not in text] == []


@pytest.mark.parametrize("name", PAGES)
def test_blocks_have_a_language_of_the_list(name):
    assert {block.language for block in BLOCKS[name]} <= LANGUAGES


@pytest.mark.parametrize("name", PAGES)
def test_what_looks_like_python_runs(name):
    for block in BLOCKS[name]:
        if block.language == "":
            assert "import gradxform" not in block.code and ">>> " not in block.code
