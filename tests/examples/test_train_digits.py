"""The example `examples/train_digits.py`: trains, resumes bit for bit, and refuses in one line."""

import json
import os
import re
import subprocess
import sys

import command_line
import digits_run
import pytest
import train_digits

import gradxform as gx
from tests.environment import ROOT, limit
from tests.examples.checkpoints import assert_same_arrays, of_one
from tests.examples.example_runs import refused
from tests.public import names_of

# Few steps, and one shape: the compilation is what takes the time.
QUICK = ["--batch-size", "256", "--epochs", "4"]


def assert_same(a, b):
    assert a[1] == b[1]
    assert any("mu" in path for path in a[0]) and any("params" in path for path in a[0])
    assert_same_arrays(a[0], b[0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run of 4 epochs that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert train_digits.main([*QUICK, "--out", str(out)]) == 0
    return out


# ------------------------------------------------------------------------------------ training


@pytest.mark.end_to_end
def test_a_short_run_reads_digits_and_lists_its_files(tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "FORCE_COLOR")}
    env |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_digits.py"), "--epochs", "15"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=limit(60, 300),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "chain(" and "  scale_by_adam(" in done.stdout
    assert sum(line.startswith("epoch ") for line in lines) == 15
    assert "\x1b" not in done.stdout  # no terminal, no control codes
    last = re.fullmatch(r"Held-out accuracy (\S+) in [\d.]+ s; wrote (.+)", lines[-1])
    assert last and float(last[1]) >= 0.97, lines[-1]
    written = re.split(", | and ", last[2])
    assert len(written) == 4 and all(path.startswith("runs/digits/") for path in written)
    assert all((tmp_path / path).exists() for path in written)
    assert (tmp_path / "runs/digits/training.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "runs/digits/training.png").stat().st_size > 20_000


def test_the_last_checkpoints_and_the_whole_history_are_kept(finished):
    kept = sorted(p.name for p in (finished / "checkpoints").iterdir())
    assert kept == ["2", "3", "4"]
    _, history = of_one(finished, 4)
    per_step = ("loss", "accuracy", "learning_rate", "update_norm")
    assert {name: len(history[name]) for name in per_step} == dict.fromkeys(per_step, 4 * 5)
    assert len(history["held_out_loss"]) == len(history["held_out_accuracy"]) == 4
    assert history["learning_rate"][1] == pytest.approx(5e-3)
    assert history["learning_rate"][-1] < 1e-3


@pytest.mark.end_to_end
def test_an_interrupted_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch, capsys):
    def save_then_interrupt(manager, epoch, *rest, save=train_digits.save):
        save(manager, epoch, *rest)
        if epoch == 2:
            raise KeyboardInterrupt

    out = tmp_path / "interrupted"
    with monkeypatch.context() as patch:
        patch.setattr(train_digits, "save", save_then_interrupt)
        message = refused(train_digits, capsys, *QUICK, "--out", out, code=130)
    assert message.endswith(f"python examples/train_digits.py --resume --out {out}\n")
    assert "epoch 2 is saved" in message and not (out / "training.png").exists()

    assert train_digits.main(["--resume", "--out", str(out)]) == 0  # with the options of the run
    assert "after epoch 2 of 4" in capsys.readouterr().out
    assert_same(of_one(finished, 4), of_one(out, 4))
    assert (finished / "options.json").read_text() == (out / "options.json").read_text()

    # There is nothing left to do, and the figure is drawn again.
    (out / "training.png").unlink()
    assert train_digits.main(["--resume", *QUICK, "--out", str(out)]) == 0
    assert (out / "training.png").stat().st_size > 20_000


def test_the_config_that_a_run_writes_gives_the_same_run(finished, tmp_path, capsys):
    argv = [*QUICK, "--optimizer", str(finished / "optimizer.json"), "--out", str(tmp_path / "x")]
    assert train_digits.main(argv) == 0
    assert_same(of_one(finished, 4), of_one(tmp_path / "x", 4))
    message = refused(train_digits, capsys, *argv, "--learning-rate", "0.1")
    assert "--learning-rate: " in message and "says it already" in message
    argv = ["--resume", "--learning-rate", "0.1", "--out", tmp_path / "x"]
    message = refused(train_digits, capsys, *argv)
    assert "has it from its JSON config" in message


def test_a_constant_rate_goes_on_for_more_epochs(tmp_path, capsys):
    argv = ["--optimizer", "sgd", "--schedule", "constant", "--batch-size", "256"]
    argv += ["--out", str(tmp_path / "sgd")]
    assert train_digits.main([*argv, "--epochs", "1"]) == 0
    assert train_digits.main([*argv, "--epochs", "2", "--resume"]) == 0
    assert of_one(tmp_path / "sgd", 2)[1]["learning_rate"] == [pytest.approx(0.3)] * 10
    message = refused(train_digits, capsys, *argv, "--epochs", "1", "--resume")
    assert "has 2 already" in message
    assert json.loads((tmp_path / "sgd" / "options.json").read_text())["epochs"] == 2


def test_starting_over_replaces_the_run_and_nothing_else(tmp_path, capsys):
    argv = [*QUICK[:2], "--epochs", "1", "--out", str(tmp_path / "again")]
    assert train_digits.main(argv) == 0
    note = tmp_path / "again" / "notes.txt"
    note.write_text("mine")
    assert train_digits.main(argv) == 0
    assert "Starting over" in capsys.readouterr().out
    assert note.read_text() == "mine"

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert "holds no run" in refused(train_digits, capsys, "--out", tmp_path / "other")
    assert "holds no run" in refused(train_digits, capsys, "--out", note)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, capsys):
    argv = ["--optimizer", "sgd", "--learning-rate", "1e30", "--out", tmp_path / "far"]
    message = refused(train_digits, capsys, *argv, code=1)
    assert re.search(r"the loss is (nan|inf) at step \d+ of epoch 1; lower", message)
    assert not list((tmp_path / "far" / "checkpoints").iterdir())
    assert "no checkpoint" in refused(train_digits, capsys, "--resume", "--out", tmp_path / "far")


# ------------------------------------------------------------------------------------ refusing


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--optimizer adamm", "no optimizer named 'adamm'. Did you mean 'adam'"),
        ("--optimizer qqqq", "List them with: python -m gradxform list optimizers"),
        ("--optimizer absent.json", "absent.json: No such file or directory"),
        ("--optimzer adam", "unknown argument '--optimzer'. Did you mean '--optimizer'?"),
        ("--optim adam", "unknown argument '--optim'. Did you mean '--optimizer' or '--out'?"),
        ("adam", "unknown argument 'adam'. See --help."),
        ("--schedule cosin", "invalid choice: 'cosin'"),
        ("--epochs 0", "--epochs: must be a whole number from 1, got '0'"),
        ("--epochs many", "--epochs: must be a whole number from 1, got 'many'"),
        ("--epochs", "--epochs: expected one argument"),
        ("--batch-size -3", "--batch-size: must be a whole number from 1, got '-3'"),
        ("--batch-size 5000", "--batch-size 5000: there are 1347 training images"),
        ("--seed -1", "--seed: must be a whole number from 0, got '-1'"),
        ("--learning-rate -0.1", "--learning-rate: must be a positive number, got '-0.1'"),
        ("--learning-rate 0", "--learning-rate: must be a positive number, got '0'"),
        ("--learning-rate nan", "--learning-rate: must be a positive number, got 'nan'"),
        ("--learning-rate inf", "--learning-rate: must be a positive number, got 'inf'"),
        ("--resume", "no checkpoint in runs/digits to resume"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(train_digits, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[]", "must be a dict"),
        ('{"name": "adm"}', "no transform named 'adm'. Did you mean 'adam'"),
        ('{"name": "adam", "learning_rat": 1}', "'learning_rat'"),
        ('{"name": "adam", "learning_rate": -1}', "at least 0, got -1"),
        ('{"name": "ndim_at_least", "n": 2}', "is not a transform"),
        ("\xff", "mine.json: "),
    ],
)
def test_a_bad_config_is_refused_in_one_line_with_its_path(text, words, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode("latin-1"))
    message = refused(train_digits, capsys, "--optimizer", path, "--out", tmp_path / "out")
    assert str(path) in message and words in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--optimizer sgd", "--optimizer sgd: the run in {out} was started with adamw."),
        ("--learning-rate 0.1", "--learning-rate 0.1: the run in {out} was started with 0.005."),
        ("--schedule constant", "was started with cosine"),
        ("--epochs 8", "was started with 4, where its schedule ends"),
        ("--batch-size 64", "was started with 256"),
        ("--seed 1", "was started with 0"),
        ("--optimizer {other}", "has another optimizer"),
    ],
)
def test_resuming_with_another_option_is_refused(argv, words, finished, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(gx.to_json(gx.sgd(0.1)))
    before = (finished / "options.json").read_text()
    words, argv = words.format(out=finished), argv.format(other=other)
    assert words in refused(train_digits, capsys, "--resume", *argv.split(), "--out", finished)
    assert (finished / "options.json").read_text() == before


def test_a_damaged_run_is_refused_in_one_line(finished, tmp_path, capsys):
    out = tmp_path / "copy"
    (out / "checkpoints" / "4").mkdir(parents=True)
    for name in ("options.json", "optimizer.json"):
        (out / name).write_text((finished / name).read_text())
    message = refused(train_digits, capsys, "--resume", "--out", out)
    assert "epoch 4" in message  # an empty checkpoint
    (out / "options.json").write_text("{}}")
    assert "options.json: " in refused(train_digits, capsys, "--resume", "--out", out)
    (out / "optimizer.json").unlink()
    assert "optimizer.json: No such file" in refused(train_digits, capsys, "--resume", "--out", out)


# ------------------------------------------------------------------------------- small pieces


@pytest.mark.parametrize("name", sorted(gx.OPTIMIZERS))
def test_every_optimizer_can_be_asked_for_by_name(name):
    try:
        tx, options = train_digits.make_optimizer(digits_run.Options(optimizer=name), steps=630)
    except command_line.Refused as error:
        assert str(error).startswith(f"{name} needs ") and "can only be made in code" in str(error)
        return
    assert isinstance(tx, gx.GradientTransformation)
    if options.schedule == "cosine":
        peak = options.learning_rate
        assert f"peak_value={peak!r}" in repr(tx) and f"end_value={peak / 100!r}" in repr(tx)
    else:  # it finds its own, or takes a number only
        assert options.schedule == (None if options.learning_rate is None else "constant")


def test_an_option_that_the_optimizer_does_not_use_is_refused(tmp_path, capsys):
    argv = ["--optimizer", "polyak_sgd", "--out", str(tmp_path / "x")]
    message = refused(train_digits, capsys, *argv, "--learning-rate", "0.1")
    assert "--learning-rate: polyak_sgd takes no learning rate; leave the option out." in message
    assert "dpsgd needs l2_norm_clip" in refused(train_digits, capsys, "--optimizer", "dpsgd")


def test_the_learning_rate_is_found_wherever_it_is():
    tx = gx.chain(gx.clip(1.0), gx.chain(gx.scale_by_adam(), gx.scale_by_learning_rate(0.25)))
    assert train_digits.learning_rate_of(tx) == 0.25
    assert train_digits.learning_rate_of(gx.scale_by_lion()) is None


def test_a_long_chain_is_broken_over_lines():
    assert digits_run.over_lines("f(a=1)") == "f(a=1)"
    assert digits_run.over_lines("f(a=(1, 2), b=g(x, 'y'))", width=10) == (
        "f(\n  a=(1, 2),\n  b=g(\n    x,\n    'y',\n  ),\n)"
    )
    tx = gx.adamw(1e-3)
    assert eval(digits_run.over_lines(repr(tx), width=40), names_of(gx)) == tx


def test_the_figure_needs_no_learning_rate(tmp_path):
    history = {"loss": [2.0, 1.0], "accuracy": [0.1, 0.5], "update_norm": [1.0, 0.0]}
    history |= {"held_out_loss": [1.5], "held_out_accuracy": [0.4]}
    digits_run.draw(tmp_path / "x.png", history, "no rate")
    assert (tmp_path / "x.png").stat().st_size > 20_000
