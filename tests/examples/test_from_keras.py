"""The example `examples/from_keras.py` trains in Keras, in Flax and in Keras, and refuses."""

import re

import from_keras
import jax
import pytest

from gradxform import compat
from tests.examples.example_runs import refused

pytestmark = [
    pytest.mark.xdist_group("keras"),  # one process imports it
    # In `Variable.numpy` of Keras 3, which NumPy 2 asks for a copy.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def promotion():
    """Keras relies on it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_a_run_goes_to_flax_and_back(tmp_path, capsys):
    out = tmp_path / "x"
    assert from_keras.main(["--epochs", "1", "--batch-size", "256", "--out", str(out)]) == 0
    text, err = capsys.readouterr()
    assert err == "" and "\x1b" not in text
    assert [x.split(" epoch")[0].strip() for x in text.splitlines() if "held-out loss" in x] == [
        *from_keras.LEGS,
        *["Keras alone"] * 3,
    ]
    accuracy, alone, apart = re.search(
        r"accuracy (\S+), of Keras alone (\S+); parameters differ by at most (\S+)\. In", text
    ).groups()
    assert abs(float(accuracy) - float(alone)) < 0.01 and float(accuracy) > 0.5
    assert float(apart) < 1e-5
    figure = (out / "from_keras.png").read_bytes()
    assert figure[:4] == b"\x89PNG" and len(figure) > 30_000
    # The optimizer that went back counts all steps.
    model = from_keras.keras.saving.load_model(out / "back.keras")
    assert int(model.optimizer.iterations.value) == 3 * (1347 // 256)
    params, order = from_keras.params_of(model), from_keras.order_of(model)
    tx, _ = compat.keras.load_optimizer(out / "back.keras", params, order=order)
    assert "scale_by_tf_adam" in repr(tx)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--optimizer adm", "no optimizer named 'adm'. Did you mean 'adam'"),
        ("--optimizer muon", "no optimizer named 'muon'. There are sgd, rmsprop,"),
        ("--learning-rate -1", "--learning-rate: must be a positive number, got '-1'"),
        ("--epochs 0", "--epochs: must be a whole number from 1, got '0'"),
        ("--batch-size 5000", "--batch-size 5000: there are 1347 training images."),
        ("--optimiser adam", "unknown argument '--optimiser'. Did you mean '--optimizer'?"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(from_keras, capsys, *argv.split())
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "File exists" in refused(from_keras, capsys, "--out", tmp_path / "file")


def test_a_run_that_diverges_stops(tmp_path, capsys):
    argv = ["--optimizer", "sgd", "--learning-rate", "1e30", "--epochs", "1", "--out", tmp_path]
    message = refused(from_keras, capsys, *argv, code=1)
    assert re.search(r"the loss is (nan|inf) after epoch 1; lower --learning-rate", message)
