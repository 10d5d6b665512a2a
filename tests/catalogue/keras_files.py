"""Calls of `load_optimizer` that must be refused."""

import io
import json
import pathlib
import tempfile
import zipfile

import h5py
import jax.numpy as jnp
import numpy as np

from gradxform.compat import keras

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
ADAM = {"class_name": "Adam", "config": {"learning_rate": 0.5}, "module": "keras.optimizers"}
SLOTS = [np.ones((), np.int32), np.float32(0.5)]
SLOTS += [np.zeros(2, np.float32)] * 2 + [np.zeros((3, 2), np.float32)] * 2


def _loaded(name, write, path=None, **options):
    """Load a file that `write` makes."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / name
        write(file)
        return keras.load_optimizer(file if path is None else path, PARAMS, **options)


def _archive(optimizer=None, weights=SLOTS, members=None, **options):
    """Load an archive as Keras 3 writes it."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for i, x in enumerate(weights):
            file[f"optimizer/vars/{i}"] = x
    config = json.dumps({"compile_config": {"optimizer": optimizer} if optimizer else None})
    files = {"config.json": config, "model.weights.h5": buffer.getvalue()} | (members or {})

    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                if text is not None:
                    archive.writestr(name, text)

    return _loaded("model.keras", write, **options)


def _hdf5(**attributes):
    """Load an HDF5 file."""

    def write(path):
        with h5py.File(path, "w") as file:
            file["optimizer/vars/0"] = 1
            file.attrs.update(attributes)

    return _loaded("model.h5", write)


def _empty(path):
    h5py.File(path, "w").close()


REFUSED = [
    ("keras.load_optimizer('no/model.keras', PARAMS)",
     FileNotFoundError, "load_optimizer: there is no file 'no/model.keras'."),
    ("keras.load_optimizer(3, PARAMS)",
     TypeError, "load_optimizer: path must be the path of a file, got 3."),
    ("_loaded('model.keras', lambda path: path.write_text('x'))", ValueError,
     "load_optimizer: '", "is neither a .keras archive nor an HDF5 file", "model.save("),
    ("_archive(ADAM, members={'config.json': None})",
     ValueError, "load_optimizer: '", "model.keras' has no config.json; save the model with"),
    ("_archive(ADAM, members={'model.weights.h5': None})",
     ValueError, "model.keras' has no model.weights.h5"),
    ("_archive(ADAM, members={'config.json': '{'})",
     ValueError, "load_optimizer: config.json of '", "is not JSON: Expecting"),
    ("_archive(ADAM, members={'config.json': '3'})",
     ValueError, "load_optimizer: config.json of '", "must be a dict, got 3."),
    ("_archive()", ValueError,
     "model.keras' was saved without an optimizer; compile the model before you save it."),
    ("_loaded('model.h5', _empty)", ValueError, "was saved without an optimizer"),
    ("_hdf5()", ValueError, "model.h5' has weights but not the optimizer's config; save the whole"),
    ("_hdf5(training_config='{}')",
     ValueError, "load_optimizer: '", "model.h5' was saved without an optimizer"),
    ("_archive(ADAM | {'class_name': 'Adamm'})",
     ValueError, "load_optimizer: '", "config: unknown optimizer 'Adamm'", "Did you mean 'adam'"),
    ("_archive(ADAM | {'class_name': 'os.path'})", ValueError,
     "config.class_name: must be the name of a class, got 'os.path'; nothing is imported."),
    ("_archive(ADAM | {'module': 'os'})",
     ValueError, "config: unknown optimizer 'Adam' of os; pass its factory in custom_objects."),
    ("_archive(ADAM | {'config': {'learning_rte': 0.5}})", ValueError,
     "config.config: Adam has no argument 'learning_rte'", "Did you mean 'learning_rate'"),
    ("_archive({'config': {}})",
     ValueError, "load_optimizer: '", "config: no class_name; it says which class this is."),
    ("_archive(ADAM | {'class_name': 'SGD'})",
     ValueError, "set_weights: got a list of 6, expected 2: iteration, then learning_rate."),
    ("_archive(ADAM, order=['w', 'b'])", ValueError,
     "set_weights: weights[2], the momentum of ['w'], must have shape (3, 2), got (2,)."),
    ("_archive(ADAM, order=['w', 'bias'])",
     ValueError, "set_weights: order has 'bias', which is not a parameter."),
]  # fmt: skip
