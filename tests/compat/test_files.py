"""Files that cannot be read, and variables of other numbers, end in one sentence with the path."""

import json
import re
import zipfile

import h5py
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.compat import keras, tf1

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
TX = tf1.Momentum(0.1, 0.9)


def arrays():
    return tf1.to_checkpoint(TX, TX.init(PARAMS), PARAMS)


def one_array(path):
    with open(path, "wb") as file:
        np.save(file, np.ones(3))


def text(path):
    path.write_text("hello")


def empty(path):
    path.write_bytes(b"")


def truncated(path):
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:200])


def damaged(path):
    np.savez(path, **arrays())
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)


def objects(path):
    np.savez(path, w=np.array([None, 1], object))


def other_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")


def folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("write", "flaw"),
    [
        (folder, "is a folder"),
        (other_archive, "is not a .npz file"),
        (one_array, "is not a .npz file"),
        (text, "is not a .npz file"),
        (empty, "is not a .npz file"),
        (truncated, "is not a .npz file"),
        (damaged, "is damaged, or holds objects"),
        (objects, "is damaged, or holds objects"),
    ],
)
def test_a_checkpoint_that_cannot_be_read(tmp_path, write, flaw):
    path = tmp_path / "run.npz"
    write(path)
    with pytest.raises(ValueError, match=r"^from_checkpoint: ") as error:
        tf1.from_checkpoint(TX, PARAMS, path)
    assert flaw in str(error.value)
    assert repr(str(path)) in str(error.value)
    assert "np.savez(path, **arrays)" in str(error.value)


@pytest.mark.parametrize("key", [1, ("w",), (1,), b"w", None])
def test_a_key_that_is_not_the_name_of_a_variable(key):
    words = rf"the names of variables, such as 'dense/kernel', got {re.escape(repr(key))}\."
    with pytest.raises(TypeError, match=words):
        tf1.from_checkpoint(TX, PARAMS, arrays() | {key: jnp.ones(2)})


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^from_checkpoint: the file '.*run\.npz'"):
        tf1.from_checkpoint(TX, PARAMS, tmp_path / "run.npz")


@pytest.mark.parametrize("variable", ["w", "w/Momentum"])
@pytest.mark.parametrize("kind", [complex, object])
def test_numbers_that_a_parameter_does_not_hold(variable, kind):
    other = arrays() | {variable: np.full((3, 2), 1, kind)}
    with pytest.raises((TypeError, ValueError), match=r"'w'.* has dtype (complex\d+|object), the "):
        tf1.from_checkpoint(TX, PARAMS, other)


def test_wider_numbers_are_read():
    params, _ = tf1.from_checkpoint(TX, PARAMS, arrays() | {"w": np.full((3, 2), 2, np.int64)})
    assert params["w"].dtype == jnp.float32
    np.testing.assert_array_equal(params["w"], 2)


OF_REPLICAS = {
    "tower": gd.tower(TX, "r"),
    "sync_replicas": gd.sync_replicas(TX, "r"),
    "model_average": gd.model_average(TX, "r"),
    "elastic_average": gd.elastic_average(TX, "r", rho=0.1),
    "agn": gd.agn(TX, "r"),
    "drop_stale": gd.drop_stale(TX, 2),
}


@pytest.mark.parametrize("name", OF_REPLICAS)
def test_what_replicas_share_is_saved_as_tensorflow_saves_it(tmp_path, name):
    """The inner optimizer's slots and the global step; all else begins anew."""
    tx, path = OF_REPLICAS[name], tmp_path / "run.npz"
    own = {"drop_stale": {"global_step", "stale_counter"}, "tower": set()}
    assert set(gx.get_slots(tx, tx.init(PARAMS), "tf1")) - own.get(name, {"global_step"}) <= {
        "momentum",
        "inner.0.momentum",
        "center_inner.0.momentum",
    }
    moved = {"w": 2 * PARAMS["w"], "b": 3 * PARAMS["b"]}
    variables = tf1.to_checkpoint(tx, tx.init(moved), moved)
    assert all(x.dtype != object for x in variables.values())
    variables |= {k: np.full_like(x, 0.5) for k, x in variables.items() if "Momentum" in k}
    variables |= {k: np.asarray(7, x.dtype) for k, x in variables.items() if not x.shape}
    np.savez(path, **variables)
    params, state = tf1.from_checkpoint(tx, PARAMS, path)
    again = tf1.to_checkpoint(tx, state, params)
    assert again.keys() == variables.keys()
    for k, x in again.items():
        np.testing.assert_array_equal(x, variables[k])
    for copy in ("center", "local_center"):
        if hasattr(state, copy) and getattr(state, copy) is not None:
            np.testing.assert_array_equal(getattr(state, copy)["b"], moved["b"])


def test_a_checkpoint_of_synchronous_replicas_is_read():
    values = {"w": np.full((3, 2), 2.0, np.float32), "b": np.full(2, 3.0, np.float32)}
    slots = {f"{k}/Momentum": x / 10 for k, x in values.items()}
    other = {"local_step": np.asarray(11), "global_step": np.asarray(12)}
    tx = gd.sync_replicas(TX, "r")
    params, state = tf1.from_checkpoint(tx, PARAMS, values | slots | other)
    np.testing.assert_array_equal(params["b"], 3.0)
    np.testing.assert_allclose(gx.get_slots(tx, state, "tf1")["momentum"]["w"], 0.2)
    assert int(state.global_step) == 12


def test_a_float_counts_what_was_dropped():
    tx = gd.drop_stale(TX, 2)
    variables = tf1.to_checkpoint(tx, tx.init(PARAMS), PARAMS)
    assert variables["stale_counter"].dtype == np.float32
    _, state = tf1.from_checkpoint(tx, PARAMS, variables | {"stale_counter": np.float32(5)})
    assert state.stale_counter.dtype == jnp.int32
    assert int(state.stale_counter) == 5
    with pytest.raises(ValueError, match="stale_counter must be a whole number"):
        tf1.from_checkpoint(tx, PARAMS, variables | {"stale_counter": np.float32(5.5)})


CONFIG = {"class_name": "SGD", "config": {}}


def hdf5(path):
    with h5py.File(path, "w") as file:
        file["weights"] = np.ones(1000)
        file.attrs["training_config"] = json.dumps({"optimizer_config": CONFIG})
    return path.read_bytes()


def cut_hdf5(path):
    path.write_bytes(hdf5(path)[:900])


def only_a_signature(path):
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))


def archive_of(weights):
    def write(path):
        data = hdf5(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", json.dumps({"compile_config": {"optimizer": CONFIG}}))
            archive.writestr("model.weights.h5", data[:weights])

    return write


@pytest.mark.parametrize(
    "write",
    [cut_hdf5, only_a_signature, archive_of(500), archive_of(0)],
    ids=["cut", "signature", "cut weights", "without weights"],
)
def test_a_model_that_cannot_be_read(tmp_path, write):
    path = tmp_path / "model"
    write(path)
    with pytest.raises(ValueError, match=r"^load_optimizer: '.*model' is damaged: ") as error:
        keras.load_optimizer(path, PARAMS)
    assert "Save the model again" in str(error.value)


def archive(compiled, vars_name="0"):
    """Write a model of Keras 3 with that compile_config, a dict or its text."""

    def write(path):
        with h5py.File(path, "w") as file:
            file[f"optimizer/vars{vars_name and '/'}{vars_name}"] = np.ones(1)
        data = path.read_bytes()
        text = compiled if isinstance(compiled, str) else json.dumps(compiled)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("config.json", f'{{"compile_config": {text}}}')
            file.writestr("model.weights.h5", data)

    return write


@pytest.mark.parametrize(
    ("write", "flaw"),
    [
        (folder, "is a folder"),
        (text, "is neither a .keras archive nor an HDF5 file"),
        (empty, "is neither a .keras archive nor an HDF5 file"),
        (one_array, "is neither a .keras archive nor an HDF5 file"),
        (other_archive, "has no config.json"),
        (archive([1]), "compile_config of '.*model' must be a dict, got \\[1\\]"),
        (archive("x"), "config.json of '.*model' is not JSON"),
        # Which part is said to be deep depends on how deep Python's own reader goes.
        (archive("[" * 99999 + "]" * 99999), "config.* of '.*model' .*nested more than 200 deep"),
        (archive({"optimizer": [1]}), "identifier \\[1\\]"),
        (archive({"optimizer": CONFIG}, "[1]"), "'\\[1\\]' among the weights"),
        (archive({"optimizer": CONFIG}, "0/deep"), "'0' among the weights"),
        (archive({"optimizer": CONFIG}, ""), "an array in place of the group"),
    ],
)
def test_a_file_that_is_not_a_model(tmp_path, write, flaw):
    path = tmp_path / "model"
    write(path)
    with pytest.raises(ValueError, match=rf"^load_optimizer: .*{flaw}") as error:
        keras.load_optimizer(path, PARAMS)
    assert repr(str(path)) in str(error.value)
