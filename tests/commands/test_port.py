"""`port`: uses of Optax in Python files, what becomes of them, and the table of differences."""

import ast
import fnmatch
import importlib
import importlib.metadata
import inspect
import json
import pathlib
import subprocess
import sys

import jax
import pytest

import gradxform as gx
from gradxform import port
from gradxform.commands import main
from gradxform.commands.port import calls, differences
from gradxform.commands.port.imports import with_changed_imports
from gradxform.commands.port.names import FORWARDED, MISSING, SAME, find_optax_name
from gradxform.commands.port.uses import find_uses
from tests.commands.test_command_line import refused
from tests.environment import ROOT, limit


def ported(tmp_path, source):
    path = tmp_path / "train.py"
    path.write_text(source)
    return port.port(path)


def uses_in(tmp_path, source):
    """Line, name and status of each use."""
    return [(use.line, use.name, use.status) for use in ported(tmp_path, source).uses]


def rewritten(source):
    tree = ast.parse(source)
    new = with_changed_imports(source, tree, find_uses(tree))
    ast.parse(new)
    return new


# -------------------------------------------------------------------------- the installed Optax

MODULES = ["", "contrib", "schedules", "transforms", "tree", "tree_utils", "projections"]
MODULES += ["losses", "assignment", "perturbations", "second_order", "microbatching"]
MODULES += ["experimental"]


def names_of(module):
    """The public names of a module of the installed Optax."""
    found = importlib.import_module(f"optax.{module}".rstrip("."))
    for name in dir(found):
        part = getattr(found, name)
        if not name.startswith("_") and name not in ("functools", "typing", "jax", "jnp", "chex"):
            if not getattr(part, "__module__", "optax").startswith("typing"):
                yield f"{module}.{name}".lstrip(".")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_installed_optax_is_found(module):
    if importlib.metadata.version("optax") != "0.2.8":
        pytest.skip("the names are those of Optax 0.2.8")
    for name in names_of(module):
        found = find_optax_name(name)
        assert found.status != MISSING, (name, found.remedy)
        if found.status == SAME:  # it is there under the name that is said
            home, _, last = found.here.rpartition(".")
            assert hasattr(importlib.import_module(home), last), found.here
        else:
            assert found.here == f"gradxform.{name}"


def test_optax_is_not_imported_and_nothing_is_run(tmp_path):
    (tmp_path / "train.py").write_text("import optax\noptax.adam(1)\nraise SystemExit(9)\n")
    code = (
        "import sys; sys.modules['optax'] = None\n"
        "from gradxform.commands import main\n"
        "sys.exit(main(['port', 'train.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit(20, 120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "optax.adam  train.py:2" in done.stdout


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("adam", SAME, ""),
        ("contrib.muon", SAME, ""),
        ("adam.__name__", SAME, ""),
        ("huber_loss", FORWARDED, ""),
        ("losses.huber_loss", FORWARDED, ""),
        ("adamm", MISSING, "Did you mean 'adam"),
        ("contrib.adam", MISSING, "it is gradxform.adam here"),
        ("contrib.qqqq", MISSING, "keep it from Optax"),
        ("_src.base.GradientTransformation", MISSING, "use optax.GradientTransformation"),
        ("_src", MISSING, "private to Optax: keep the import"),
    ],
)
def test_a_name_is_the_same_or_forwarded_or_missing(name, status, words):
    found = find_optax_name(name)
    assert found.status == status and words in found.remedy
    assert bool(found.here) == (status != MISSING)


# ------------------------------------------------------------------------------------------ uses

FORMS = {
    "import optax\nx = optax.adam": ["adam"],
    "import optax as ox\nx = ox.contrib.muon(0.1)": ["contrib.muon"],
    "from optax import adam as a\nx = [a(0.1), a]": ["adam", "adam"],
    "from optax import contrib\ncontrib.muon": ["contrib.muon"],
    "import optax.contrib\noptax.contrib.muon": ["contrib.muon"],
    "import optax.contrib as oc\noc.muon": ["contrib.muon"],
    "from optax.schedules import linear_schedule as s\ns": ["schedules.linear_schedule"],
    "import optax\nisinstance(x, (optax.EmptyState, int))": ["EmptyState"],
    "import optax\ndef f(x: 'optax.Params') -> optax.Updates: ...": ["Params", "Updates"],
    "import optax\nx: 'dict[str, optax.Params]' = 1": ["Params"],
    "import optax\nclass A(optax.Schedule): ...": ["Schedule"],
    "import optax\n@optax.inject_hyperparams\ndef f(): ...": ["inject_hyperparams"],
    "import optax\nx = getattr(optax, 'adam')": ["adam"],
    "import optax\nf(optax.adam(optax.linear_schedule(1, 0, 9)).init)": ["adam", "linear_schedule"],
    "import optax\nx = f'{optax.adam}'": ["adam"],
    "import optax\nlambda optax: optax.adam": [],
    "import optax\ndef f(optax=optax.adam): return optax.sgd": ["adam"],
    "import optax": [],
    "from optax import adam": ["adam"],
    "def f():\n    import optax\n    return optax.adam": ["adam"],
    "try:\n    import optax\nexcept ImportError: ...\noptax.adam": ["adam"],
    "import optaxx, my.optax\noptaxx.adam": [],
    "from .optax import adam\nadam": [],
    "import optax\noptax = 3": [],
}


@pytest.mark.parametrize("source", list(FORMS))
def test_every_form_of_use_is_found(source):
    found = find_uses(ast.parse(source))
    names = [use.name for use in found]
    assert sorted(names) == sorted(FORMS[source])


def test_uses_have_their_lines_and_what_they_are_within(tmp_path):
    source = "import optax\n\nx = optax.adam(0.1)\nisinstance(x, optax.GradientTransformation)\n"
    adam, kind = ported(tmp_path, source).uses
    assert (adam.line, adam.column, adam.status) == (3, 5, "same")
    assert (kind.line, kind.status) == (4, "different")
    [row] = kind.differences
    assert row.where.startswith("`isinstance(tx")
    annotated = "import optax\ntx: optax.GradientTransformation = None\n"
    assert uses_in(tmp_path, annotated) == [(2, "optax.GradientTransformation", "same")]


def test_a_star_import_is_reported(tmp_path):
    assert uses_in(tmp_path, "from optax import *\nadam(0.1)\n") == [(1, "optax.*", "star")]


@pytest.mark.parametrize(
    ("call", "words", "numbers"),
    [
        ("adadelta()", "`adadelta()` without", True),
        ("adam(0.1, eps=1 - 1)", "with eps=0", True),
        ("adam(0.1, eps=10**-8)", None, False),
        ("adam(0.1, eps=0**-1)", "with eps=0", True),  # not a number: an error where it runs
        ("adam(0.1, eps=(-1) ** 0.5)", "with eps=0", True),
        ("clip(-(-1 / 2))", None, False),
        ("clip(1e39)", "bound of infinity", True),
        ("adadelta(0.1)", None, False),
        ("adadelta(learning_rate=lr)", None, False),
        ("adadelta(None)", "`adadelta()` without", True),
        ("adadelta(**kwargs)", "`adadelta()` without", True),
        ("adam(0.1, eps=0.0)", "with eps=0", True),
        ("adam(0.1, 0.9, 0.999, 0)", "with eps=0", True),
        ("adam(0.1, eps=1e-8)", None, False),
        ("adam(0.1)", None, False),
        ("adam(0.1, eps=eps)", "with eps=0", True),  # it may be 0
        ("clip_by_block_rms(float('inf'))", "bound of infinity", True),
        ("clip_by_block_rms(jnp.inf)", "bound of infinity", True),
        ("clip_by_block_rms(1.0)", None, False),
        ("sgd(0.1, nesterov=True)", "without `momentum`", False),
        ("sgd(0.1, 0.9, nesterov=True)", None, False),
        ("sgd(0.1, None, nesterov=False)", None, False),
        ("contrib.muon(0.1, ns_steps=3, ns_coeffs=c)", "`ns_coeffs` than", False),
        ("contrib.reduce_on_plateau(rtol=1)", "`rtol=1`", True),
        ("contrib.sophia(0.1, eps=0)", "accepts `eps=0`", False),
        ("projections.projection_simplex(x)", "`projections.projection_simplex`", True),
        ("tree_utils.tree_norm(x)", "`tree.norm`", True),
        ("schedules.polynomial_schedule(1, 0, power, 9)", "`polynomial_schedule`", False),
        ("schedules.polynomial_schedule(1, 0, 2, 9)", None, False),
        ("contrib.dog(init_step=('learning_rate', x))", "first gradient of zeros", True),
    ],
)
def test_the_differences_are_those_of_this_call(call, words, numbers, tmp_path):
    uses = ported(tmp_path, f"import optax\nx = optax.{call}\n").uses
    rows = [row for use in uses for row in use.differences if use.column == 5]
    said = [f"{row.where} {row.optax}" for row in rows]
    if words is None:
        assert uses[0].status == "same" and not rows, said
        return
    assert any(words in text for text in said), said
    assert any(row.numbers for row in rows) == numbers
    assert [row.numbers for row in rows] == sorted((row.numbers for row in rows), reverse=True)


# For each kind of condition: a source of the argument that it concerns, and one that it does not.
SIDES = {
    "value": lambda x: (repr(x), "False" if x is True else "[{}]" if x == [] else "0.5"),
    "above": lambda x: (repr(2 * x).replace("inf", "float('inf')"), repr(0.5 * x)),
    "below": lambda x: (repr(x - 1), repr(x + 0.5)),
    "has": lambda x: (f"({x!r}, 1)", "('other', 1)"),
    "given": lambda x: ("x", None) if x else (None, "True"),
}
CONDITIONAL = [
    row for row in differences.differences() if any("argument" in c for cs in row.when for c in cs)
]


def asked(condition):
    """The argument of a condition, what is asked of it, and what is expected."""
    return (condition["argument"], *list(condition.items())[-1])


def parts_of(row):
    """The names that a row is about, with all their modules, and the parameters of each."""
    for name in row.names:
        for full in (name, f"contrib.{name}"):
            found = find_optax_name(full)
            if "*" not in name and found.status == SAME and callable(found.part):
                yield full, inspect.signature(found.part).parameters
                break


def calls_of(row, name, parameters):
    """Calls of a part, with whether the row is about each: both sides of each condition."""
    lists = [[asked(c) for c in choices if c["argument"] in parameters] for choices in row.when]

    def call(sources):
        given = [f"{k}={x}" for k, x in sources.items() if x is not None]
        return f"optax.{name}({', '.join(given)})"

    for i, choices in enumerate(lists):
        others = {}  # what holds of the other lists
        for argument, test, expected in (other[0] for other in lists[:i] + lists[i + 1 :] if other):
            others[argument] = SIDES[test](expected)[0]
        for argument, test, expected in choices:
            inside, outside = SIDES[test](expected)
            yield call(others | {argument: inside}), True
            yield call(others | {argument: outside}), False
            if test != "given":  # what the source does not say may be it
                yield call(others | {argument: "unknown"}), True


@pytest.mark.parametrize("row", CONDITIONAL, ids=lambda row: row.where[:40])
def test_a_row_is_said_where_it_may_concern_the_call_and_only_there(row, tmp_path):
    tried = [case for part in parts_of(row) for case in calls_of(row, *part)]
    assert tried or any("*" in name for name in row.names)
    for call, expected in tried:
        uses = ported(tmp_path, f"import optax\n{call}\n").uses
        assert [row in use.differences for use in uses] == [expected], call


def test_no_default_is_what_a_condition_concerns():
    for row in CONDITIONAL:
        for name, parameters in parts_of(row):
            conditions = [asked(c) for cs in row.when for c in cs]
            for argument, test, expected in conditions:
                left_out = (argument, "given", False) in conditions
                if test != "given" and argument in parameters and not left_out:
                    default = parameters[argument].default
                    assert not calls.TESTS[test](default, expected), (name, argument)


@pytest.mark.parametrize(
    ("before", "eps", "concerned"),
    [
        ("EPS = 1e-8", "EPS", False),
        ("EPS: float = 1e-8", "EPS", False),
        ("EPS = 0", "EPS", True),
        ("EPS = 1e-8\nEPS = 0", "EPS", True),
        ("EPS = 1e-8\ndef f(EPS): ...", "EPS", True),
        ("EPS = 1e-8\ndef f():\n    global EPS", "EPS", True),
        ("EPS = 1e-8\nfrom config import EPS", "EPS", True),
        ("EPS = 1e-8\nfor EPS in (0,): ...", "EPS", True),
        ("EPS = OTHER = 1e-8", "OTHER", True),
        ("EPS = EPS", "EPS", True),
        ("if x:\n    EPS = 1e-8", "EPS", True),
        ("EPS = 1e-8", "EPS * 2", False),
        ("SMALL = 1e-8\nEPS = SMALL", "EPS", True),  # it does not look further
    ],
)
def test_a_constant_of_the_file_is_looked_up(before, eps, concerned, tmp_path):
    source = f"import optax\n{before}\noptax.adam(0.1, eps={eps})\n"
    [use] = ported(tmp_path, source).uses
    assert bool(use.differences) == concerned


def test_uses_are_grouped_by_what_they_take(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text(
        "import optax\noptax.contrib.sam(a, b, 1)\noptax.contrib.sophia(0.1, eps=0)\n"
        "optax.huber_loss\noptax.chain()\noptax.chain()\noptax.adam(0.1)\n"
    )
    uses = port.port(path).uses
    assert [use.status for use in uses] == [
        "different", "argument", "forwarded", "same", "same", "same",
    ]  # fmt: skip
    assert all(row.takes in ("nothing", "argument", "thought") for row in differences.differences())
    code, out, _ = run(capsys, path)
    titles = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert code == 0 and titles == [
        "to think about (1)",
        "with one argument to check (1)",
        "looked up in the installed Optax: change the import (1)",
        "same here: change the import (3)",
        "nothing to do, for the record: the calls stand, and an error says where one is wrong",
        "of every optimizer, may change your numbers",
        "6 uses of Optax in 1 file: 1 to think about, 1 with one argument to check, "
        "1 looked up in the installed Optax, 3 same here.",
    ]
    record = out.partition("nothing to do")[2].partition("of every")[0]
    assert "optax.chain (2 times)\n" in record and record.count("- `chain`.") == 1
    said = " ".join(out.split())  # lines break by the width of the terminal
    for use in uses:
        assert all(f"{row.where}. Optax" in said for row in use.differences)


# --------------------------------------------------------------------------------------- imports

REWRITTEN = {
    "import optax\noptax.adam\n": "import gradxform as optax\noptax.adam\n",
    "import optax as ox  # note\n": "import gradxform as ox  # note\n",
    "import jax, optax\n": "import jax\nimport gradxform as optax\n",
    "import optax.contrib\n": "import gradxform as optax\n",
    "import optax, optax.contrib\n": "import gradxform as optax\n",
    "import optax.contrib as oc\n": "import gradxform.contrib as oc\n",
    "from optax import adam as a, sgd\n": "from gradxform import adam as a, sgd\n",
    "from optax import adam, qqqq\n": "from gradxform import adam\nfrom optax import qqqq\n",
    "from optax import qqqq\n": "from optax import qqqq\n",
    "from optax import *\n": "from optax import *\n",
    "from optax._src import base\n": "from optax._src import base\n",
    "from optax import huber_loss, contrib\n": "from gradxform import huber_loss, contrib\n",
    "from optax.schedules import linear_schedule\n": (
        "from gradxform.schedules import linear_schedule\n"
    ),
    "from optax import (\n    adam,  # first\n    sgd,\n)\nx = 1\n": (
        "from gradxform import adam, sgd\nx = 1\n"
    ),
    "def f():\n    from optax import adam, qqqq\n    return adam\n": (
        "def f():\n    from gradxform import adam\n    from optax import qqqq\n    return adam\n"
    ),
    "try: import optax, jax\nexcept ImportError: pass\n": (
        "try: import jax; import gradxform as optax\nexcept ImportError: pass\n"
    ),
    "import optax; x = 'é', optax.qqqq, optax.adam\n": (
        "import gradxform as optax; import optax as original_optax; "
        "x = 'é', original_optax.qqqq, optax.adam\n"
    ),
    "import optax\noriginal_optax = optax.qqqq\n": (
        "import gradxform as optax\nimport optax as _original_optax\n"
        "original_optax = _original_optax.qqqq\n"
    ),
    "import optax.contrib as oc\noc.qqqq\noc.muon\n": (
        "import gradxform.contrib as oc\nimport optax.contrib as original_oc\n"
        "original_oc.qqqq\noc.muon\n"
    ),
    "import numpy\n": "import numpy\n",
}


@pytest.mark.parametrize("source", list(REWRITTEN))
def test_imports_are_changed_and_what_is_missing_stays_with_optax(source):
    assert rewritten(source) == REWRITTEN[source]


PROGRAM = """\
import jax.numpy as jnp
import optax
import optax.contrib as oc
from optax.schedules import linear_schedule as falls

params = {"w": jnp.ones((2, 2))}
tx: "optax.GradientTransformation" = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(falls(0.1, 0.0, 9)), oc.split_real_and_imaginary(
        optax.identity()))
updates, state = tx.update(params, tx.init(params), params)
params = optax.apply_updates(params, updates)
loss = optax.huber_loss(params["w"]).sum()
"""


def test_a_ported_program_runs_with_the_same_result():
    before, after = {}, {}
    with jax.numpy_dtype_promotion("standard"):  # Optax's arithmetic is not strict
        exec(compile(PROGRAM, "program", "exec"), before)
    new = rewritten(PROGRAM)
    assert "import optax\n" not in new and "gradxform.contrib as oc" in new
    exec(compile(new, "ported", "exec"), after)
    assert isinstance(after["tx"], gx.chain) and after["optax"] is gx
    assert float(before["loss"]) == pytest.approx(float(after["loss"]), rel=1e-5)


# --------------------------------------------------------------------------------- command line


def run(capsys, *argv):
    code = main(("port", *map(str, argv)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("import optax\noptax.adadelta()\noptax.adam(0.1)\n")
    (tmp_path / "pkg" / "b.py").write_text("from optax import huber_loss\n")
    (tmp_path / "pkg" / ".hidden").mkdir()
    (tmp_path / "pkg" / ".hidden" / "c.py").write_text("not python(")
    return tmp_path / "pkg"


def test_the_report_begins_with_what_takes_most(project, capsys, monkeypatch):
    monkeypatch.chdir(project.parent)
    code, out, err = run(capsys, "pkg")
    assert (code, err) == (0, "")
    titles = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert titles[:-1] == [
        "with one argument to check (1)",
        "looked up in the installed Optax: change the import (1)",
        "same here: change the import (1)",
        "of every optimizer, may change your numbers",
    ]
    assert titles[-1] == (
        "3 uses of Optax in 2 files: 1 with one argument to check, "
        "1 looked up in the installed Optax, "
        "1 same here."
    )
    assert f"optax.adadelta  {pathlib.Path('pkg', 'a.py')}:2\n" in out and "goes downhill" in out


def test_the_report_is_json_and_a_diff(project, capsys):
    code, out, _ = run(capsys, project, "--json")
    data = json.loads(out)
    assert code == 0 and data["counts"]["argument"] == 1 and len(data["files"]) == 2
    [use] = [use for use in data["uses"] if use["status"] == "argument"]
    assert use["name"] == "optax.adadelta" and use["line"] == 2
    assert use["differences"][0]["numbers"] is True
    code, out, _ = run(capsys, project / "a.py", "--diff")
    path = (project / "a.py").as_posix()
    assert code == 0 and out.startswith(f"--- {path}\n+++ {path}\n@@ -1,3 +1,3 @@\n")
    assert "-import optax\n+import gradxform as optax\n optax.adadelta()\n" in out
    (project / "a.py").write_text("import optax")
    assert run(capsys, project / "a.py", "--diff")[1].endswith(
        "-import optax\n\\ No newline at end of file\n"
        "+import gradxform as optax\n\\ No newline at end of file\n"
    )


def test_what_is_missing_or_hidden_is_told_by_the_exit_code(project, capsys):
    (project / "a.py").write_text("import optax\noptax.adamm(0.1)\n")
    code, out, _ = run(capsys, project)
    assert code == 1 and out.startswith("missing here (1)\n  optax.adamm") and "Did you" in out
    (project / "a.py").write_text("from optax import *\n")
    code, out, _ = run(capsys, project)
    assert code == 1 and out.startswith("star imports (1)")
    (project / "a.py").write_text("import numpy\n")
    assert run(capsys, project / "a.py") == (0, "1 file: Optax is not used.\n", "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def f(:\n", "a.py, line 1: not Python: "),
        (b"\xff\xfe\x00", "a.py"),
        (b"# coding: nonsense\n", "a.py: not Python: unknown encoding"),
        (b"x = 1\x00\n", "a.py"),
        (b"x = 1" + b" + 1" * 100_000, "a.py: nested too deep to be "),
        (b"x = " + b"-" * 1500 + b"1", "a.py: nested too deep to be read; split"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_line_and_others_go_on(content, words, project, capsys):
    (project / "a.py").write_bytes(content)
    code, out, err = run(capsys, project)
    assert code == 1 and err.count("\n") == 1 and words in err
    assert err.startswith("python -m gradxform port: ") and "optax.huber_loss" in out


def test_a_wrong_path_is_refused(project, capsys):
    (project / "notes.txt").write_text("import optax")
    (project / "empty").mkdir()
    for path, words in {
        "notes.txt": "not a Python file; its name must end in .py or .ipynb.",
        "absent.py": "no such file or folder.",
        "empty": "no Python files or notebooks in this folder.",
    }.items():
        assert words in refused(capsys, "port", str(project / path))
    assert "needs a PATH" in refused(capsys, "port")
    assert "--table is printed without" in refused(capsys, "port", "--table", str(project))
    assert "not allowed with" in refused(capsys, "port", str(project), "--diff", "--json")


# ------------------------------------------------------------------------------ the differences


def test_the_page_is_made_from_the_data(capsys):
    page = (ROOT / "docs" / "differences.md").read_text()
    assert run(capsys, "--table") == (0, page, ""), "Write it anew: make tables"


def test_the_rows_name_what_optax_has():
    names = {name for module in MODULES for name in names_of(module)}
    names |= {name.replace("tree_utils.tree_", "tree.") for name in names}
    names |= {name.rpartition(".")[2] for name in names}
    for row in differences.differences():
        patterns = [p for p in row.names if p != "*" and "experimental" not in p]
        for pattern in patterns:
            assert fnmatch.filter(names, pattern), (row.where, pattern)
    unnamed = [row.where for row in differences.differences() if not row.names]
    assert unnamed == [
        "a live state of gradxform in Optax",  # about the other direction
        "a parameter on which the loss does not depend",  # about jax.grad
    ]


def test_the_conditions_name_arguments_that_are_there():
    for row in CONDITIONAL:
        known = {argument for _, parameters in parts_of(row) for argument in parameters}
        for choices in row.when:
            if not any("*" in name for name in row.names):
                assert {c["argument"] for c in choices} & known, (row.where, choices)


def test_what_may_change_numbers_comes_first_on_the_page():
    titles = [section.title for section in differences.sections()]
    assert titles[:2] == ["Looked up in Optax", "What may change your numbers"]
    [section] = [s for s in differences.sections() if s.title.startswith("What may")]
    assert len(section.rows) > 40 and all(row.numbers for row in section.rows)
    general = [row for row in differences.differences() if row.is_general]
    assert len(general) > 8 and not any(row.is_about("adam") for row in general)
