"""Map a function over the parts of an optimizer's state that are like the parameters.

The function is public in `gradxform.tree`, with Optax's name and arguments.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from gradxform.errors import name_of
from gradxform.leaves import is_hole
from gradxform.leaves.states import hints_of, slot_fields
from gradxform.tree.state import KeyPath, entry_name, is_named_tuple, level_of, path_str
from gradxform.types import Array, MaskedNode, PyTree


class _Placeholder(MaskedNode):
    """Stands for the parameters in a call of `init`.

    As a tree without leaves it passes through tree maps: wherever it occurs in the state, the state
    is like the parameters. As a hole it passes through masks.
    """

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this init looks into its parameters, so map_params cannot call it")


@functools.cache
def _placeholder_like(foreign: type | None) -> _Placeholder:
    bases = (_Placeholder,) if foreign is None else (_Placeholder, foreign)
    return type("_Placeholder", bases, {})()


def _placeholder() -> _Placeholder:
    """Return a placeholder that Optax's masks, if Optax is imported, take for Optax's own."""
    optax_tree = getattr(sys.modules.get("optax"), "tree", None)
    kinds: list[type] = []
    if optax_tree is not None and optax_tree.map_params is not map_params:
        optax_tree.map_params(lambda params: kinds.append(type(params)), lambda x: x, None)
    return _placeholder_like(*(kinds or [None]))


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: PyTree,
    /,
    *rest: PyTree,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """Map a function over the parts of a state that are like the parameters.

    With one partition spec per parameter, the specs of the state are

        map_params(tx, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P())

    The fields of a state that are annotated `Slot` are like the parameters. States without such
    annotations (Optax's states, states of functions) are compared with the state that `init`
    returns for a placeholder, as in Optax. Unlike in Optax, a mask may be a tree or look into the
    parameters.

    Args:
      initable: the transform of the state, or its init.
      f: `f(leaf, *leaves_of_rest)`.
      state: the state.
      *rest: trees with the structure of the parameters.
      transform_non_params: a function for all other leaves. By default they stay.
      is_leaf: as for `jax.tree.map`, within parts like the parameters. Holes (None, MaskedNode)
        stay as they are, unless this says that they are leaves.

    Returns:
      The state with the results.

    Raises:
      TypeError: if `initable` is neither, or init fails on a placeholder without annotations.
      ValueError: if `init` does not return such a state.
    """
    init = getattr(initable, "init", initable)
    if not callable(init) or isinstance(initable, type):
        raise TypeError(f"map_params: needs a transform or its init first, got {initable!r}.")
    failure = None
    try:
        mark = init(_placeholder())
    except Exception as error:  # an init may raise anything; the annotations may be enough
        mark, failure = _UNKNOWN, error

    def leaf_of(x: Any) -> bool:
        return is_hole(x) or (is_leaf is not None and is_leaf(x))

    def on_leaf(x: Any, *others: Any) -> Any:
        return x if is_hole(x) and not (is_leaf and is_leaf(x)) else f(x, *others)

    mapping = _Mapping(
        on_params=lambda x: jax.tree.map(on_leaf, x, *rest, is_leaf=leaf_of),
        on_others=transform_non_params or (lambda x: x),
        init=initable,
        failure=failure,
    )
    return mapping.walk(mark, state, (), plain=False)


_UNKNOWN = object()


class _Mapping(NamedTuple):
    """One call of `map_params`."""

    on_params: Callable[[Any], Any]
    on_others: Callable[[Any], Any]
    init: Any
    failure: Exception | None

    def walk(self, mark: Any, state: Any, path: KeyPath, plain: bool) -> Any:
        """Return `state`, mapped.

        Args:
          mark: this part of the state that init returns for the placeholder, or `_UNKNOWN`.
          state: this part of the state.
          path: its path.
          plain: whether its leaves are known not to be like the parameters.
        """
        if isinstance(mark, _Placeholder):
            return self.on_params(state)
        level = level_of(state)
        guide = None if mark is _UNKNOWN else level_of(mark)
        if mark is not _UNKNOWN and guide is None:
            return self.on_others(state)  # init returns an array here for any parameters
        if type(mark) in (list, tuple, dict) and not mark and type(state) is type(mark):
            plain = True  # a list of one entry per leaf, such as blocks, is not like the parameters
        if level is None:
            if not plain:
                self.refuse(path)
            return self.on_others(state)
        marks = [_UNKNOWN] * len(level.children)
        if guide is not None and guide.treedef == level.treedef:
            marks = guide.children
        elif guide is not None and is_named_tuple(state) and is_named_tuple(mark):
            # lookahead has another state for plain parameters, such as the placeholder.
            by_field = dict(zip(mark._fields, guide.children, strict=True))
            marks = [by_field.get(field, _UNKNOWN) for field in state._fields]
        slots, arrays = _declared_fields(type(state)) if is_named_tuple(state) else ((), ())
        new = []
        for entry, child_mark, child in zip(level.entries, marks, level.children, strict=True):
            name = entry_name(entry)
            if name in slots:
                new.append(self.on_params(child))
            else:
                new.append(self.walk(child_mark, child, (*path, entry), plain or name in arrays))
        return jax.tree.unflatten(level.treedef, new)

    def refuse(self, path: KeyPath) -> None:
        """Raise for a leaf at `path` that may or may not be like the parameters."""
        owner = name_of(self.init)
        if self.failure is not None:
            raise TypeError(
                f"map_params: cannot tell whether {path_str(path)} is like the parameters: init "
                f"of {owner} fails on a placeholder for them. Annotate the fields of its state "
                "that are as gradxform.types.Slot."
            ) from self.failure
        raise ValueError(
            f"map_params: the state has a leaf {path_str(path)}, which init of {owner} does not "
            "return. Was this state made by another transform's init?"
        )


@functools.cache
def _declared_fields(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields that a class of states declares as slots, and those declared otherwise."""
    hints, slots = hints_of(cls), slot_fields(cls)
    ours = cls.__module__.split(".")[0] == "gradxform"
    if not (slots or ours):
        return (), ()
    arrays = tuple(k for k, annotation in hints.items() if annotation is Array)
    return slots, arrays + (_NO_STATES if ours else ())


# Fields of states in gradxform that hold neither slots nor inner states.
_NO_STATES = ("hyperparams", "hyperparams_states", "skip_state")
