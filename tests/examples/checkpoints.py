"""The checkpoints of examples, read without the examples."""

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp


def of_replicas(out, step):
    """The arrays of all replicas by path, and the history."""
    path = (Path(out) / "checkpoints" / str(step)).absolute()
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(path / "carry").item_metadata.tree
        kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        carry = checkpointer.restore(path / "carry", restore_args=kinds)
    return by_path(carry), json.loads((path / "history" / "metadata").read_text())


def of_one(out, step):
    """The arrays of a run on one device by path, and the history."""
    with ocp.CheckpointManager((Path(out) / "checkpoints").absolute()) as manager:
        parts = {"state": ocp.args.StandardRestore(), "history": ocp.args.JsonRestore()}
        saved = manager.restore(step, args=ocp.args.Composite(**parts))
    return by_path(saved["state"]), saved["history"]


def by_path(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(numbers(x)) for path, x in leaves}


def numbers(x):
    """What an array holds; of keys, their data."""
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def assert_same_arrays(a, b):
    """Both have the same arrays to the last bit."""
    assert a.keys() == b.keys()
    for path, x in a.items():
        assert x.dtype == b[path].dtype and x.tobytes() == b[path].tobytes(), path
