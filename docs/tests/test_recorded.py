"""The runs that the site shows: ten of them, drawn by a seed, are still what the file says.

`GRADXFORM_DOCS_SEED=7 make docs-test ARGS="-k recorded"` draws those of the seed 7 again.
"""

import json
import os
import random

import numpy as np
import pytest

from docs.site import recorded

SEED = int(os.environ.get("GRADXFORM_DOCS_SEED", random.SystemRandom().randrange(10**6)))
RUNS = 10


@pytest.fixture(scope="module")
def lines():
    return recorded.read()


def test_every_part_has_runs_of_its_sample(lines):
    assert list(lines) == [part.name for part in recorded.parts()]


def test_ten_recorded_runs_are_what_parts_do_now(lines):
    print(f"GRADXFORM_DOCS_SEED={SEED}")
    names = random.Random(SEED).sample(sorted(lines), RUNS)
    for line in recorded.measured(names):
        try:
            assert_same(lines[line["name"]], json.loads(json.dumps(line)))
        except AssertionError as error:
            command = f'make docs-data ARGS="{line["name"]}"'
            pytest.fail(
                f"{line['name']} does not do what the site shows (GRADXFORM_DOCS_SEED={SEED}).\n"
                f"If it is meant to, run `{command}`.\n{error}"
            )


def assert_same(shown, now):
    """Two lines of a part show the same.

    Versions of XLA sum in other orders, and a path that is not stable multiplies the difference:
    two rates that are nearly as good change places, and single points cannot be compared. A reader
    sees how well the best rate does, and where a path sets out for.
    """
    for key in ("config", "badges"):
        assert now[key] == shown[key], key
    a, b = shown["run"], now["run"]
    assert a.keys() == b.keys()
    if not a:
        return
    assert_near(a["race"]["loss"][-1], b["race"]["loss"][-1], "the loss on the digits")
    assert_near(a["race"]["loss"][0], b["race"]["loss"][0], "the first loss on the digits")
    assert b["race"]["rates"] == a["race"]["rates"]
    for name, path in a["paths"].items():
        other = b["paths"][name]
        assert (path["evaluated"] is None) == (other["evaluated"] is None)
        if path["rate"] == other["rate"]:
            np.testing.assert_allclose(other["path"][:5], path["path"][:5], atol=0.02, err_msg=name)


def assert_near(x, y, what):
    assert abs(x - y) <= 0.02 + 0.1 * abs(x), f"{what}: the site shows {x}, and it is {y}"


def test_a_changed_sample_is_noticed(monkeypatch, tmp_path, lines):
    """What is wrong with the file is said with the remedy."""
    monkeypatch.setattr(recorded, "FILE", tmp_path / "parts.jsonl")
    others = dict(lines)
    del others["adam"]
    recorded.write(others)
    with pytest.raises(ValueError, match=r"no runs of adam; run `make docs-data ARGS=\"adam\"`"):
        recorded.read()
    recorded.write(lines | {"adam": lines["adam"] | {"config": "adam(0.1)"}})
    with pytest.raises(ValueError, match=r"runs of adam\(0.1\), and the sample of adam is now"):
        recorded.read()
    recorded.write(lines | {"adm": lines["adam"] | {"name": "adm"}})
    with pytest.raises(ValueError, match="no part named adm; remove its line"):
        recorded.read()
