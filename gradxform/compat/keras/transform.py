"""An optimizer of Keras 3 as a transform."""

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from gradxform.base import Transform, transform
from gradxform.compat.keras.imports import keras_on_jax
from gradxform.errors import shown
from gradxform.leaves import (
    align_params,
    is_hole,
    map_with_paths,
    require_params,
    structure_of,
    with_paths,
)
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, Params, PyTree, Updates
from gradxform.values.fields import set_fields


class FromKerasState(NamedTuple):
    """State of `from_keras`."""

    slots: dict[str, PyTree]  # each like params, by Keras's name for it
    others: dict[str, Array]  # the optimizer's other variables: iteration, learning_rate, ...


class _KerasVariables(NamedTuple):
    """The places in the list of an optimizer's variables."""

    optimizer: Any
    params: list[Any]  # Keras's variables
    places: list[tuple[str, int | None]]  # of each variable: a name, and the index of a parameter


@transform(name="from_keras")
class from_keras(Transform):
    """Step as an optimizer of Keras 3 does, by its own code.

        tx = gx.chain(gx.clip(1.0), compat.keras.from_keras(keras.optimizers.Lion(1e-4)))

    Its value is the optimizer's config without the name: two of equal configs are equal. The state
    of the optimizer is not taken over; it begins anew, with `init`. For Keras's own classes
    `compat.keras.deserialize(keras.optimizers.serialize(optimizer))` makes a chain of this
    library's parts, which does not need Keras. This is for all others, also classes of your own, if
    they are registered with `keras.saving.register_keras_serializable`.

    The updates are the differences of the parameters, rounded once more. Parameters whose gradient
    is None stay as they are. Must be the last part of a chain.

    Args:
      optimizer: the optimizer; its learning rate is in the state, unless it is a schedule.
      config: in place of it, its config as JSON text.

    Raises:
      ImportError: if Keras 3 is not installed.
      RuntimeError: if Keras runs on another backend than JAX.
      TypeError: if `optimizer` is not an optimizer of Keras 3.
      ValueError: if Keras cannot make the optimizer of its config, or it is
        LossScaleOptimizer, which stands around another.
    """

    config: str

    def __init__(self, optimizer: Any = None, *, config: str | None = None):
        keras = keras_on_jax(self)
        if config is None:
            config = _config_text_of_keras(keras, optimizer)
        elif optimizer is not None or not isinstance(config, str):
            raise TypeError("from_keras: config must be JSON text, and without an optimizer.")
        set_fields(self, config=config)
        self._made()

    def _made(self) -> Any:
        """Return a new optimizer."""
        keras = keras_on_jax(self)
        remedy = "register its class with keras.saving.register_keras_serializable."
        refused = f"from_keras: Keras cannot make the optimizer of its config; {remedy}"
        try:
            made = keras.optimizers.deserialize(json.loads(self.config))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(refused) from error
        # Of a class that it does not know, Keras may return the name.
        if not isinstance(made, keras.optimizers.Optimizer):
            raise ValueError(refused)
        return made

    def init(self, params: Params) -> FromKerasState:
        """Return the variables with which the optimizer begins."""
        made = _built_keras_optimizer(self, params)
        names = dict.fromkeys(name for name, i in made.places if i is not None)
        slots: dict[str, Any] = {k: [None] * len(made.params) for k in names}
        others: dict[str, Any] = {}
        for (name, i), v in zip(made.places, made.optimizer.variables, strict=True):
            if i is None:
                others[name] = v.value
            else:
                slots[name][i] = v.value
        return FromKerasState({k: _like_keras_params(params, x) for k, x in slots.items()}, others)

    def update(
        self, updates: Updates, state: FromKerasState, params: Params | None = None
    ) -> tuple[Updates, FromKerasState]:
        """Return the differences that a step of the optimizer makes."""
        require_params(self, params)
        check_state(self, state, FromKerasState)
        return _updated_by_keras(self, updates, state, params)


@functools.partial(jax.jit, static_argnums=0)
def _updated_by_keras(
    self: from_keras, updates: Any, state: FromKerasState, params: Any
) -> tuple[Any, FromKerasState]:
    align_params(self, updates, structure_of(updates), params)
    grads = {path: g for path, g in with_paths(updates) if not is_hole(g)}
    if not grads:
        return updates, state
    keras = keras_on_jax(self)
    made = _built_keras_optimizer(self, params)
    own = {path: p for path, p in with_paths(params) if not is_hole(p)}
    slots = {k: dict(with_paths(tree)) for k, tree in state.slots.items()}
    paths = list(own)
    values = [state.others[name] if i is None else slots[name][paths[i]] for name, i in made.places]
    variables = dict(zip(paths, made.params, strict=True))
    mapping = [(variables[path], p) for path, p in own.items()]
    mapping += zip(made.optimizer.variables, values, strict=True)
    # Gradients that are missing are not handed over: Keras would warn of them in every step.
    with _promoting_for_keras(), keras.StatelessScope(state_mapping=mapping) as scope:
        made.optimizer.apply(list(grads.values()), [variables[path] for path in grads])

    def after(variable: Any, before: Any) -> Any:
        now = scope.get_current_value(variable)
        return before if now is None else now

    def difference(path: Any, g: Any) -> Any:
        wide = at_least_float32(own[path].dtype)
        new = after(variables[path], own[path])
        return cast(cast(new, wide) - cast(own[path], wide), g.dtype)

    others = dict(state.others)
    for (name, i), v, x in zip(made.places, made.optimizer.variables, values, strict=True):
        if i is None:
            others[name] = after(v, x)
        else:
            slots[name][paths[i]] = after(v, x)
    new_slots = {
        k: map_with_paths(lambda path, _, k=k: slots[k][path], tree)
        for k, tree in state.slots.items()
    }
    return map_with_paths(difference, updates), FromKerasState(new_slots, others)


def _built_keras_optimizer(self: from_keras, params: Any) -> _KerasVariables:
    """Return the optimizer with variables for these parameters."""
    keras = keras_on_jax(self)
    optimizer = self._made()
    references: dict[int, tuple[str, int]] = {}
    add = optimizer.add_variable_from_reference

    def recorded(reference_variable: Any, name: str | None = None, **options: Any) -> Any:
        variable = add(reference_variable, name=name, **options)
        index = next(i for i, v in enumerate(variables) if v is reference_variable)
        references[id(variable)] = (name or "var", index)
        return variable

    with _promoting_for_keras():
        variables = [
            _keras_variable(keras, path, p) for path, p in with_paths(params) if not is_hole(p)
        ]
        optimizer.add_variable_from_reference = recorded
        optimizer.build(variables)
    places: list[tuple[str, int | None]] = []
    for v in optimizer.variables:
        place = references.get(id(v), (v.name, None))
        while place in places:  # a name that the optimizer uses twice
            place = (f"{place[0]}_", place[1])
        places.append(place)
    return _KerasVariables(optimizer, variables, places)


def _keras_variable(keras: Any, path: tuple[str, ...], p: Any) -> Any:
    """Return a variable of Keras with the path of a parameter, which Muon reads."""
    with contextlib.ExitStack() as stack:
        for name in path[:-1]:
            stack.enter_context(keras.name_scope(name))
        return keras.Variable(p, dtype=p.dtype.name, name=path[-1] if path else "params")


@contextlib.contextmanager
def _promoting_for_keras() -> Iterator[None]:
    """Let Keras's code promote types and ranks, on which it relies."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _like_keras_params(params: Any, leaves: list[Any]) -> Any:
    """Return the leaves, one for each parameter that is not a hole, in the structure of params."""
    rest = iter(leaves)
    return map_with_paths(lambda path, p: next(rest), params)


def _config_text_of_keras(keras: Any, optimizer: Any) -> str:
    """Return the config of an optimizer as text, without its name."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"from_keras: optimizer must be an optimizer of Keras 3, got {shown(optimizer)}; "
            "compat.keras.get reads names and configs."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "from_keras: LossScaleOptimizer is compat.keras.LossScaleOptimizer here, a loss_scale; "
            "put from_keras(optimizer.inner_optimizer) in it."
        )
    config = keras.optimizers.serialize(optimizer)
    own = {k: v for k, v in config["config"].items() if k != "name"}
    return json.dumps(config | {"config": own}, sort_keys=True)
