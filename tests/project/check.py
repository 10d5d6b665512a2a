"""All tests of one name: `python -m tests.project.check adamw` runs them, and nothing else."""

import sys
from pathlib import PurePosixPath

import pytest

from gradxform._names.homes import homes_of
from tests import touched
from tests.environment import ROOT

# They have rows of every part; of these files only the rows of the name run.
OF_ROWS = [f"tests/test_{name}.py" for name in ("contract", "catalogue", "bad_input")]


def files_of(name: str) -> list[PurePosixPath]:
    """Return the files of a public name: its own, and those called the same.

    Raises:
      SystemExit: if nothing is called so.
    """
    home = homes_of("gradxform").get(name) or homes_of("gradxform.distributed").get(name)
    stems = {name} if home is None else {name, home.rpartition(".")[2]}
    found = [
        path.relative_to(ROOT)
        for folder in ("gradxform", "tests/catalogue", "tests/references")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.stem in stems
    ]
    if not found:
        raise SystemExit(f"{name} is not a public name of gradxform, nor that of a file in it.")
    return [PurePosixPath(path.as_posix()) for path in found]


def main(name: str, *options: str) -> int:
    files = files_of(name)
    tests = sorted(set().union(*map(touched.test_files, files)))
    print("Tests of", *files, sep="\n  ")
    chosen = [f"--concerning={file}" for file in files]
    return pytest.main([*OF_ROWS, *tests, *chosen, *options])


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
