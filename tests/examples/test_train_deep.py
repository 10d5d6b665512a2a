"""The example `examples/train_deep.py`: both kinds of step train alike, one in less memory."""

import re

import pytest
import train_deep

from tests.examples.example_runs import refused

QUICK = ["--text", "json", "--steps", "5", "--layers", "8", "--width", "64"]
QUICK += ["--length", "8", "--batch-size", "2"]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_both_kinds_of_step_train_alike_and_are_drawn(name, tmp_path, capsys):
    out = tmp_path / "x"
    assert train_deep.main([*QUICK, "--optimizer", name, "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert err == "" and "\x1b" not in said
    ends = dict(re.findall(r"^(.+): held-out loss (\S+)$", said, re.M))
    assert list(ends) == list(train_deep.KINDS)
    ordinary, in_backward = map(float, ends.values())
    assert in_backward == pytest.approx(ordinary, abs=2e-4)
    rows = (line.split("│")[1:5] for line in said.splitlines() if line.startswith("│"))
    held = {name.strip(): list(map(float, numbers)) for name, *numbers in rows}
    assert held["in backward"][0] == held["ordinary"][0]
    if name == "adamw":
        assert held["in backward"][1] < 0.9 * held["ordinary"][1]
    assert (out / "train_deep.png").read_bytes()[:4] == b"\x89PNG"


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    assert "Did you mean 'adamw'" in refused(train_deep, capsys, "--optimizer", "adamww")
    assert "--width 6: must be a multiple" in refused(train_deep, capsys, "--width", "6")
    assert "Did you mean '--steps'" in refused(train_deep, capsys, "--step", "3")
    out = [*QUICK, "--out", tmp_path]
    said = refused(train_deep, capsys, *out, "--optimizer", "prodigy")
    assert "update_in_backward" in said
    far = [*out, "--rate", "1e30"]
    assert "is nan" in refused(train_deep, capsys, *far, code=1)
