"""Checkpoints of TensorFlow 1: parameters and slots as arrays by the names of variables."""

import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import check_transform
from gradxform.compat.tf1.names import AVERAGE, all_names, default_name, exact_names, variables_of
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import Path, is_hole, with_paths
from gradxform.numerics import number_rank
from gradxform.run_states.slot_names import get_slots, set_slots
from gradxform.types import OptState, Params, SupportsTransform

# The slots in the order in which TensorFlow makes them; Shampoo's have their own, below.
_ORDER = [
    *("m", "v", "v_hat"),
    *("rms", "mg", "momentum"),
    *("accum", "accum_update", "linear"),
    *("gradient_accumulator", "gradient_squared_accumulator"),
    "accumulator",
]
# What a state cannot do without, besides slots: counts.
_REQUIRED = ("beta1_power", "beta2_power", "t", "global_step_1", "moment1", "grad_buffer")


def to_checkpoint(
    tx: SupportsTransform,
    state: OptState,
    params: Params,
    *,
    name: str | None = None,
    accum_name: str | None = None,
    linear_name: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, np.ndarray]:
    """Return parameters and state as TensorFlow 1 saves them: arrays by the names of variables.

    For Adam and a parameter `dense/kernel`: `dense/kernel`, `dense/kernel/Adam` (m),
    `dense/kernel/Adam_1` (v), `beta1_power` and `beta2_power`. `numpy.savez(path, **arrays)` writes
    them to a file. `global_step` is the count of an optimizer that does not have powers.

    Args:
      tx: an optimizer of `compat.tf1`, `compat.tf_contrib` or `compat.returnn`.
      state: its state.
      params: the parameters.
      name: the `name` of the original optimizer. Defaults to what `tx` was given as `name`
        (`variable_names`), or else to its class's, found by the rules of `tx`.
      accum_name: Ftrl's `accum_name`. Defaults to what `tx` was given. Keyword-only, as the others.
      linear_name: Ftrl's `linear_name`, likewise.
      variables: the names of single variables, by what `get_slots(tx, state, "tf1")` calls them:
        those of the second Adam in a graph are `{"m": "Adam_2", "v": "Adam_3", "beta1_power":
        "beta1_power_1", "beta2_power": "beta2_power_1"}`.

    Raises:
      TypeError: if a name is not a string.
      ValueError: if a name is empty or given to two slots, parts of `tx` were given several, or the
        state has arrays that are not slots of parameters.
    """
    name, names = all_names("to_checkpoint", tx, name, accum_name, linear_name)
    slots = get_slots(tx, state, "tf1")
    exact = exact_names("to_checkpoint", tx, variables, slots)
    arrays = {"/".join(path): np.asarray(p) for path, p in with_paths(params) if not is_hole(p)}
    name = name or default_name(tx)
    order = _order("to_checkpoint", tx, slots, params)
    trees = {k: dict(with_paths(slots[k])) for k in order}
    for path, p in with_paths(params):
        slots_here = [k for k in order if not is_hole(trees[k].get(path)) and not is_hole(p)]
        for k, variable in variables_of(slots_here, name, names, exact):
            arrays["/".join((*path, variable))] = np.asarray(trees[k][path])
    for k, value in slots.items():
        if k not in order and not isinstance(value, dict):
            dtype = np.int64 if k == "global_step" else None
            arrays[exact.get(k, k)] = np.asarray(value, dtype)
    return arrays


def from_checkpoint(
    tx: SupportsTransform,
    params: Params,
    arrays: Mapping[str, Any] | str | os.PathLike[str],
    *,
    name: str | None = None,
    accum_name: str | None = None,
    linear_name: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[Params, OptState]:
    """Return the parameters and the state that a checkpoint of TensorFlow 1 has.

        reader = tf.train.load_checkpoint(path)                                       in TensorFlow
        arrays = {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}
        params, state = from_checkpoint(tf1.Adam(1e-3), params, arrays)

    Variables that are not asked for are passed over. Where `tx` counts its steps by `global_step`,
    that is read too, if it is there.

    Args:
      tx: an optimizer of `compat.tf1`, `compat.tf_contrib` or `compat.returnn`.
      params: parameters of the same structure and shapes.
      arrays: a dict, or the path of a `.npz` file: what `to_checkpoint` returns.
      name: the `name` of the original optimizer. Defaults to what `tx` was given as `name`
        (`variable_names`), or else to its class's, or else to the only name under which every
        parameter has all slots.
      accum_name: Ftrl's `accum_name`. Defaults to what `tx` was given. Keyword-only, as the others.
      linear_name: Ftrl's `linear_name`, likewise.
      variables: the names of single variables, as in `to_checkpoint`: of the second optimizer of
        one name in a graph. Where a checkpoint has the slots of two, they must be given.

    Raises:
      TypeError: if `arrays` is neither a dict nor a path, or a name is not a string.
      FileNotFoundError: if the file does not exist.
      ValueError: if the file is not one of NumPy's archives; if a parameter, a slot or a power is
        missing, has another shape or kind of numbers, or is of another decay than `tx`; if several
        optimizers fit and no `name` says which.
    """
    check_transform("from_checkpoint", tx, "tx")
    names = {"name": name, "accum_name": accum_name, "linear_name": linear_name}
    arrays = _arrays_by_name(arrays)
    leaves = [p if is_hole(p) else _param(arrays, path, p) for path, p in with_paths(params)]
    params = jax.tree.unflatten(jax.tree.structure(params, is_leaf=is_hole), leaves)
    # What is a copy of the parameters, such as a center, begins with those of the checkpoint.
    state = tx.init(params)
    return params, with_variables(tx, state, params, arrays, **names, variables=variables)


def with_variables(
    tx: SupportsTransform,
    state: OptState,
    params: Params,
    arrays: Mapping[str, Any],
    name: str | None = None,
    accum_name: str | None = None,
    linear_name: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> OptState:
    """Return a state with these variables of TensorFlow in place of its own."""
    name, names = all_names("from_checkpoint", tx, name, accum_name, linear_name)
    slots = get_slots(tx, state, "tf1")
    exact = exact_names("from_checkpoint", tx, variables, slots)
    order = _order("from_checkpoint", tx, slots, params)
    trees = {k: dict(with_paths(slots[k])) for k in order}
    wanted = {
        path: [k for k in order if not is_hole(trees[k].get(path))]
        for path, p in with_paths(params)
        if not is_hole(p)
    }
    # Whoever names single variables has said which optimizer's they are.
    if not exact:
        name = name or _optimizer_name(tx, arrays, wanted, names)
        _refuse_ambiguous_checkpoint(arrays, wanted, name, names)
    name = name or default_name(tx)
    for path, keys in wanted.items():
        for k, variable in variables_of(keys, name, names, exact):
            trees[k][path] = _slot(arrays, path, variable, k, trees[k][path])
    new: dict[str, Any] = {k: _with_leaves(slots[k], trees[k]) for k in order}
    for k, value in slots.items():
        if k in order or isinstance(value, dict):
            continue
        scalar = _nonslot(arrays, exact.get(k, k))
        if scalar is not None:
            new[k] = scalar
        elif k in _REQUIRED:
            raise ValueError(
                f"from_checkpoint: the checkpoint lacks {exact.get(k, k)!r}, which {name_of(tx)} "
                f"needs; it has {_listed(arrays)}.{did_you_mean(k, arrays)}"
            )
    return set_slots(tx, state, new, "tf1")


def _order(caller: str, tx: Any, slots: dict[str, Any], params: Any) -> list[str]:
    """Return the slots of parameters in the order in which TensorFlow makes them."""
    places = {path for path, p in with_paths(params) if not is_hole(p)}
    of_params = []
    for k, value in slots.items():
        leaves = {path: x for path, x in with_paths(value) if not is_hole(x)}
        if () in leaves or not leaves or (isinstance(value, dict) and not set(leaves) <= places):
            if any(jnp.ndim(x) for x in leaves.values()) and k not in ("moment1", "grad_buffer"):
                raise ValueError(
                    f"{caller}: {k!r} of {name_of(tx)} is not a slot of these parameters, and "
                    "TensorFlow 1 does not have it; save it with the state instead."
                )
            continue
        of_params.append(k)
    return sorted(of_params, key=_rank_of_slot)


def _rank_of_slot(slot: str) -> tuple[int, int, str]:
    if slot == "gbar":
        return -1, 0, ""
    word, _, axis = slot.partition("_")
    if word in ("H", "Gbar") and axis.isdigit():  # made together for each axis, H first
        return 0, 2 * int(axis) + (word == "Gbar"), ""
    return 1, _ORDER.index(slot) if slot in _ORDER else len(_ORDER), slot


def _arrays_by_name(arrays: Any) -> dict[str, Any]:
    if isinstance(arrays, str | os.PathLike):
        arrays = _arrays_in_file(arrays)
    if not isinstance(arrays, Mapping):
        raise TypeError(
            "from_checkpoint: arrays must be a dict by the names of variables or the path of a "
            f".npz file, got {shown(arrays)}."
        )
    for k in arrays:
        if not isinstance(k, str):
            raise TypeError(
                "from_checkpoint: the keys of arrays must be the names of variables, such as "
                f"'dense/kernel', got {shown(k)}."
            )
    return {k.removesuffix(":0"): x for k, x in arrays.items()}


def _arrays_in_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arrays in a `.npz` file by name."""
    name = os.fspath(path)
    if os.path.isdir(name):
        raise ValueError(
            f"from_checkpoint: {name!r} is a folder; pass the .npz file of a checkpoint, which "
            "np.savez(path, **arrays) writes."
        )
    if not os.path.isfile(name):
        raise FileNotFoundError(f"from_checkpoint: the file {name!r} does not exist.")
    if not zipfile.is_zipfile(name):
        raise ValueError(
            f"from_checkpoint: {name!r} is not a .npz file; write one with "
            "np.savez(path, **arrays)."
        )
    try:
        with np.load(name) as data:
            arrays = dict(data)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"from_checkpoint: {name!r} is damaged, or holds objects: {error}. Write it anew with "
            "np.savez(path, **arrays)."
        ) from None
    for k, x in arrays.items():
        if not isinstance(x, np.ndarray):  # a member that is not an array
            raise ValueError(
                f"from_checkpoint: {name!r} is not a .npz file, since {k!r} in it is not an array; "
                "write one with np.savez(path, **arrays)."
            )
    return arrays


def _param(arrays: Mapping[str, Any], path: Path, p: Any) -> Any:
    variable = "/".join(path)
    if variable not in arrays:
        raise ValueError(
            f"from_checkpoint: the checkpoint lacks the variable {variable!r}; it has "
            f"{_listed(arrays)}.{did_you_mean(variable, arrays)}"
        )
    _check_shape(variable, "the parameter", arrays[variable], p)
    x = np.asarray(arrays[variable])
    if not 0 < number_rank(x.dtype) <= number_rank(p.dtype):
        raise ValueError(
            f"from_checkpoint: {variable!r} has dtype {x.dtype}, the parameter {p.dtype}, which "
            "does not hold such numbers."
        )
    return jnp.asarray(x.astype(p.dtype))


def _slot(arrays: Mapping[str, Any], path: Path, variable: str, slot: str, old: Any) -> Any:
    full = "/".join((*path, variable))
    if full not in arrays:
        raise ValueError(
            f"from_checkpoint: the checkpoint lacks the variable {full!r}, the slot {slot!r} of "
            f"{'/'.join(path)!r}; it has {_listed(arrays)}. Pass name=, the name that "
            "the optimizer had."
        )
    _check_shape(full, f"the slot {slot!r}", arrays[full], old)
    return arrays[full]


def _check_shape(variable: str, what: str, x: Any, like: Any) -> None:
    try:
        shape = jnp.shape(x)
    except (TypeError, ValueError):  # such as rows of different lengths
        raise ValueError(
            f"from_checkpoint: {variable!r} must be an array of numbers, got {shown(x)}."
        ) from None
    if shape != jnp.shape(like):
        raise ValueError(
            f"from_checkpoint: {variable!r} has shape {jnp.shape(x)}, {what} {jnp.shape(like)}."
        )


def _nonslot(arrays: Mapping[str, Any], name: str) -> Any:
    """Return a variable that is not a slot, in whatever scope it is."""
    if name in arrays:
        return arrays[name]
    scoped = [k for k in arrays if k.rpartition("/")[2] == name]
    return arrays[scoped[0]] if len(scoped) == 1 else None


def _optimizer_name(
    tx: Any, arrays: Mapping[str, Any], wanted: Mapping[Path, list[str]], names: Mapping[str, str]
) -> str:
    """Return the name of the optimizer in a checkpoint: its default, or the only one that fits."""
    usual = default_name(tx)

    def fits(name: str) -> bool:
        return all(
            "/".join((*path, variable)) in arrays
            for path, slots in wanted.items()
            for _, variable in variables_of(slots, name, names)
        )

    if fits(usual):
        return usual
    first = next((path for path, slots in wanted.items() if slots), None)
    if first is None:
        return usual
    head = "/".join(first) + "/"
    words = [k.removeprefix(head) for k in arrays if k.startswith(head)]
    fitting = [word for word in words if "/" not in word and fits(word)]
    if len(fitting) > 1:
        raise ValueError(
            f"from_checkpoint: the slots of several optimizers fit: "
            f"{', '.join(map(repr, fitting))}. Say which one as name=."
        )
    return fitting[0] if fitting else usual


def _refuse_ambiguous_checkpoint(
    arrays: Mapping[str, Any],
    wanted: Mapping[Path, list[str]],
    name: str,
    names: Mapping[str, str],
) -> None:
    """Refuse a checkpoint with the slots of a second optimizer of that name."""
    second = {
        (path, slot): "/".join((*path, variable))
        for path, slots in wanted.items()
        for slot, variable in variables_of(slots, name, names, earlier=1)
        if slot != AVERAGE
    }
    if second and all(variable in arrays for variable in second.values()):
        (_, slot), variable = next(iter(second.items()))
        raise ValueError(
            f"from_checkpoint: the checkpoint has the slots of two optimizers called {name!r}, "
            f"also {variable!r}. Say which as variables=, such as "
            f"{{{slot!r}: {variable.rpartition('/')[2]!r}, ...}}."
        )


def _with_leaves(tree: Any, leaves: Mapping[Path, Any]) -> Any:
    treedef = jax.tree.structure(tree, is_leaf=is_hole)
    return jax.tree.unflatten(treedef, list(leaves.values()))


def _listed(arrays: Mapping[str, Any]) -> str:
    names = sorted(map(repr, arrays))
    return ", ".join(names if len(names) <= 8 else [*names[:8], "..."]) or "nothing"
