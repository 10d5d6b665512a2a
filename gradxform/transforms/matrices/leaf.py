"""How one array, or a device's piece of it, is made of matrices."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.leaves import is_hole, with_paths
from gradxform.transforms.matrices.axes import EqualMatrices, MatrixAxes, array_of_parts, parts_of
from gradxform.transforms.matrices.dimensions import axes_of_all, numbers_of
from gradxform.types import Array, PyTree

__all__ = []


class MatrixLeaf(NamedTuple):
    """How one leaf is made of matrices."""

    cut: engine.Cut
    gathered: bool  # whether matrices come together only in the array of all devices
    parts: list[EqualMatrices]
    members: list[Any]  # the view of each part

    def with_slots(self, dims: tuple[int | None, ...]) -> "MatrixLeaf":
        """Return the leaf, knowing along which axes its slots are divided over the devices."""
        return self._replace(members=[view._replace(slot_dims=dims) for view in self.members])

    def of_layers(self, axes: tuple[str, ...]) -> "MatrixLeaf":
        """Return the leaf, knowing along which axes it is a layer of a stack."""
        return self._replace(members=[view._replace(layers=axes) for view in self.members])

    def given(self, xs: tuple[Array, ...]) -> list[tuple[tuple[Array, ...], Any]]:
        """Return for each part what the rule gets of it, and its view."""
        if self.gathered:
            xs = tuple(engine.exchange_now().gather(x, self.cut.cuts) for x in xs)
        pairs = zip(self.parts, self.members, strict=True)
        whole = len(self.parts) == 1
        return [(xs if whole else tuple([part.of(x) for x in xs]), view) for part, view in pairs]

    def update(self, us):
        """Return the update of the leaf from those of its parts."""
        u = us[0] if len(us) == 1 else array_of_parts(self.parts, us)
        return engine.own_piece(u, self.cut) if self.gathered else u


def leaf_of(shape: tuple[int, ...], axes: Any, cut: engine.Cut, oriented: bool) -> MatrixLeaf:
    """Return how a leaf, or this device's piece of it, is made of matrices."""
    parts = parts_of(axes)
    across = len(parts) > 1 and any(dim == axes.axis for _, dim in cut.cuts)
    # All parts have their axes in common, so that one tells how all are cut.
    gathered = across or cut.place(parts[0].axes, parts[0].shape(shape)) == "scattered"
    now = cut
    if gathered:
        shape, now = cut.whole(shape), cut._replace(cuts=())
    views = [engine.view_of(part.axes, part.shape(shape), oriented, now) for part in parts]
    return MatrixLeaf(cut, gathered, parts, views)


def array_leaf(shape: tuple[int, ...], cut: engine.Cut) -> MatrixLeaf:
    """Return how a leaf is one array, for a rule that looks at all of it: a column of entries."""
    return leaf_of(shape, MatrixAxes((), tuple(range(len(shape))), ()), cut, True)


def arrays_with_paths(tree: PyTree) -> list[tuple[Any, Any]]:
    """Return the leaves that are not holes, with their paths."""
    return [(path, x) for path, x in with_paths(tree) if not is_hole(x)]


def leaves_of(rule: Any, tree: PyTree) -> list[MatrixLeaf]:
    """Return how each leaf is made of matrices, for a `MatrixRule`."""
    numbers, (whole, cuts, layers) = rule.weight_dimension_numbers, engine.places_of(tree)

    def leaves() -> list[MatrixLeaf]:
        axes = axes_of_all(rule, numbers, whole)
        triples = zip(arrays_with_paths(tree), axes, cuts, strict=True)
        plain = [leaf_of(jnp.shape(x), a, cut, rule.oriented) for (_, x), a, cut in triples]
        if not layers:
            return plain
        return [x.of_layers(along) for x, along in zip(plain, layers, strict=True)]

    key = ("views", rule.oriented, *cuts, *layers)
    return numbers_of(rule, numbers, whole).once(key, leaves)
