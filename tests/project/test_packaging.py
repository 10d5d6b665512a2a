"""The package as others get it: its wheel and sdist, its versions, and the pins of its tools."""

import email.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import gradxform as gx
from tests.environment import ROOT, environment, limit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]

# Trains a step and imports every module: one that needs an extra while it is imported fails here.
TRAIN = """
import importlib, importlib.util, json, pkgutil, sys
import jax, jax.numpy as jnp
import gradxform as gx

folder, *extras = json.loads(sys.argv[1])
assert gx.__file__.startswith(folder), gx.__file__
assert not [name for name in extras if importlib.util.find_spec(name)]

params = {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}
tx = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(0.1, weight_decay_mask=gx.ndim_at_least(2)))
loss = lambda p: jnp.mean((jnp.ones((4, 3)) @ p["kernel"] + p["bias"]) ** 2)
updates, state = jax.jit(tx.update)(jax.grad(loss)(params), tx.init(params), params)
assert loss(gx.apply_updates(params, updates)) < loss(params)
assert gx.from_json(gx.to_json(tx)) == tx
gx.describe(tx, params)
modules = [m.name for m in pkgutil.walk_packages(gx.__path__, "gradxform.")]
for name in modules:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(modules))
"""


def run(*argv, **options):
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=limit(20, 120), **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The paths of the sdist, and of the wheel that is built from it."""
    for name in ("build", "hatchling"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed; the extra `test` has it")
    out = tmp_path_factory.mktemp("dist")
    # Not in the root, where a folder named build would hide the module.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    assert sdist.name == f"gradxform-{gx.__version__}.tar.gz"
    assert wheel.name == f"gradxform-{gx.__version__}-py3-none-any.whl"
    return sdist, wheel


def link_requirements(requirements, folder):
    """Link to the installed packages that these and their own requirements name, and no others."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        package = metadata.distribution(requirement.name)
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(package.locate_file(name))
        link_requirements(package.requires or (), folder)


@pytest.mark.xdist_group("packaging")
def test_the_wheel_trains_with_nothing_but_what_it_requires(built, tmp_path):
    target, links = tmp_path / "target", tmp_path / "links"
    links.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", "--no-compile", "--target", target, built[1])
    [wheel] = metadata.distributions(path=[str(target)])
    link_requirements(wheel.requires, links)
    extras = {Requirement(r).name for r in wheel.requires if "extra" in r} - {"gradxform"}
    assert {"flax", "keras", "matplotlib", "optax"} < extras
    # -S: without the packages of this interpreter. -P: without the current folder.
    train = (sys.executable, "-S", "-P", "-c", TRAIN, json.dumps([str(target), *sorted(extras)]))
    path = os.pathsep.join(map(str, (target, links)))
    out = run(*train, env=environment(PYTHONPATH=path))
    assert int(out) > 200


@pytest.mark.xdist_group("packaging")
def test_the_wheel_has_the_library_only_and_its_metadata(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
        [about] = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = email.parser.Parser().parsestr(wheel.read(about).decode())
        scripts = wheel.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert {name.partition("/")[0] for name in names} == {"gradxform", about.partition("/")[0]}
    assert "gradxform/py.typed" in names
    # All that the sources have: the data that commands read, and the stubs, too.
    package = {p.relative_to(ROOT).as_posix() for p in (ROOT / "gradxform").rglob("*.*")}
    assert {name for name in package if not name.endswith(".pyc")} <= set(names)
    assert {"gradxform/commands/finding/elsewhere.json"} < package
    assert scripts.split() == ["[console_scripts]", "gradxform", "=", "gradxform.commands:main"]
    assert fields["Version"] == gx.__version__
    assert fields.get_payload() == (ROOT / "README.md").read_text()


@pytest.mark.xdist_group("packaging")
def test_the_sdist_has_every_file_of_the_repository(built):
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a checkout, or git is not installed")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    expected = {name for name in listed.splitlines() if (ROOT / name).is_file()}
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names == expected | {"PKG-INFO"}


def test_the_tools_have_the_same_versions_everywhere():
    pinned = [r for r in PROJECT["optional-dependencies"]["dev"] if "==" in r]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    used = [need for hook in hooks for need in hook["additional_dependencies"]]
    assert len(pinned) == 2 and set(used) == set(pinned)
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None and len(lint[1].splitlines()) == len(hooks)


def commands(text):
    return set(re.findall(r"\bmake ([a-z-]+)", text))


def test_the_workflows_run_what_must_hold_on_the_oldest_and_the_newest_python():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step.get("run", "") for job in ci.values() for step in job["steps"]]
    needed = commands(re.sub(r"#.*", "", (ROOT / ".ci/run").read_text()))
    assert needed and needed <= commands("\n".join(steps))
    pythons = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert ci["test"]["strategy"]["matrix"]["python"] == [pythons[0], pythons[-1]]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert release["check"]["uses"] == "./.github/workflows/ci.yml"
    assert release["release"]["needs"] == "check"


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased, *releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert unreleased.startswith("[Unreleased]\n")
    versions = []
    for part in (unreleased, *releases):
        kinds = re.findall(r"^### (.*)", part, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], part[:40]
        for body in re.split(r"^### .*\n", part, flags=re.MULTILINE)[1:]:
            entries = r"\n(?:- \S.*\n(?:  \S.*\n)*)+\n*"
            assert re.fullmatch(rf"(?:{entries})?\n*(?:#### \S.*\n{entries})*", body), body[:80]
    listed = re.findall(r"^- .*\n(?:  \S.*\n)*", unreleased, re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert not [entry for entry in listed if entry.count("\n") > 2]  # people read it
    for part in releases:
        heading = re.match(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)\n", part)
        assert heading is not None, part[:40]
        versions.append(tuple(map(int, heading[1].split("."))))
    assert versions == sorted(set(versions), reverse=True)
    # What is not released builds as a version before the next one, and after the newest.
    here, newest = Version(gx.__version__), Version(".".join(map(str, versions[0])))
    has_entries = "\n- " in unreleased
    assert here.is_devrelease is has_entries
    assert here > newest if has_entries else here == newest


def test_the_addresses_of_the_project_are_files_that_others_get():
    assert PROJECT["urls"] and all((ROOT / path).is_file() for path in PROJECT["urls"].values())


def test_the_citation_is_of_the_newest_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert Version(citation["version"]) <= Version(gx.__version__)
    assert not Version(citation["version"]).is_prerelease
    assert citation["license"] == PROJECT["license"]
    heading = f"## [{citation['version']}] - {citation['date-released']}\n"
    assert heading in (ROOT / "CHANGELOG.md").read_text()
