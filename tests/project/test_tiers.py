"""The tiers: `make test` and `make test-rest` share no test, and together run all."""

import re
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from tests import durations, tiers, touched
from tests.environment import ROOT, environment, limit
from tests.project import left_out

PYTEST = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
KINDS = "", left_out.SAID


def target(name):
    """The options of pytest in the recipe of a make target, without `ARGS`."""
    recipe = re.search(rf"^{name}: .*\n\t(.*)\n", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return re.search(r'-m ("[^"]*"|\w+)', recipe[1])[1].strip('"')


def collected(*argv):
    """The tests that pytest collects, and those that it leaves out."""
    done = subprocess.run(
        [*PYTEST, "-p", "tests.project.left_out", *argv],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit(80, 240),
    )
    assert done.returncode == 0, done.stdout[-2000:]
    kinds = (re.findall(rf"^{kind}(tests/.*::.*)$", done.stdout, re.MULTILINE) for kind in KINDS)
    return tuple(sorted(kind) for kind in kinds)


def test_every_test_belongs_to_one_tier():
    assert target("test") == f"not {target('test-rest')}"
    quick, rest = collected("-m", target("test"))
    assert len(quick) > 1000 and rest  # a change of most files leaves few
    assert len({*quick, *rest}) == len(quick) + len(rest)


def test_the_file_of_durations_is_of_tests_that_exist():
    """A renamed test would count as quick."""
    sources = {}
    for name in durations.read():
        file, _, test = name.partition("::")
        if file not in sources:
            assert (ROOT / file).is_file(), f"{file} is gone: run `make durations`"
            sources[file] = (ROOT / file).read_text()
        function = test.partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in sources[file], f"{name} is gone: run `make durations`"


class Item:
    """What the tiers read of a test."""

    def __init__(self, nodeid, marks=(), **params):
        self.nodeid, self.marks = nodeid, marks
        file, _, test = nodeid.partition("::")
        self.path, self.originalname = ROOT / file, test.partition("[")[0]
        if params:
            self.callspec = type("Callspec", (), {"params": params})

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.marks = (*self.marks, mark.name)


def promise(row, name):
    return Item(f"tests/test_contract.py::{tiers.PROMISE}[{row}-{name}]", name=row, promise=name)


@pytest.fixture
def long(monkeypatch):
    """Whether a test is long, for these durations and this change."""

    def found(item, seconds, files=()):
        monkeypatch.setattr(durations, "read", lambda: seconds)
        monkeypatch.setattr(touched, "changed", lambda: [PurePosixPath(x) for x in files])
        tiers.mark_long([item])
        return "long" in item.marks

    return found


def test_a_test_is_long_by_what_it_costs(long):
    name = "tests/tree/test_tree.py::test_sum"
    assert not long(Item(name), {})  # nobody has measured it
    assert not long(Item(name), {name: tiers.LONGEST_FUNCTION})
    assert long(Item(name), {name: tiers.LONGEST_FUNCTION + 0.1})
    for mark in ("end_to_end", "reference"):
        assert not long(Item(name, marks=(mark,)), {name: 100.0})


def test_of_a_function_the_cheapest_cases_are_quick(long):
    names = [f"tests/tree/test_tree.py::test_sum[{i}]" for i in range(4)]
    third = tiers.LONGEST_FUNCTION / 3
    costs = dict(zip(names, (4 * third, 0.9 * third, third, third), strict=True))
    assert [long(Item(name), costs) for name in names] == [True, False, False, False]
    costs[names[3]] *= 2
    assert [long(Item(name), costs) for name in names] == [True, False, False, True]
    assert not long(Item("tests/tree/test_tree.py::test_max[3]"), costs)


def test_a_case_takes_what_is_usual_of_its_function_unless_it_stands_out(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    name = "tests/a.py::test_a"
    measured = {f"{name}[{i}]": 0.3 for i in range(5)} | {f"{name}[x]": 2.0, f"{name}[y]": 0.0}
    durations.write(measured | {"tests/a.py::test_b": 0.5, "tests/a.py::test_c": 0.001}, "anew")
    stored = {f"{name}[*]": 0.3, f"{name}[x]": 2.0, "tests/a.py::test_b": 0.5}
    assert durations.read() == stored  # what is 0 does not stand out enough
    taken = durations.of([*measured, f"{name}[new]", "tests/a.py::test_c"], stored)
    assert taken == measured | {f"{name}[y]": 0.3, f"{name}[new]": 0.3, "tests/a.py::test_b": 0.5}
    durations.write({f"{name}[1]": 0.1, f"{name}[2]": 3.0, f"{name}[x]": 1.0}, "longer")
    assert durations.read() == stored | {f"{name}[2]": 3.0}


def test_the_promises_of_a_part_are_long_together(long):
    row = "scale_by_adam/nesterov"
    half = tiers.LONGEST_PART / 2 + 0.1
    costs = {promise(x, "holes_pass").nodeid: half for x in ("scale_by_adam", row)}
    assert long(promise(row, "state_is_a_scan_carry"), costs)
    assert not long(promise(row, "follows_its_reference"), costs)
    assert not long(promise("scale_by_adamax", "state_is_a_scan_carry"), costs)
    assert long(promise("scale_by_adamax", "vmaps_over_gradients"), {})


def test_replicas_are_quick_in_one_mode(long):
    file = "tests/distributed/replicas/test_guards.py"
    assert not long(Item(f"{file}::test_a[vmap]", mode="vmap"), {})
    assert long(Item(f"{file}::test_a[pmap]", mode="pmap"), {})
    assert not long(Item(f"{file}::test_a[vmap]", mode="vmap"), {f"{file}::test_a[vmap]": 100.0})
    assert long(Item(f"{file}::test_a[jit]"), {f"{file}::test_a[jit]": 100.0})
    assert not long(Item("tests/tree/test_tree.py::test_a[fan_in]", mode="fan_in"), {})


@pytest.mark.parametrize(
    ("changed", "item"),
    [
        ("gradxform/transforms/lbfgs/lbfgsb.py", promise("step_by_lbfgsb", "holes_pass")),
        ("gradxform/optimizers/lbfgsb.py", promise("lbfgsb", "holes_pass")),
        ("tests/catalogue/lbfgsb.py", promise("step_by_lbfgsb", "holes_pass")),
        ("gradxform/wrappers/lookahead.py", promise("lookahead", "vmaps_over_gradients")),
        ("gradxform/wrappers/hyperparams/inject.py", Item("tests/wrappers/test_inject.py::test_a")),
        ("tests/wrappers/test_inject.py", Item("tests/wrappers/test_inject.py::test_a")),
        ("tests/distributed/modes.py", Item("tests/distributed/replicas/test_guards.py::test_a")),
        ("gradxform/leaves/masks.py", Item("tests/leaves/test_masks.py::test_a")),
        ("examples/finetune.py", Item("tests/examples/test_finetune.py::test_a")),
        ("tests/golden/behaviour.json", Item("tests/compat/test_configs.py::test_a")),
    ],
)
def test_what_a_change_touches_is_not_long(changed, item, long):
    costs = {item.nodeid: 100.0}
    assert long(item, costs)
    item.marks = ()
    assert not long(item, costs, [changed])


def test_a_change_touches_few_other_tests(long):
    other = promise("scale_by_adam", "vmaps_over_gradients")
    assert long(other, {}, ["gradxform/transforms/lbfgs/lbfgsb.py", "README.md", "Makefile"])
    name = "tests/leaves/test_masks.py::test_a"
    assert long(Item(name), {name: 100.0}, ["gradxform/transforms/adam.py"])


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit on its main branch; what is returned runs git there."""
    monkeypatch.setattr(touched, "ROOT", tmp_path)

    def git(*argv):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *argv], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    (tmp_path / "a.py").write_text("")
    git("add", ".")
    git("commit", "-m", "Begin")
    return git


def test_a_change_is_what_differs_from_the_main_branch(repository, tmp_path):
    assert touched.changed() == []
    (tmp_path / "new é.py").write_text("")
    assert touched.changed() == [PurePosixPath("new é.py")]
    repository("checkout", "-b", "mine")
    repository("add", ".")
    repository("commit", "-m", "Add a file")
    (tmp_path / "a.py").write_text("1")
    assert touched.changed() == [PurePosixPath("a.py"), PurePosixPath("new é.py")]
    repository("checkout", "--detach")
    assert touched.changed() == []


def test_without_git_nothing_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    assert touched.changed() == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert touched.changed() == []
