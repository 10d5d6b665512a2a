"""What a holder has: a transform and its state, and the names of what is in it."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import ArrayRule
from gradxform.compat.keras import configs
from gradxform.compat.tf1.names import first_name, original_name
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import is_hole, with_paths
from gradxform.run_states.metrics import current_step
from gradxform.training import keras_attributes
from gradxform.training.graph_arguments import check_name
from gradxform.training.state_names import as_numpy, fitting_state, names_of
from gradxform.training.var_list import index_of
from gradxform.types import OptState
from gradxform.values.config import to_config
from gradxform.wrappers.variable_names import variable_names


class Held:
    """A transform with its state and names for its arrays: what an `Optimizer` can be asked."""

    __slots__ = ("_first_params", "_iterations", "_name", "_names", "_replicas", "_state", "_tx")

    def __init__(self, tx: Any, names: str, name: Any) -> None:
        names_of(names)
        check_name(name)
        self._tx, self._names, self._name = tx, names, name
        self._replicas: Any = None  # `Replicas`, where it is of all of them
        self._state: OptState = None
        self._first_params: Any = None  # shapes and dtypes; None before there is a state
        self._iterations = 0

    @property
    def tx(self) -> Any:
        """The transform, with the hyperparameters of this moment."""
        return self._tx

    @property
    def given_name(self) -> str | None:
        """The name that it was given; None without one."""
        return self._name

    @property
    def state(self) -> OptState:
        """The state; None before the first parameters. A state from a checkpoint can be set."""
        return self._state

    @state.setter
    def state(self, state: OptState) -> None:
        self._state = (
            state if self._first_params is None else fitting_state(self._tx, state, self._state)
        )
        with contextlib.suppress(ValueError):  # perhaps nothing in it counts steps
            self._iterations = int(np.max(np.asarray(current_step(state))))

    def _counts_steps(self) -> bool:
        """Whether something in the state counts the steps that were taken."""
        try:
            current_step(self._state)
        except ValueError:
            return False
        return True

    @property
    def iterations(self) -> int:
        """How many updates were applied; for a state that was set, how many it says.

        It can be set before there is a state, which then begins with these counts.
        """
        return self._iterations

    @iterations.setter
    def iterations(self, iterations: Any) -> None:
        if self._first_params is not None:
            raise RuntimeError(
                "Optimizer: iterations can be set until there is a state. Set the state of a "
                "checkpoint, or pass step= where the schedule reads it."
            )
        whole = keras_attributes.described(self._tx) or {}
        accumulates = whole.get("config", {}).get("gradient_accumulation_steps")
        if not whole or accumulates or self._replicas is not None:
            raise ValueError(
                "Optimizer: iterations can be set for one of Keras's optimizers that does not "
                "accumulate gradients; others have counts of other things. Set the state of a "
                "checkpoint, or pass step= where the schedule reads it."
            )
        is_scalar = isinstance(iterations, jax.Array | np.ndarray | np.generic)
        n = iterations.item() if is_scalar and np.ndim(iterations) == 0 else iterations
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**31:
            raise ValueError(
                f"Optimizer: iterations must be an integer from 0 to 2**31 - 1, got {shown(n)}."
            )
        self._iterations = n

    def get_name(self) -> str:
        """Return the name: the given one, or that of the class in TensorFlow or Keras.

        For a transform that neither has, its own.
        """
        name = self._name or first_name(self._tx)
        if isinstance(self._tx, ArrayRule):  # a part, and not a whole optimizer
            return name or name_of(self._tx)
        if name is None and self._names != "tf1":
            name = (keras_attributes.described(self._tx) or {}).get("class_name")
        return name or original_name(self._tx)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data.

        Of an optimizer of Keras its own config, under the name of this holder; of another the name,
        the names of slots, and the transform as `to_config` writes it.
        """
        if self._names != "tf1":
            for version in (3, None) if self._names == "keras3" else (None,):
                with contextlib.suppress(TypeError, ValueError):  # Keras does not have it
                    return configs.serialize(self, version=version)["config"]
        config = to_config(self._tx)
        return {"name": self.get_name(), "names": self._names, "transform": config}

    # ----------------------------------------------------------------------------------- weights

    def _slots(self) -> dict[str, Any]:
        """Return the slots, as far as they have arrays of single parameters."""
        if self._first_params is None:
            return {}
        shapes = {path: x.shape for path, x in with_paths(self._first_params) if not is_hole(x)}
        slots = {}
        for name, tree in names_of(self._names).slots(self._tx, self._state).items():
            arrays = {path: x for path, x in with_paths(tree) if not is_hole(x)}
            # A scalar looks like a slot of parameters that are one array.
            if any(path in shapes and (path or jnp.shape(x) == shapes[()])
                   for path, x in arrays.items()):  # fmt: skip
                slots[name] = arrays
        return slots

    def get_slot(self, path: Any, slot: str) -> Any:
        """Return what a slot remembers of the parameter at a path, or None if that slot is absent.

        With names of Keras, another slot is a KeyError, as there.

        Args:
          path: such as `encoder/kernel`.
          slot: a name of `get_slot_names()`.

        Raises:
          ValueError: if the path names no parameter.
          KeyError: with names of Keras, if the slot does not exist.
        """
        if self._first_params is None:
            return None
        paths = [names for names, x in with_paths(self._first_params) if not is_hole(x)]
        names = paths[index_of("Optimizer.get_slot", "path", path, paths)]
        slots = self._slots()
        if slot not in slots and self._names.startswith("keras"):
            raise KeyError(
                f"Optimizer: the slot {slot!r} does not exist, only {', '.join(map(repr, slots))}."
                f"{did_you_mean(slot, slots)}"
            )
        return slots.get(slot, {}).get(names)

    def get_slot_names(self) -> list[str]:
        """Return the names of all slots, sorted; none before the first parameters."""
        return sorted(self._slots())

    def variables(self) -> dict[str, Any]:
        """Return the count of iterations and all arrays of the state, by name, in their order."""
        return dict(self._weights())

    @property
    def weights(self) -> list[Any]:
        """What `variables` returns, without the names, as Keras's `weights`."""
        return [x for _, x in self._weights()]

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of what `variables` returns, as a list of NumPy arrays."""
        return [as_numpy(x) for _, x in self._weights()]

    def _weights(self) -> list[tuple[str, Any]]:
        of = self._named(), self._state, self._first_params, self._iterations
        return names_of(self._names).weights(*of)

    def _named(self) -> Any:
        """Return the transform with the name of the holder, which is that of its variables."""
        return variable_names(self._tx, self._name) if self._name else self._tx

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Continue with the weights of an optimizer of this kind, in the order of `get_weights`.

        Args:
          weights: the arrays.

        Raises:
          ValueError: if there are more or fewer than `get_weights` returns, or one has another
            shape; or before there is a state.
          TypeError: if they are not a list, or one is not an array of numbers of its kind.
        """
        if self._first_params is None:
            raise ValueError(
                "Optimizer: set_weights needs the parameters; pass them as Optimizer(tx, params)."
            )
        if not isinstance(weights, Iterable) or isinstance(weights, str | bytes | Mapping):
            raise TypeError(f"Optimizer: weights must be a list of arrays, got {shown(weights)}.")
        names = names_of(self._names)
        of = self._named(), self._state, self._first_params
        self.state, iterations = names.with_weights(*of, list(weights))
        self._iterations = self._iterations if iterations is None else iterations
