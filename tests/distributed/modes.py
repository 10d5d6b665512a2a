"""The ways in which a step for one replica runs on all."""

import gradxform as gx
import gradxform.distributed as gd

MODES = {
    "vmap": {"mode": "vmap"},
    "jit": {"mode": "jit"},
    "pmap": {"mode": "pmap"},
    "shard_map": {"mode": "shard_map"},
    "shard_map unchecked": {"mode": "shard_map", "check_vma": False},
}


def replicas(mode: str, n: int, **more) -> gd.Replicas:
    return gd.Replicas("replica", n=n, **MODES[mode], **more)


def step_of(tx, form: str):
    """A step of one replica, by `tx.step` or by `tx.update`; `extra` are further arguments."""

    def step(params, state, grads, extra=None):
        extra = extra or {}
        if form == "step":
            return tx.step(grads, state, params, **extra)
        updates, state = tx.update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    return step
