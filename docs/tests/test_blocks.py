"""The runner of pages finds what is wrong with a page."""

import pytest

from docs.site import blocks


def page(tmp_path, text):
    """Write a page, and return it with an empty folder to run it in."""
    path, folder = tmp_path / "page.md", tmp_path / "run"
    path.write_text(text)
    folder.mkdir(exist_ok=True)
    return path, folder


def block(code, shown=None, indent=""):
    text = f"```python\n{code}\n```\n"
    if shown is not None:
        text += f"\n```text\n{shown}\n```\n"
    return "".join(indent + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 0.0104", "loss 0.0103\n"),
        ("1.234e-05", "1.24e-05"),
        ("[ 1.  2.]", "[ 1. 2.]"),
        ("took ... s, ok", "took 12.7 s, ok"),
        ("-0.0000", "0.0000"),
        ("it's 0.04 s", "it's 0.05 s"),
        ('"version": "...", "b1": 0.9', '"version": "0.3.0.dev0", "b1": 0.9'),
        ("{'loss': 0.04}", "{'loss': 0.05}"),
    ],
)
def test_close_outputs_are_the_same(shown, printed):
    assert blocks.same(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 0.0104", "loss 0.0114"),
        ("1.5e-05", "1.5e-04"),
        ("0.5", "nan"),
        ("0.5", "-0.5"),
        ("3 steps", "4 steps"),
        ("True", "False"),
        ("True", "True\nTrue"),
        ("a b", "ab"),
        ("version 1.2.3", "version 1.2.4"),
        ("version 0.1.0", "version 0.2.0"),
        ('"version": "0.1.0"', '"version": "0.2.0"'),
        ("'a rate of 0.1'", "'a rate of 0.2'"),
        ('"b1": 0.9', '"b1": 0.8'),
        ("adam(b1=0.9, b2=0.999)", "adam(b1=0.8, b2=0.999)"),
        ("sgd(learning_rate=-0.1)", "sgd(learning_rate=-0.2)"),
        ("eps=1e-08", "eps=2e-08"),
        ("took ... s, ok", "took 12.7 s"),
    ],
)
def test_other_outputs_are_not(shown, printed):
    assert not blocks.same(shown, printed)


def test_blocks_share_the_module_of_the_page(tmp_path):
    text = block("import pickle\nclass A:\n    pass") + block(
        "print(pickle.loads(pickle.dumps(A())).__class__ is A)", "True"
    )
    path, folder = page(tmp_path, text)
    assert [ran.printed for ran in blocks.run(path, folder)] == ["", "True\n"]


def test_an_output_that_is_not_shown_so_is_found(tmp_path):
    path, folder = page(tmp_path, "# A\n\n" + block("print(0.5)", "0.25"))
    with pytest.raises(blocks.PageError, match=r"(?s)page\.md, line 4: .*0\.25.*0\.5"):
        blocks.run(path, folder)


def test_a_block_that_fails_is_found(tmp_path):
    path, folder = page(tmp_path, block("x = 1") + "\n" + block("print(y)"))
    with pytest.raises(blocks.PageError, match="line 6: the block ends with NameError"):
        blocks.run(path, folder)


def test_a_page_without_code_runs(tmp_path):
    path, folder = page(tmp_path, "# A page\n\nWords.\n")
    assert blocks.run(path, folder) == [] and blocks.pictures(path, tmp_path) == {}


def test_a_new_page_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(blocks, "DOCS", tmp_path)
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "new.md").write_text("# New\n")
    assert tmp_path / "guides" / "new.md" in blocks.pages()


def test_a_tab_runs_in_a_copy_of_the_page(tmp_path):
    text = block("x = 1")
    for title in ("One", "Two"):
        text += f'\n=== "{title}"\n\n    Words.\n\n'
        text += block("x += 1", indent="    ") + "\n" + block("print(x)", "2", indent="    ")
    text += "\n" + block("print(x)", "1")
    path, folder = page(tmp_path, text)
    assert [ran.block.tab and ran.block.tab[1] for ran in blocks.run(path, folder)] == (
        [None, "One", "One", "Two", "Two", None]
    )
    path.write_text(text.replace("    2\n", "    3\n"))
    with pytest.raises(blocks.PageError):
        blocks.run(path, folder)


def test_a_block_in_a_list_belongs_to_the_page(tmp_path):
    text = "- one:\n\n" + block("if True:\n    x = 1", indent="  ") + "\n" + block("print(x)", "1")
    path, folder = page(tmp_path, text)
    assert len(blocks.run(path, folder)) == 2


def test_a_program_is_written_and_does_not_run(tmp_path):
    path, folder = page(tmp_path, '```python title="center.py"\nraise SystemExit\n```\n')
    assert blocks.run(path, folder) == []
    assert (folder / "center.py").read_text() == "raise SystemExit\n"


def test_a_command_prints_what_the_page_shows(tmp_path):
    text = "```console\n$ make test\n$ python -m gradxform --version\n{}\n```\n"
    path, folder = page(tmp_path, text.format("gradxform ...\n"))
    [ran] = blocks.run(path, folder)
    assert ran.printed.startswith("gradxform ")
    path.write_text(text.format("something else"))
    with pytest.raises(blocks.PageError, match="--version"):
        blocks.run(path, folder)


SAVES = "from pathlib import Path\nprint('drawn')\n_ = Path('a.svg').write_text('<svg/>')"


def test_the_pictures_of_a_page_are_drawn_once(tmp_path):
    text = block(SAVES, "drawn") + "\n![A line.](pictures/page/a.svg)\n"
    path, _ = page(tmp_path, text)
    [(named, file)] = blocks.pictures(path, tmp_path / "cache").items()
    assert named == "pictures/page/a.svg" and file.read_text() == "<svg/>"
    file.write_text("kept")
    assert blocks.pictures(path, tmp_path / "cache")[named].read_text() == "kept"
    path.write_text(text.replace("<svg/>", "<svg></svg>"))
    assert blocks.pictures(path, tmp_path / "cache")[named].read_text() == "<svg></svg>"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("pictures/page/b.svg", r"does not save the picture b\.svg"),
        ("pictures/other/a.svg", "is not in pictures/page/"),
    ],
)
def test_a_picture_that_is_not_drawn_is_found(tmp_path, named, message):
    path, folder = page(tmp_path, block(SAVES) + f"\n![A line.]({named})\n")
    with pytest.raises(blocks.PageError, match=message):
        blocks.run(path, folder)
    with pytest.raises(blocks.PageError, match=message):
        blocks.pictures(path, tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())
