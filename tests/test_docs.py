"""The code on the pages of the documentation runs as it stands there."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"
# Pages whose blocks of code, one after the other, are a program.
PROGRAMS = ("tools", "wrappers")


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S)
    assert blocks
    exec(compile("\n".join(blocks), f"{page}.md", "exec"), {})
