"""The checkpoints of `train_pod.py`: in shards, and restored on other slices."""

from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from command_line import Refused, one_line
from pod_method import BETWEEN, INSIDE

import gradxform.distributed as gd

Carry = dict[str, Any]  # "params" and "state" of all slices
History = dict[str, list[float]]


@jax.jit
def copied(carry: Carry) -> Carry:
    """Return copies on the devices, to be written while the next steps overwrite the carry."""
    return jax.tree.map(jnp.copy, carry)


def save(manager: ocp.CheckpointManager, step: int, carry: Carry, history: History) -> None:
    """Begin to save a checkpoint; each process writes the shards of its devices."""
    parts = {
        "carry": ocp.args.StandardSave(copied(carry)),
        "history": ocp.args.JsonSave(history),
    }
    manager.save(step, args=ocp.args.Composite(**parts))


def restore(
    manager: ocp.CheckpointManager,
    step: int,
    replicas: gd.Replicas,
    make: Any,
    key: jax.Array,
    tx: Any,
) -> tuple[Carry, History]:
    """Return a checkpoint on the devices of `replicas`, whatever pod has saved it.

    Args:
      manager: the checkpoints.
      step: which one.
      replicas: the slices that go on.
      make: returns the parameters of one slice, from a key.
      key: the key.
      tx: the optimizer.
    """
    assert replicas.mesh is not None
    now = dict(replicas.mesh.shape)
    try:
        said = manager.restore(step, args=ocp.args.Composite(history=ocp.args.JsonRestore()))
        history = said["history"]
        saved = {BETWEEN: int(history["slices"][-1]), INSIDE: int(history["devices"][-1])}
        target = replicas.abstract(make, key, tx=tx, saved=saved)
        parts = ocp.args.StandardRestore(dict(zip(("params", "state"), target, strict=True)))
        restored = manager.restore(step, args=ocp.args.Composite(carry=parts))["carry"]
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise Refused(f"cannot read the checkpoint of step {step}: {one_line(error)}") from error
    if saved == now:
        return restored, history
    params, state = replicas.init(make, key, tx=tx)
    fresh = {"params": params, "state": state}
    return gd.resize_replicas(restored, replicas.n, fresh=fresh), history
