"""Whether a transform may update layers one by one, and how its state belongs to them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax

from gradxform.base import ArrayRule, GradientTransformation, own_locality_of, unwrapped
from gradxform.distributed.averaging.tower import Synchronous
from gradxform.distributed.shares.param_places import Parameter
from gradxform.distributed.specs.slot_dims import as_seen, match_leaves
from gradxform.engine import reach_of
from gradxform.errors import name_of
from gradxform.leaves import Path, shape_of
from gradxform.leaves.states import node_at
from gradxform.leaves.storage import StoredArray, is_away
from gradxform.training.layers.found import Scan
from gradxform.training.layers.scan import arrays_in
from gradxform.training.layers.stacks import is_cut_by_rows, leaves_of_state
from gradxform.transforms.clipping import clip_by_previous_global_norm
from gradxform.types import OptState, Params
from gradxform.wrappers.parts import OF_FUNCTIONS, all_parts
from gradxform.wrappers.stacked import stacked, types_of_layers

__all__ = []

_KEEPING = (
    "keeps the gradients of several steps, which a step that forgets them does not have; let the "
    "loss go through microbatches itself, or use update_in_backward=False."
)
_LOSS_AGAIN = (
    "asks for gradients or for the loss at other places, after the layers have been updated; use "
    "update_in_backward=False."
)
_DIVIDES = (
    "divides whole arrays over devices, and sees one layer at a time here; shard the parameters "
    "with a mesh and jax.jit, or use update_in_backward=False."
)
_UNKNOWN = (
    "does not say how far it looks, and sees one layer at a time here; use a part of gradxform, or "
    "update_in_backward=False."
)


class LayerState(NamedTuple):
    """How a leaf of the state belongs to the layers of a scan."""

    scan: Scan | None = None
    is_stack: bool = False  # whether it has an index of the first axis for each layer


def layer_states(
    part: str, tx: Any, params: Params, state: OptState, scans: Sequence[Scan]
) -> list[LayerState]:
    """Return how each leaf of the state belongs to layers; stored arrays are leaves.

    Raises:
      ValueError: if a part of the transform cannot update layers one by one.
    """
    paths = [path for path, _ in arrays_in(params)]
    of_leaf = {i: scan for scan in scans for i in scan.indices}
    visit = _Visit(part, {paths[i]: scan for i, scan in of_leaf.items()}, set())
    visit.part_of(tx, state, params, frozenset())
    parameters: list[Any] = [Parameter(path, shape_of(x), None) for path, x in arrays_in(params)]  # pyright: ignore[reportArgumentType]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), as_seen(state))
    matches = match_leaves(tx, params, parameters, shapes)
    kinds = []
    for match, leaf in zip(matches, leaves_of_state(state), strict=True):
        scan = None if match.parameter is None else of_leaf.get(match.parameter)
        if scan is None or match.parameter is None:
            kinds.append(LayerState())
            continue
        path = paths[match.parameter]
        if is_away(leaf):
            raise ValueError(
                f"{part}: the state of {'/'.join(path)} is in the memory of the host, and "
                "update_in_backward writes it where it is; leave offload_state out, or use "
                "update_in_backward=False."
            )
        is_covered = path in visit.stacks
        if isinstance(leaf, StoredArray) and not is_covered and not is_cut_by_rows(leaf):
            raise ValueError(
                f"{part}: the state of {'/'.join(path)} is kept {leaf.shared_by_rows}, and "
                f"update_in_backward sees one layer at a time. Say that they are stacks, for both "
                f"kinds of step: gradxform.stacked(tx, {path[0]!r})."
            )
        kinds.append(LayerState(scan, is_covered or match.dims[:1] == [0]))
    return kinds


class _Visit(NamedTuple):
    """A visit of all parts that see layers."""

    part: str  # the name in messages
    scans: Mapping[Path, Scan]
    stacks: set[Path]  # the parameters that some part sees layer by layer

    def part_of(self, tx: Any, state: OptState, params: Params, stacks: frozenset[Path]) -> None:
        """Require a part, and those in it, to update layers one by one.

        Args:
          tx: the part.
          state: its state.
          params: the parameters as it sees them.
          stacks: those that it sees layer by layer.
        """
        layers = [path for path, _ in arrays_in(params) if self._scan(path) is not None]
        one: Any = unwrapped(tx)
        if not layers:
            return
        if not isinstance(one, GradientTransformation) or isinstance(one, OF_FUNCTIONS):
            self._refuse(one, _UNKNOWN)
        inner = one.inner_states(state)
        if isinstance(one, stacked):
            flags = one.stacks_in(params) if one.axis == 0 else {}
            stacks |= {path for path in layers if flags.get(path)}
            self.stacks.update(stacks)
            params = types_of_layers(params, flags)
        for place, tx_inside in inner:
            inside = one.params_inside(place, params)
            self.part_of(tx_inside, node_at(state, place), inside, stacks)
        if one.zeros_unless is not None:
            self._refuse(one, _KEEPING)
        if {"grad", "grad_fn", "value_fn"} & (one.extra_names() or frozenset()):
            self._refuse(one, _LOSS_AGAIN)
        if one.divides:
            self._refuse(one, _DIVIDES)
        self._check_reach(one, [path for path in layers if path not in stacks])

    def _scan(self, path: Path) -> Scan | None:
        """Return the scan to which a parameter belongs; inside a part it may have a longer path."""
        ends = (path[:n] for n in range(len(path), 0, -1))
        return next((self.scans[end] for end in ends if end in self.scans), None)

    def _check_reach(self, one: Any, bare: list[Path]) -> None:
        is_rule = isinstance(one, ArrayRule)
        if one.asks_for_sums:
            reach = reach_of(one) if is_rule else "entry"
        else:
            reach = one.locality if is_rule else own_locality_of(one)
        if isinstance(one, stacked) or (isinstance(one, Synchronous) and one.compress is None):
            return
        if reach == "tree":
            self._refuse(
                one,
                "looks at all parameters together, by more than sums; use "
                "update_in_backward=False.",
            )
        scan = self._scan(bare[0]) if bare and reach == "array" else None
        if scan is not None:
            self._refuse(
                one,
                f"looks at whole arrays, and {'/'.join(bare[0])} of {scan.place} is a stack "
                f"of them. Say so, for both kinds of step: gradxform.stacked(tx, {bare[0][0]!r}).",
            )

    def _refuse(self, one: Any, why: str) -> NoReturn:
        raise ValueError(f"{self.part}: update_in_backward: {name_of(one)} {why}")


def asking_for_totals(tx: Any) -> list[str]:
    """Return the names of the parts that need a sum over all gradients before the first update."""
    return list(dict.fromkeys(name_of(one) for one in all_parts(tx) if _asks_for_totals(one)))


def _asks_for_totals(one: Any) -> bool:
    """Whether a part needs a sum over all gradients before the first update."""
    if not isinstance(one, GradientTransformation) or not one.asks_for_sums:
        return False
    if isinstance(one, clip_by_previous_global_norm):
        return False
    return (one.locality if isinstance(one, ArrayRule) else own_locality_of(one)) == "tree"
