"""A promise about the names of mesh axes that Flax keeps in a box around each parameter."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from gradxform.distributed.specs.state_sharding import state_sharding
from gradxform.leaves import map_with_paths
from gradxform.leaves.storage import is_stored
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, leaves_of, promise, transform_of


@promise(
    "Make each slot in init by a tree map over the parameters, so that what is around a parameter "
    "is around its slot too."
)
def boxes_name_the_axes_of_their_slots(case: Case) -> None:
    """Each boxed slot has as many names as dimensions, those of the dimensions that it keeps.

    That is what `gradxform.distributed.state_sharding` says of it.
    """
    try:
        from flax.core.meta import Partitioned
    except ImportError:
        raise Skipped("flax is not installed; install gradxform[flax]") from None
    tx = transform_of(case)
    params = map_with_paths(
        lambda path, p: Partitioned(p, tuple(f"{'.'.join(path)} {d}" for d in range(p.ndim))),
        case.params(),
    )

    def is_box(x: Any) -> bool:
        return isinstance(x, Partitioned)

    def named(p: Any) -> Any:
        return p.replace(value=PartitionSpec(*p.names)) if is_box(p) else PartitionSpec()

    state = jax.eval_shape(tx.init, params)
    specs = state_sharding(tx, params, jax.tree.map(named, params, is_leaf=is_box))
    spec_of = leaves_of("state", specs)
    boxes, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_box)
    for path, box in boxes:
        arrays = jax.tree.leaves(box.value, is_leaf=is_stored) if is_box(box) else []
        if len(arrays) != 1 or is_stored(arrays[0]):
            continue  # a box around several arrays has the names in which they agree
        at = "state" + jax.tree_util.keystr(path)
        (spec,) = (spec for key, spec in spec_of.items() if key.startswith(f"{at}.value"))
        expected = (*spec, *[None] * (jnp.ndim(arrays[0]) - len(spec)))
        if tuple(box.names) != expected:
            raise Broken(f"the names {box.names}", expected=str(expected), leaf=at)
