"""The example `examples/pretrain.py`: trains with each optimizer, draws, and refuses."""

import math
import re

import jax
import jax.numpy as jnp
import pretrain
import pretrain_figure
import pytest

from tests.examples.example_runs import refused

QUICK = ["--text", "json", "--steps", "6", "--rates", "1", "--layers", "1", "--width", "8"]
QUICK += ["--length", "16", "--batch-size", "4"]


def test_every_optimizer_trains_and_is_drawn(tmp_path, capsys):
    out = tmp_path / "x"
    assert pretrain.main([*QUICK, "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert err == "" and "\x1b" not in said
    ends = dict(re.findall(r"^(\w+), rate \S+: held-out loss (\S+)$", said, re.MULTILINE))
    assert list(ends) == list(pretrain.METHODS)
    assert all(math.isfinite(float(loss)) for loss in ends.values()), ends
    assert min(map(float, ends.values())) < math.log(96), ends
    assert said.endswith(f"wrote {out / 'pretrain.png'}\n")
    assert (out / "pretrain.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / "pretrain.png").stat().st_size > 30_000


def test_the_best_of_the_rates_counts(tmp_path, capsys):
    argv = [*QUICK, "--optimizers", "adamw", "--rates", "2", "--out", str(tmp_path)]
    assert pretrain.main(argv) == 0
    said = capsys.readouterr().out
    runs = re.findall(r"^adamw, rate (\S+): held-out loss (\S+)$", said, re.MULTILINE)
    rates = [float(rate) for rate, _ in runs]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.1)
    best = min(runs, key=lambda run: float(run[1]))
    row = next(line for line in said.splitlines() if line.startswith("│ adamw"))
    assert [cell.strip() for cell in row.split("│")[2:4]] == list(best)


def test_only_matrices_of_layers_have_dimension_numbers():
    params = {
        "embed": {"embedding": jnp.zeros((5, 4))},
        "layers_0": {"up": {"kernel": jnp.zeros((4, 8)), "bias": jnp.zeros(8)}},
        "head": {"kernel": jnp.zeros((4, 5))},
    }
    numbers = pretrain.in_layers(params)
    found = [x is not None for x in jax.tree.leaves(numbers, is_leaf=lambda x: x is None)]
    assert found == [False, False, False, True] and numbers["layers_0"]["up"]["bias"] is None


def test_the_steps_to_a_loss_lie_between_two_measurements():
    curve = pretrain_figure.Curve(0.1, [0, 10, 20], [0.0, 1.0, 2.0], [4.0, 3.0, 1.0])
    assert pretrain.steps_until(curve, 2.0) == 15
    assert pretrain.steps_until(curve, 1.0) == 20
    assert math.isinf(pretrain.steps_until(curve, 0.5))


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(pretrain.METHODS, "adamw", (1e30, pretrain.METHODS["adamw"][1]))
    argv = [*QUICK, "--optimizers", "adamw", "--out", str(tmp_path)]
    assert "is not finite at any rate" in refused(pretrain, capsys, *argv, code=1)
    assert not (tmp_path / "pretrain.png").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--optimizers moun", "no optimizer named 'moun'. Did you mean 'muon'?"),
        ("--optimizers qqqq", "There are adamw, muon"),
        ("--optimizers ,", "name at least one optimizer."),
        ("--width 30", "--width 30: must be a multiple of 4, the heads of a layer."),
        ("--rates 0", "--rates: must be a whole number from 1, got '0'"),
        ("--text jsn", "the standard library has no part 'jsn'. Did you mean 'json'"),
        ("--text __future__ --batch-size 64", "is too short for batches of 64 windows of 64"),
        ("--stepps 3", "unknown argument '--stepps'. Did you mean '--steps' or"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(pretrain, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written


def test_an_out_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    message = refused(pretrain, capsys, *QUICK, "--out", str(tmp_path / "file"))
    assert "File exists" in message
