"""Whether a transform may update layers one by one, and how its state belongs to them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from gradxform.distributed.shares.param_places import Parameter
from gradxform.distributed.specs.slot_dims import as_seen, match_leaves
from gradxform.leaves import dtype_of, path_at, shape_of
from gradxform.training.layers.found import Scan
from gradxform.training.layers.scan import arrays_in
from gradxform.training.layers.stacks import leaves_of_state
from gradxform.types import OptState, Params


class LayerState(NamedTuple):
    """How a leaf of the state belongs to the layers of a scan."""

    scan: Scan | None = None
    is_stack: bool = False  # whether it has an index of the first axis for each layer


def check_transform_of_layers(
    part: str, tx: Any, params: Params, in_scans: Mapping[int, Scan]
) -> None:
    pass


def check_state(
    part: str, tx: Any, params: Params, state: OptState, scans: Sequence[Scan]
) -> list[LayerState]:
    """Return how each leaf of the state belongs to layers; stored arrays are leaves."""
    parameters = [Parameter(path, shape_of(x), None) for path, x in arrays_in(params)]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), as_seen(state))
    matches = match_leaves(tx, params, parameters, shapes)
    of_leaf = {i: scan for scan in scans for i in scan.indices}
    kinds = []
    for match, leaf in zip(matches, leaves_of_state(state), strict=True):
        scan = None if match.parameter is None else of_leaf.get(match.parameter)
        kinds.append(LayerState(scan, scan is not None and match.dims[:1] == [0]))
    return kinds
