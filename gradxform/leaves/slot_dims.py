"""Which dimensions of its parameter an array in a state keeps, from their shapes and paths."""

from collections.abc import Mapping

from gradxform.leaves.trees import Path

# For every dimension of an array, the matching dimension of the parameter.
Dims = list[int | None]


def owner_of(names: Path, shapes: Mapping[Path, object]) -> tuple[Path | None, Path]:
    """Return the parameter whose path the path of an array contains, and the names after it."""
    best: tuple[int, int, Path] | None = None
    for path in shapes:
        length = len(path)
        for start in range(len(names) - length + 1):
            if names[start : start + length] != path:
                continue
            if best is None or (length, start) >= best[:2]:
                best = (length, start, path)
    if best is None:
        return None, ()
    length, start, path = best
    return path, names[start + length :]


def kept_dims(
    shape: tuple[int, ...],
    leaf_shape: tuple[int, ...],
    names: Path,
    rest: Path,
    has_fragments: bool = False,
) -> Dims:
    """Return for each dimension of an array the one of its parameter that it keeps.

    Args:
      shape: the shape of the parameter.
      leaf_shape: the shape of the array.
      names: the path of the array.
      rest: the end of it, after the path of the parameter.
      has_fragments: whether a part of the transform sends its parameters in fragments.
    """
    if has_fragments and _OF_FRAGMENTS & set(names) and _is_slice(shape, leaf_shape):
        return list(range(len(shape)))
    if leaf_shape == shape:
        return list(range(len(shape)))
    if len(leaf_shape) == len(shape) and all(
        size in (1, n) for size, n in zip(leaf_shape, shape, strict=True)
    ):  # sums that keep the axes summed over, with length 1
        return [
            d if size == n else None
            for d, (size, n) in enumerate(zip(leaf_shape, shape, strict=True))
        ]
    dims = _matched_to_kth_array(shape, leaf_shape, rest)
    if dims is None:
        dims = _matched_as_means(shape, leaf_shape, names)
    return _first(shape, leaf_shape) if dims is None else dims


# The fields of states that have an array for each fragment of a parameter.
_OF_FRAGMENTS = {"outer", "pending", "feedback"}


def _is_slice(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> bool:
    """Whether a leaf may be a slice of a parameter along one axis."""
    if len(leaf_shape) != len(shape):
        return False
    pairs = [(a, b) for a, b in zip(leaf_shape, shape, strict=True) if a != b]
    return len(pairs) < 2 and all(a < b for a, b in pairs)


def _matched_to_kth_array(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], rest: tuple[str, ...]
) -> Dims | None:
    """Match the first dimension of the k-th of several arrays to the parameter's k-th."""
    k = int(rest[-1]) if rest and rest[-1].isdigit() else len(shape)
    if k >= len(shape) or not leaf_shape or leaf_shape[0] != shape[k]:
        return None
    return [k] + [None] * (len(leaf_shape) - 1)


def _matched_as_means(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], names: Path
) -> Dims | None:
    """Match the means of Adafactor: `v_row` lacks the longest dimension, `v_col` the second.

    The last of several dimensions of one length counts as the longest, as in NumPy's stable sort.
    """
    by_length = sorted(range(len(shape)), key=lambda d: shape[d])
    for name, place in ("v_row", -1), ("v_col", -2):
        if name in names and len(shape) > 1:
            dims = [d for d in range(len(shape)) if d != by_length[place]]
            if tuple(shape[d] for d in dims) == leaf_shape:
                return list(dims)
    return None


def _first(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> Dims:
    """Match each dimension of a leaf to the first of its length after the one matched before."""
    dims: Dims = []
    start = 0
    for size in leaf_shape:
        dim = next((d for d in range(start, len(shape)) if shape[d] == size), None)
        dims.append(dim)
        start = start if dim is None else dim + 1
    return dims
