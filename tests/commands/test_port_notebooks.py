"""`port` of notebooks: cells as one program, magics, and the bytes that stay."""

import ast
import json

import pytest

from gradxform import port
from gradxform.commands import main
from gradxform.commands.port.magics import masked
from gradxform.commands.port.notebooks import read_notebook

IMPORTS = "%matplotlib inline\n!pip install optax\nimport optax, jax  # é\nfrom optax import qqqq\n"
USES = "%time tx = optax.adadelta()\nif True:\n    %cd ..\nloss = optax.huber_loss"


def notebook(*cells, **metadata):
    """A notebook of format 4; a cell is its code, or a pair of its kind and its source."""
    made = []
    for cell in cells:
        kind, source = cell if isinstance(cell, tuple) else ("code", cell)
        extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = source.splitlines(keepends=True)
        made.append({"cell_type": kind, "metadata": {"source": ["import optax"]}, "source": lines})
        made[-1] |= extra
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


BOOK = notebook(("markdown", "# import optax"), IMPORTS, ("raw", "import optax"), USES)


def written(path, book, **options):
    """Write a notebook as nbformat does, or in another form of JSON."""
    options = {"indent": 1, "ensure_ascii": False} | options
    path.write_text(json.dumps(book, **options) + "\n", encoding="utf-8")
    return path


def patched(text, diff):
    """The text with a diff applied."""
    old, new = [], []
    for line in diff.splitlines()[2:]:
        if not line.startswith(("@@", "+")):
            old.append(line[1:])
        if not line.startswith(("@@", "-")):
            new.append(line[1:])
    assert "\n".join(old) in text
    return text.replace("\n".join(old), "\n".join(new))


def test_uses_have_their_cell_and_their_line(tmp_path, capsys):
    path = written(tmp_path / "train.ipynb", BOOK)
    uses = {use.name: (use.cell, use.line) for use in port.port(path).uses}
    assert uses == {
        "optax.qqqq": (2, 4),
        "optax.adadelta": (4, 1),
        "optax.huber_loss": (4, 4),
    }
    assert main(["port", str(tmp_path)]) == 1  # qqqq is missing
    out = " ".join(capsys.readouterr().out.split())  # lines break where a path is long
    assert f"optax.qqqq {path}:cell 2:4 " in out and "train.ipynb:cell 4:1" in out
    main(["port", str(path), "--json"])
    assert {use["cell"] for use in json.loads(capsys.readouterr().out)["uses"]} == {2, 4}


FORMS = [{}, {"indent": 4}, {"ensure_ascii": True}, {"indent": None}, {"indent": "\t"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_only_the_imports_change(options, tmp_path):
    path = written(tmp_path / "train.ipynb", BOOK, **options)
    text = path.read_text("utf-8")
    new = patched(text, port.port(path).diff)
    want = json.loads(json.dumps(BOOK))
    want["cells"][1]["source"][2:3] = ["import jax\n", "import gradxform as optax  # é\n"]
    assert json.loads(new) == want
    if "ensure_ascii" not in options:  # no other byte differs
        assert new == json.dumps(want, indent=options.get("indent", 1), ensure_ascii=False) + "\n"
    else:
        assert new.isascii()


def test_lines_that_stay_keep_their_escapes(tmp_path):
    book = notebook("import optax\nx = 1\n")
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(book, indent=1).replace("x = 1", "x\\u0020= \\u0031"))
    new = patched(path.read_text(), port.port(path).diff)
    assert '"x\\u0020= \\u0031\\n"' in new and '"import gradxform as optax\\n"' in new


def test_a_source_may_be_one_string(tmp_path):
    book = notebook("import optax")
    book["cells"][0]["source"] = "import optax\noptax.adam(0.1)"
    path = written(tmp_path / "a.ipynb", book)
    new = json.loads(patched(path.read_text(), port.port(path).diff))
    assert new["cells"][0]["source"] == "import gradxform as optax\noptax.adam(0.1)"


MASKED = {
    "!ls": "0##",
    "if x:\n    %cd ..\n": "if x:\n    0#####\n",
    "files = !ls": "files = 0##",
    "t = %timeit -o f()": "t = 0#############",
    "f?": "0#",
    "?f": "0#",
    "!a \\\n  b\nx": "0###\n###\nx",
    "%time x = 1": "0;    x = 1",
    "%timeit -n 3 f()": "0###############",
    "%%time\nx = 1\n!ls": "0#####\nx = 1\n0##",
    "%%bash\nimport optax\n": "######\n############\n",
    "x = '''\n%d\n'''\n!ls": "x = '''\n%d\n'''\n0##",
    "x = (3\n% 2)\n!ls": "x = (3\n% 2)\n0##",
    "x = 3 \\\n% 2\n!ls": "x = 3 \\\n% 2\n0##",
    "x = a % b": "x = a % b",
    "if x != 1: y": "if x != 1: y",
    "await f()": "await f()",
}


@pytest.mark.parametrize("source", list(MASKED))
def test_what_is_not_python_is_masked_in_its_place(source):
    got = masked(source)
    assert got == MASKED[source]
    ast.parse(got)
    assert [len(line) for line in got.split("\n")] == [len(x) for x in source.split("\n")]


def test_what_cannot_be_read_is_one_line(tmp_path, capsys):
    for name, book, words in [
        (
            "bad",
            notebook(("markdown", "x"), "x = 1\n", "!ls\nx = (\n"),
            "bad.ipynb, cell 3, line 2: not ",
        ),
        ("old", {"worksheets": [], "nbformat": 3}, "old.ipynb: not a notebook of format 4; "),
        ("list", [1], "list.ipynb: not a notebook of format 4; "),
    ]:
        path = written(tmp_path / f"{name}.ipynb", book)
        assert main(["port", str(path)]) == 1
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1
    (tmp_path / "text.ipynb").write_text("{")
    with pytest.raises(port.PortError, match=r"text.ipynb: not a notebook"):
        port.port(tmp_path / "text.ipynb")


def test_notebooks_of_other_languages_use_no_optax(tmp_path):
    for key, value in [("language_info", {"name": "R"}), ("kernelspec", {"language": "julia"})]:
        path = written(tmp_path / "r.ipynb", notebook("library(optax)\nx <- 1", **{key: value}))
        assert read_notebook(path).cells == () and port.port(path).uses == ()


def test_notebooks_are_found_in_folders(tmp_path):
    (tmp_path / ".ipynb_checkpoints").mkdir()
    written(tmp_path / ".ipynb_checkpoints" / "a-checkpoint.ipynb", BOOK)
    path = written(tmp_path / "a.ipynb", BOOK)
    assert port.python_files([str(tmp_path)]) == [path]
