"""The example `examples/low_memory.py`: trains every run, counts its bytes, and refuses."""

import re

import jax
import low_memory
import pytest

from tests.examples.example_runs import refused

QUICK = ["--text", "json", "--steps", "6", "--layers", "1", "--width", "32"]
QUICK += ["--length", "16", "--batch-size", "4"]


def test_every_run_trains_and_is_drawn(tmp_path, capsys):
    out = tmp_path / "x"
    with jax.numpy_dtype_promotion("standard"):  # Flax's layers in bfloat16 need it
        assert low_memory.main([*QUICK, "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert err == "" and "\x1b" not in said
    ends = {k: float(v) for k, v in re.findall(r"^(\S+): held-out loss (\S+)$", said, re.M)}
    assert list(ends) == list(low_memory.RUNS)
    for loss in ends.values():
        assert loss == pytest.approx(ends["float32"], rel=0.02)
    rows = (line.split("│")[1:6] for line in said.splitlines() if line.startswith("│"))
    held = {name.strip(): list(map(int, numbers)) for name, *numbers in rows}
    params, state, _, _ = held["float32"]
    assert state == pytest.approx(2 * params, abs=2)
    assert held["bf16-state"][1] == pytest.approx(state / 2, abs=2)
    assert held["4-bit"][1] < held["8-bit"][1] < 0.75 * state  # small arrays keep float32
    assert held["masters"][:2] == [held["bf16"][0], pytest.approx(state + params, abs=2)]
    assert held["remainders"][1] == pytest.approx(state + params / 2, abs=2)
    assert (out / "low_memory.png").read_bytes()[:4] == b"\x89PNG"


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    assert "Did you mean 'masters'?" in refused(low_memory, capsys, "--runs", "master")
    assert "There are float32, " in refused(low_memory, capsys, "--runs", "x,float32")
    assert "at least one" in refused(low_memory, capsys, "--runs", ",")
    assert "--width 6: must be a multiple" in refused(low_memory, capsys, "--width", "6")
    assert "--rate" in refused(low_memory, capsys, "--rate", "-1")
    assert "Did you mean '--steps'" in refused(low_memory, capsys, "--step", "3")
    far = [*QUICK, "--runs", "float32", "--rate", "1e30", "--out", tmp_path]
    assert "is not finite" in refused(low_memory, capsys, *far, code=1)
