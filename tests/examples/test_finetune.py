"""The example `examples/finetune.py`: fine-tunes, skips, resumes bit for bit, and refuses."""

import dataclasses
import json
import os
import re
import signal

import command_line
import finetune
import finetune_figure
import finetune_run
import finetune_text
import numpy as np
import orbax.checkpoint as ocp
import pytest

import gradxform as gx
from tests.examples.checkpoints import assert_same_arrays, of_one
from tests.examples.example_runs import refused

EVERY, TOTAL = 3, 15
# One size for all tests: the compilation is what takes the time.
TINY = "--layers 2 --width 8 --length 16 --base argparse --base-steps 2 --base-batch-size 2"
TINY += f" --text json --steps {TOTAL // EVERY} --every {EVERY} --batch-size 2 --bad-batches 2"
QUICK = TINY.split()


def assert_same(a, b):
    assert_same_arrays(a[0], b[0])
    assert a[1].keys() == b[1].keys()
    for name in ("params", "mu", "acc_grads", "average", "total_skipped", "key", "taken"):
        assert any(name in path for path in a[0]), name
    for name, values in a[1].items():
        np.testing.assert_array_equal(values, b[1][name], name)  # also where both are NaN


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert finetune.main([*QUICK, "--out", str(out)]) == 0
    return out


# ------------------------------------------------------------------------------------ training


def test_a_run_skips_what_is_spoiled_and_measures_the_rest(finished):
    arrays, history = of_one(finished, TOTAL)
    options = finetune.Options(**json.loads((finished / "options.json").read_text()))
    bad = finetune.bad_batches(options)
    assert len(bad) == 2 and np.flatnonzero(np.isnan(history["loss"])).tolist() == bad
    assert np.flatnonzero(np.diff(history["skipped"], prepend=0)).tolist() == bad
    assert all(np.all(np.isfinite(x)) for x in arrays.values())
    assert history["at"] == [0, *range(EVERY, TOTAL + 1, EVERY)]
    assert history["raw"][0] == history["averaged"][0] > history["averaged"][-1]
    head = np.asarray(history["learning_rate/all others"])
    for i, name in enumerate(("layer 1 x 0.8", "layer 0 x 0.64", "embeddings x 0.512")):
        np.testing.assert_allclose(
            history[f"learning_rate/{name}"], 0.8 ** (i + 1) * head, rtol=1e-6
        )
    steps = np.reshape(history["update_ratio/layers_1"], (-1, EVERY))
    assert np.all(steps[1:, 0] == steps[:-1, -1]) and np.all(steps[:, -1] > 0)


def test_a_run_draws_and_saves_its_optimizer(finished, tmp_path):
    assert (finished / "finetune.png").read_bytes()[:4] == b"\x89PNG"
    assert (finished / "finetune.png").stat().st_size > 50_000
    tx = gx.from_json((finished / "optimizer.json").read_text())
    parts = ("accumulate(inner=with_metrics(", "moving_average(", "param_groups(", "clip_by_global")
    assert all(part in repr(tx) for part in parts)
    _, history = of_one(finished, TOTAL)
    history = {k: v for k, v in history.items() if not k.startswith("update_ratio/")}
    history |= {"skipped": [0.0] * TOTAL}  # nothing to see is no error
    finetune_figure.draw(tmp_path / "x.png", history, 1, "without skips")
    assert (tmp_path / "x.png").stat().st_size > 40_000


def test_a_run_resumes_bit_for_bit_in_the_middle_of_a_step(finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "a run"
    assert finetune.main([*QUICK, "--out", str(out), "--stop-after", "7"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("Stopped: micro-batch 7 is saved, 1 of 3 into step 3; go on with: ")
    assert said.endswith(f"python examples/finetune.py --resume --out '{out}'")
    assert not (out / "finetune.png").exists()
    arrays, _ = of_one(out, 7)
    assert arrays["['opt_state']['mini_step']"] == 1 and arrays["['taken']"] == 7
    assert any(np.any(x) for path, x in arrays.items() if "acc_grads" in path)

    def batch_with_an_interrupt(self, i, batch=finetune_text.Text.batch):
        if i == 10 and self.training.size < 60_000:  # not that of the base
            os.kill(os.getpid(), signal.SIGINT)
        return batch(self, i)

    handler = signal.getsignal(signal.SIGINT)  # a shell's background job ignores it
    with monkeypatch.context() as patch:
        patch.setattr(finetune_text.Text, "batch", batch_with_an_interrupt)
        message = refused(finetune, capsys, "--resume", "--out", out, code=130)
    assert "interrupted; micro-batch 11 is saved, 2 of 3 into step 4; go on with: " in message
    assert signal.getsignal(signal.SIGINT) is handler

    assert finetune.main(["--resume", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"Resuming the run in {out}, 2 of 3 into step 4." in printed
    assert_same(of_one(finished, TOTAL), of_one(out, TOTAL))
    for name in ("options.json", "optimizer.json", "base/made_from.json"):
        assert (finished / name).read_text() == (out / name).read_text()

    # There is nothing left to do, and the figure is drawn again.
    (out / "finetune.png").unlink()
    assert finetune.main(["--resume", *QUICK, "--out", str(out)]) == 0
    assert (out / "finetune.png").exists()


def test_the_base_model_is_trained_once_for_the_same_options(finished, tmp_path, capsys):
    argv = [*QUICK, "--out", str(tmp_path / "x"), "--stop-after", "1"]
    assert finetune.main(argv) == 0
    said = r"Training the base model on \d+ thousand characters of argparse\."
    assert re.search(said, capsys.readouterr().out)
    assert finetune.main(argv) == 0
    printed = capsys.readouterr().out
    assert f"Using the base model in {tmp_path / 'x' / 'base'}" in printed
    assert "Starting over" in printed and not re.search(said, printed)

    options = finetune.Options(**json.loads((finished / "options.json").read_text()))
    checksum = json.loads((finished / "base" / "made_from.json").read_text())["checksum"]
    with ocp.StandardCheckpointer() as checkpointer:
        like = checkpointer.restore((finished / "base" / "params").absolute())
    longer = dataclasses.replace(options, base_steps=3)
    for of, sum_, is_same in ((options, checksum, 1), (longer, checksum, 0), (options, 7, 0)):
        params = finetune_run.Base(finished / "base", of, sum_).load(like)
        assert (params is not None) == is_same


def test_a_loss_that_is_not_finite_stops_the_run(finished, tmp_path, capsys):
    argv = [*QUICK, "--base-learning-rate", "1e38", "--out", tmp_path / "far"]
    message = refused(finetune, capsys, *argv, code=1)
    assert re.search(
        r"the loss is (nan|inf) after step \d of the base model; lower --base", message
    )
    assert "no checkpoint" in refused(finetune, capsys, "--resume", "--out", tmp_path / "far")


# ------------------------------------------------------------------------------------ refusing


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--step 3", "unknown argument '--step'. Did you mean '--steps'"),
        ("json", "unknown argument 'json'. See --help."),
        ("--text jsn", "the standard library has no part 'jsn'. Did you mean 'json'"),
        ("--text ../x", "the standard library has no part '../x'. Name packages such as"),
        ("--text ,", "--text names no part; name packages or modules such as asyncio."),
        ("--text email", "--text and --base both name email; the base model must not have seen it"),
        ("--text this", "is too short for batches of 8 windows of 64; name more parts."),
        ("--every 0", "--every: must be a whole number from 1, got '0'"),
        ("--steps many", "--steps: must be a whole number from 1, got 'many'"),
        ("--batch-size -3", "--batch-size: must be a whole number from 1, got '-3'"),
        ("--learning-rate 0", "--learning-rate: must be a positive number, got '0'"),
        ("--layer-decay 0", "--layer-decay: must be a positive number, got '0'"),
        ("--layer-decay 1.5", "--layer-decay: must be a number in (0, 1], got '1.5'"),
        ("--average 1", "--average: must be a number in [0, 1), got '1'"),
        ("--dropout nan", "--dropout: must be a number in [0, 1), got 'nan'"),
        ("--bad-batches 9 --steps 2", "--bad-batches 9: there are 8 micro-batches."),
        ("--width 30", "--width 30: must be a multiple of 4, the number of heads."),
        ("--stop-after 0", "--stop-after: must be a whole number from 1, got '0'"),
        ("--resume", "no checkpoint in runs/finetune to resume; without --resume a run starts."),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(finetune, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--every 4", "--every 4: the run in {out} was started with 3. Leave the option out, or"),
        ("--layer-decay 0.5", "--layer-decay 0.5: the run in {out} was started with 0.8."),
        ("--text email", "--text email: the run in {out} was started with json."),
        (f"--stop-after {TOTAL}", f"--stop-after {TOTAL}: the run in --out has {TOTAL} already."),
    ],
)
def test_resuming_with_another_option_is_refused(argv, words, finished, capsys):
    before = (finished / "options.json").read_text()
    message = refused(finetune, capsys, "--resume", *argv.split(), "--out", finished)
    assert words.format(out=finished) in message
    assert (finished / "options.json").read_text() == before


def test_a_damaged_run_is_refused_in_one_line(finished, tmp_path, capsys):
    out = tmp_path / "copy"
    (out / "checkpoints" / "9").mkdir(parents=True)
    for name in ("options.json", "optimizer.json"):
        (out / name).write_text((finished / name).read_text())
    message = refused(finetune, capsys, "--resume", "--out", out)
    assert "cannot read the checkpoint of micro-batch 9: " in message
    (out / "options.json").write_text('{"stepz": 3}')
    assert "options.json: " in refused(finetune, capsys, "--resume", "--out", out)


def test_another_directory_is_not_replaced(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds no run; choose another" in refused(finetune, capsys, *QUICK, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# ------------------------------------------------------------------------------------ the text


def decoded(numbers):
    return "".join(finetune_text.CHARACTERS[i] for i in np.ravel(numbers))


def test_an_epoch_covers_the_training_text_and_nothing_that_is_held_out():
    words = [f"word{i:05}" for i in range(8000)]
    text = finetune_text.Text("\n".join(words) + "\té\n", 50, 4, seed=1)
    assert decoded(text.training)[:20] == "word00000\nword00001\n"
    seen = [text.batch(i) for i in range(2 * text.batches)]
    assert {batch.shape for batch in seen} == {(4, 51)}
    for epoch in (seen[: text.batches], seen[text.batches :]):
        windows = {decoded(window) for batch in epoch for window in batch}
        assert len(windows) == 4 * text.batches and 200 * text.batches > 0.98 * len(text.training)
    assert not np.array_equal(seen[0], seen[text.batches])
    known = set(re.findall(r"word\d{5}", decoded(text.training)))
    held_out = set(re.findall(r"word\d{5}", decoded(text.held_out)))
    assert len(held_out) > 100 and len(held_out & known) == 0
    again = finetune_text.Text("\n".join(words) + "\té\n", 50, 4, seed=1)
    assert np.array_equal(again.batch(text.batches + 3), seen[text.batches + 3])
    assert again.checksum == text.checksum
    odd = finetune_text.Text("\té~" * 9000, 50, 4, seed=1)
    assert set(decoded(odd.training)) == {"?", "~"}


def test_parts_are_packages_and_modules():
    assert "class JSONDecoder" in finetune_text.read(["json"])
    assert "class ArgumentParser" in finetune_text.read(["argparse"])
    with pytest.raises(command_line.Refused, match="no part 'test'"):
        finetune_text.read(["test"])
