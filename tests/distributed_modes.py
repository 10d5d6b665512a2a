"""The ways in which a step for one replica runs on all."""

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
