"""The files that `make new` writes. That they keep every promise, `make check` shows."""

import ast

import pytest

from tests.project import check, new


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty repository."""
    for kind in new.KINDS.values():
        for path in kind:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n### Added\n\n- Old.\n")
    monkeypatch.setattr(new, "ROOT", tmp_path)
    monkeypatch.setattr(new, "CHANGELOG", tmp_path / "CHANGELOG.md")
    return tmp_path


@pytest.mark.parametrize("kind", new.KINDS)
def test_the_files_of_a_part_are_named_like_it(kind, root):
    *files, log = new.write(kind, "two_words")
    assert len(files) == len(new.KINDS[kind]) and log == "CHANGELOG.md"
    for file in files:
        text = (root / file).read_text()
        names = {node.name for node in ast.walk(ast.parse(text)) if hasattr(node, "name")}
        assert file.endswith("/two_words.py") and max(map(len, text.splitlines())) <= 100
        assert "catalogue" in file or any("two_words" in name for name in names)
    assert "### Added\n\n- `two_words`:" in (root / log).read_text()


def test_what_is_there_stays(root):
    new.write("rule", "adax")
    (root / "gradxform/transforms/adax.py").write_text("mine")
    with pytest.raises(SystemExit, match=r"gradxform/transforms/adax.py is there already"):
        new.write("rule", "adax")
    assert (root / "gradxform/transforms/adax.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["AdaX", "ada x", "lambda", "1st", ""])
def test_a_name_must_be_one_of_python(name, root):
    with pytest.raises(SystemExit, match=r"must be a lower-case name of Python, such as adax"):
        new.write("rule", name)


def test_a_check_knows_the_files_of_a_name():
    files = [*map(str, check.files_of("adalite"))]
    folders = (
        "gradxform/optimizers",
        "gradxform/transforms",
        "tests/catalogue",
        "tests/references",
    )
    assert files == [f"{folder}/adalite.py" for folder in folders]
    assert "gradxform/distributed/averaging/tower.py" in [*map(str, check.files_of("tower"))]
    with pytest.raises(SystemExit, match="lookahaed is not a public name"):
        check.files_of("lookahaed")
