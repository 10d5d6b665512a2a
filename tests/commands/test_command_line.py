"""`python -m gradxform`, and the docstrings that it reads."""

import inspect
import json
import os
import subprocess
import sys

import pytest

import gradxform as gx
from gradxform.commands import catalog, main
from gradxform.commands.parts import BEGIN, END
from gradxform.values import docstrings
from tests.environment import ROOT, limit
from tests.public import names_of

# Not what other tests register.
ENTRIES = {entry.name: entry for entry in catalog.registered_parts() if ":" not in entry.name}


def run(capsys, *argv):
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys, *argv):
    with pytest.raises(SystemExit) as info:
        main(argv)
    out, err = capsys.readouterr()
    assert info.value.code == 2 and out == "" and err.count("\n") == 1, err
    assert err.startswith("python -m gradxform")
    return err


# --------------------------------------------------------------------------------- what is there


def test_every_public_part_is_in_the_catalog():
    public = {
        name
        for name, made in names_of(gx).items()
        if isinstance(made, type) and issubclass(made, gx.Transform | gx.Schedule | gx.Mask)
    }
    public -= {"Transform", "ArrayRule", "MatrixRule", "Schedule", "Mask"}
    aliases = {name for name in public if getattr(gx, name).__name__ != name}
    assert (public - aliases) | set(gx.OPTIMIZERS) <= set(ENTRIES)
    assert {e.name for e in catalog.registered_parts("optimizers")} == set(gx.OPTIMIZERS)
    assert ENTRIES["masked"].kind == ENTRIES["inject_hyperparams"].kind == "wrappers"
    assert ENTRIES["label_by"].kind == "masks" and ENTRIES["trace"].kind == "transforms"
    assert "injected" not in ENTRIES and "skip_not_finite" not in ENTRIES


@pytest.mark.parametrize("name", list(ENTRIES))
def test_every_part_and_its_arguments_are_documented(name):
    entry = ENTRIES[name]
    summary = entry.doc.summary
    assert 10 < len(summary) <= 100 and summary.endswith("."), summary
    if entry.kind == "optimizers":
        assert entry.doc.reference.endswith(".")
    for argument in entry.arguments:
        assert argument.text or entry.kind == "masks", argument.name
    known = {argument.name.lstrip("*") for argument in entry.arguments}
    assert {said.lstrip("*") for said in entry.doc.arguments} <= known  # nothing that is gone
    json.dumps(entry.as_data())


def test_a_docstring_is_parsed_into_its_sections():
    doc = docstrings.parse(inspect.getdoc(gx.add_decayed_weights))
    assert doc.summary.startswith("Add a multiple of the parameter to its update")
    assert (
        doc.rule.startswith("Update rule, with n = 0") and "u = g + weight_decay(n) p" in doc.rule
    )
    assert doc.notes.startswith("Before the preconditioner")
    assert list(doc.arguments)[:2] == ["weight_decay", "mask"]
    assert doc.arguments["mask"].endswith("or a function of the parameters. Defaults to all.")
    raised = "if proximal is set without flip_sign; at update, if no parameters are given."
    assert doc.raises == {"ValueError": raised}
    assert doc.reference.endswith("Regularization, 2019, Algorithm 2.")
    assert docstrings.parse("").summary == "" and docstrings.parse("One.").arguments == {}


def test_arguments_and_rules_are_looked_up_in_the_part_that_a_docstring_names():
    entry = ENTRIES["nadamw"]
    assert entry.doc.notes == "See also `adamw`."
    (decay,) = (a for a in entry.arguments if a.name == "weight_decay")
    assert "at least 0, or a schedule" in decay.text and decay.default == "0.0001"
    assert "m <- b1 m + (1 - b1) g" in ENTRIES["adam"].rule and not ENTRIES["adam"].doc.rule
    assert ENTRIES["chain"].arguments[0][:2] == ("*transforms", "")
    assert ENTRIES["scale"].arguments[0][:2] == ("step_size", None)


def test_parts_of_other_packages_are_listed_by_their_names():
    @gx.transform(name="tests:catalogued")
    class catalogued(gx.ArrayRule):
        """Do nothing, for a test."""

        def rule(self, g, p):
            return g

    assert catalog.registered_part("tests:catalogued").kind == "transforms"
    assert catalog.registered_part("tests:catalogued").doc.summary == "Do nothing, for a test."


# ----------------------------------------------------------------------------- the command line


def test_list_prints_every_part_of_the_kinds_asked_for(capsys):
    out = run(capsys, "list", "schedules", "masks")
    assert (
        f"schedules ({len(catalog.registered_parts('schedules'))})" in out
        and "optimizers" not in out
    )
    assert "  linear_schedule" in out and "written `a & b`" in out
    everything = run(capsys, "list")
    for name in ENTRIES:
        assert f"  {name}" in everything
    assert "Kingma and Ba" in everything
    assert max(map(len, everything.splitlines())) <= 100


def test_list_prints_json(capsys):
    rows = json.loads(run(capsys, "list", "wrappers", "--json"))
    assert [row["name"] for row in rows] == [e.name for e in catalog.registered_parts("wrappers")]
    assert set(rows[0]) == {"name", "kind", "summary", "reference"}


def test_list_prints_a_markdown_table(capsys):
    lines = run(capsys, "list", "masks", "--markdown").splitlines()
    assert lines[:2] == ["| name | what it does | reference |", "| --- | --- | --- |"]
    assert len(lines) == 2 + len(catalog.registered_parts("masks"))
    assert r"written `a \| b`" in "\n".join(lines)


def test_a_table_is_written_into_a_file(capsys, tmp_path):
    path = tmp_path / "page.md"
    head, tail = f"# Page\n\n{BEGIN.format('masks')}\n", f"{END.format('masks')}\n\nMore.\n"
    path.write_text(f"{head}old\n{tail}")
    argv = ("list", "masks", "--markdown", "--into", str(path))
    assert run(capsys, *argv) == f"{path}: written\n"
    assert path.read_text() == head + run(capsys, *argv[:3]) + tail
    assert run(capsys, *argv) == f"{path}: unchanged\n"
    assert "lacks the lines '<!-- begin schedules -->'" in refused(
        capsys, "list", "schedules", "--markdown", "--into", str(path)
    )
    assert "No such file" in refused(capsys, *argv[:4], str(tmp_path / "absent.md"))
    assert "--into goes with" in refused(capsys, "list", "--into", str(path))


def test_a_page_lists_the_optimizers(capsys):
    text = (ROOT / "docs" / "optimizers.md").read_text()
    _, _, rest = text.partition(BEGIN.format("optimizers") + "\n")
    table, _, _ = rest.partition(END.format("optimizers"))
    said = "Write it anew: make tables"
    assert table == run(capsys, "list", "optimizers", "--markdown"), said


def test_show_prints_the_signature_the_rule_and_the_arguments(capsys):
    out = run(capsys, "show", "adamw")
    assert out.startswith("adamw(learning_rate, b1=0.9, b2=0.999, eps=1e-08,")
    for words in (
        "Adam with decoupled weight decay",
        "    add_decayed_weights     weight_decay=0.0001",
        "v <- b2 v + (1 - b2) |g|^2",
        "  learning_rate = required\n      at least 0, or a schedule; it multiplies the decay too.",
        "Reference:\n  Loshchilov and Hutter",
    ):
        assert words in out
    assert "Raises:\n  ValueError: if a part changes" in run(capsys, "show", "chain")
    data = json.loads(run(capsys, "show", "scale_by_lion", "--json"))
    assert data["rule"].startswith("Update rule") and data["arguments"][0]["default"] == "0.9"


@pytest.mark.parametrize("name", list(ENTRIES))
def test_everything_can_be_shown(name, capsys):
    out = run(capsys, "show", name)
    assert out.startswith(f"{name}(") and ENTRIES[name].doc.summary.split()[0] in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("show adamm", "nothing is named 'adamm'. Did you mean 'adam'"),
        ("show adamww", "nothing is named 'adamww'. Did you mean 'adamw'"),
        ("show qqqqq", "nothing is named 'qqqqq'. List all with: python -m gradxform list"),
        ("show", "required: NAME"),
        ("show adam adamw", "unknown argument 'adamw'. See --help."),
        ("list optimizer", "no kind 'optimizer'. Did you mean 'optimizers'?"),
        ("list qqqqq", "no kind 'qqqqq'. There are optimizers, transforms,"),
        ("list lr", "no kind 'lr'. It is a name; see: python -m gradxform find lr"),
        ("list --jsn", "unknown argument '--jsn'. Did you mean '--json'?"),
        ("list --json --markdown", "not allowed with argument"),
        ("lst", "no command 'lst'. Did you mean 'list'?"),
        ("qqqqq", "no command 'qqqqq'. There are list, find, show, describe, plot and port."),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line_with_a_suggestion(argv, words, capsys):
    assert words in refused(capsys, *argv.split())


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/usr/bin/gradxform", "gradxform"),
        ("gradxform.exe", "gradxform"),
        ("/site-packages/gradxform/__main__.py", "python -m gradxform"),
    ],
)
def test_the_program_has_the_name_by_which_it_was_called(called, program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [called])
    assert run(capsys).startswith(f"usage: {program} [-h]")
    for words in ("show qqqqq", "find qqqqq", "list lr", "describe qqqqq(1)"):
        with pytest.raises(SystemExit):
            main(words.split())
        before, _, after = capsys.readouterr().err.partition(": error: ")
        assert before == f"{program} {words.split()[0]}" and f": {program} " in after


@pytest.mark.parametrize("words", ["find lr", "show lr"])
def test_a_word_of_other_libraries_is_answered(words, capsys):
    out = run(capsys, *words.split())
    assert "gx.current_learning_rate(tx, state)" in out and "'learning_rate'" in out


def test_without_a_command_it_prints_the_help(capsys):
    assert "COMMAND" in run(capsys)
    with pytest.raises(SystemExit) as info:
        main(["--version"])
    assert info.value.code == 0 and gx.__version__ in capsys.readouterr().out


def test_a_closed_pipe_is_not_an_error():
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    writer = subprocess.Popen(
        [sys.executable, "-m", "gradxform", "list"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout is not None
    writer.stdout.close()  # before anything is written
    try:
        error = writer.communicate(timeout=limit(40, 120))[1]
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0 and error == b""
