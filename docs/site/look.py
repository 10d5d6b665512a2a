"""What a transform says of itself, and what its update needs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

import gradxform as gx
from docs.site import runs
from gradxform.types import Params

# Extra arguments of `update`, and what they are called on the site.
NEEDS = {"value": "loss value", "value_fn": "loss function", "obj_fn": "loss function"}


@functools.cache
def large() -> Params:
    """Return the shape of a large matrix."""
    return {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}


def seen(tx: Any) -> dict[str, Any]:
    """Return what a transform says of itself, and what `update` needs: it is tried without."""
    description = gx.describe(tx, large())
    total = sum(row.bytes or 0 for row in description.rows)
    needs = []
    if not _runs(tx, with_params=False, extra=list(NEEDS)):
        needs.append("parameters")
    needs += [
        NEEDS[name]
        for name in NEEDS
        if not _runs(tx, True, [other for other in NEEDS if other != name])
    ]
    return {
        "table": str(description),
        "bytes": total / sum(p.size for p in jax.tree.leaves(large())),
        "locality": str(tx.locality),
        "needs": list(dict.fromkeys(needs)),
    }


def _runs(tx: Any, with_params: bool, extra: list[str]) -> bool:
    """Whether an update can be traced with these arguments."""
    functions = {"value": 1.0, "value_fn": _loss, "obj_fn": _loss, "step": 0}
    given = {name: functions[name] for name in (*extra, "step")}
    per_example = runs.per_example(tx)

    def update(params: Params) -> Any:
        grads = jax.tree.map(lambda p: p[None] if per_example else p, params)
        return tx.update(grads, tx.init(params), params if with_params else None, **given)

    try:
        jax.eval_shape(update, {"w": jnp.ones((2, 3))})
    except (TypeError, ValueError):
        return False
    return True


def _loss(params: Params, **_: Any) -> Any:
    return sum(jnp.sum(p * p) for p in jax.tree.leaves(params))
