"""`Optimizer`, which keeps the state of a transform between calls."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracing
from gradxform.base import ArrayRule, check_transform
from gradxform.compat.keras import keras
from gradxform.compat.tf1.names import first_name, original_name
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import is_hole, with_paths
from gradxform.run_states.metrics import current_step
from gradxform.run_states.migration import migrate_state
from gradxform.schedules.numbers_of_now import of_this_moment, with_numbers_of_now
from gradxform.training import keras_attributes, numbers
from gradxform.training.gradients import Differentiation, gradients_of
from gradxform.training.graph_arguments import GATES, check_graph_arguments, check_name
from gradxform.training.hyperparams import Hyperparams
from gradxform.training.loss_scales import refuse_scale
from gradxform.training.state_names import as_numpy, fitting, names_of
from gradxform.training.step import (
    Asked,
    Numbers,
    applied,
    check_hashes,
    one_step,
    one_tree,
)
from gradxform.training.var_list import as_static, index_of
from gradxform.types import OptState, Params, Updates
from gradxform.values import put_live
from gradxform.values.called import has_called
from gradxform.values.config import to_config
from gradxform.wrappers.variable_names import variable_names


@final
class Optimizer:
    """A transform together with its state, for notebooks and for loops that came from TensorFlow.

        opt = Optimizer(adamw(1e-3))
        for batch in batches:
            params, loss = opt.minimize(loss_fn, params, batch)

    It keeps the state, not the parameters: calls take parameters and return new ones. `minimize`
    and `apply_gradients` are compiled, once for equal arguments, and donate nothing, so that what
    you kept stays valid. `make_step` does the same as a function of values, and donates.

    Learning rates, and every other number once it was set, are arguments of the compiled program:
    `opt.hyperparams["learning_rate"] = 1e-4` compiles nothing anew. A learning rate that is a
    function without arguments is called at each step.

    It cannot be used inside `jax.jit`, and cannot be subclassed.

    Args:
      tx: any transform, or an optimizer of Optax.
      params: the parameters, for the state. Defaults to those of the first call.
      names: what slots are called and in which order weights come: "gradxform" for the names of
        the states' fields; "tf1", "keras" or "keras3" for those of the original, where `tx` is an
        optimizer of `gradxform.compat`. See `get_slots`.
      name: what `get_name` returns, and with `names="tf1"` the name of the slots' variables.
        Defaults to what a factory was given, or else to the name of the transform.

    Raises:
      TypeError: if `tx` is not a transform, or `name` not a string.
      ValueError: if `names` is unknown, or `name` is empty.
    """

    GATE_NONE, GATE_OP, GATE_GRAPH = GATES.values()

    __slots__ = ("_first_params", "_iterations", "_live", "_name", "_names", "_state", "_tx")

    def __init__(
        self, tx: Any, params: Params | None = None, names: str = "gradxform", name: Any = None
    ) -> None:
        check_transform("Optimizer", tx, "tx")
        names_of(names)
        check_name(name)
        self._tx, self._names, self._name = tx, names, name
        self._live = numbers.always_live(tx)
        self._state: OptState = None
        self._first_params: Any = None  # shapes and dtypes; None before there is a state
        self._iterations = 0
        if params is not None:
            self._begin(params)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError(
            f"Optimizer: is final, and {cls.__name__} cannot subclass it. Write an update rule as "
            "an ArrayRule."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python's protocols, also before there are slots
            raise AttributeError(f"Optimizer: has no attribute {name!r}.")
        return keras_attributes.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        if any(numbers.injected_parts(self._tx)) and name in self.hyperparams:
            self.hyperparams[name] = value  # in the state
            return
        try:
            tx = keras_attributes.with_attribute(self._tx, name, value)
        except AttributeError as error:
            raise AttributeError(
                f"{error} A number is set as hyperparams[{name!r}] = ..., if it is one of "
                f"{', '.join(self.hyperparams)}."
            ) from None
        if name == "learning_rate" and not callable(value) and name in self.hyperparams:
            self.hyperparams[name] = value  # an argument of the program: nothing compiles anew
            return
        if self._first_params is not None:
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._first_params)
            self._state, _ = migrate_state(self._state, self._tx, tx, zeros)
        self._tx, self._live = tx, numbers.always_live(tx)

    def __repr__(self) -> str:
        return f"Optimizer({self.tx!r}, names={self._names!r}, name={self.get_name()!r})"

    # ------------------------------------------------------------------------------------- steps

    def minimize(
        self,
        loss_fn: Callable[..., Any],
        params: Params,
        *batch: Any,
        var_list: Any = None,
        grad_loss: Any = None,
        has_aux: bool = False,
        sparse: Any = None,
        step: Any = None,
        gate_gradients: int = GATES["GATE_OP"],
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: Any = None,
    ) -> tuple[Params, Any]:
        """Return the parameters after one step, and the loss before it: `(params, loss)`.

        With `has_aux` it is `(params, (loss, aux))`.

        Args:
          loss_fn: as in `make_step`, and so are the other arguments.
          params: the parameters.
          *batch: the other arguments of `loss_fn`.
          var_list: as there.
          grad_loss: as there.
          has_aux: as there.
          sparse: as there.
          step: the number of earlier steps; see `apply_gradients`.
          gate_gradients: of TensorFlow 1; checked, and without effect.
          aggregation_method: as gate_gradients.
          colocate_gradients_with_ops: as gate_gradients.
          name: as gate_gradients.
        """
        check_graph_arguments(gate_gradients, aggregation_method, colocate_gradients_with_ops, name)
        check_hashes("minimize", loss_fn)
        self._begin(params)
        tx, live = self._program()
        asked = Differentiation(as_static(var_list), has_aux, as_static(sparse))
        arguments = Numbers(live, grad_loss, step)
        params, state, out = _keeping(
            Asked(tx, loss_fn, asked, "minimize"), arguments, params, self._state, batch
        )
        self._advance(state)
        return params, out

    def compute_gradients(
        self,
        loss_fn: Callable[..., Any],
        params: Params,
        *batch: Any,
        var_list: Any = None,
        grad_loss: Any = None,
        has_aux: bool = False,
        sparse: Any = None,
        gate_gradients: int = GATES["GATE_OP"],
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
    ) -> tuple[Any, Updates]:
        """Return what `gradxform.compute_gradients` returns; the state is neither read nor changed.

        Args:
          loss_fn: as there, and so are the other arguments.
          params: the parameters.
          *batch: the other arguments of `loss_fn`.
          var_list: as there.
          grad_loss: as there.
          has_aux: as there.
          sparse: as there.
          gate_gradients: of TensorFlow 1; checked, and without effect.
          aggregation_method: as gate_gradients.
          colocate_gradients_with_ops: as gate_gradients.
        """
        check_graph_arguments(gate_gradients, aggregation_method, colocate_gradients_with_ops, None)
        asked = Differentiation(var_list, has_aux, sparse)
        state = self._state or jax.eval_shape(of_this_moment(self._tx).init, params)
        refuse_scale("compute_gradients", state, "call minimize, or scale it: scaled_loss.")
        return gradients_of("compute_gradients", loss_fn, params, batch, asked, grad_loss)

    def apply_gradients(
        self,
        grads: Updates = None,
        params: Params = None,
        step: Any = None,
        *,
        grads_and_vars: Iterable[tuple[Any, Any]] | None = None,
        experimental_aggregate_gradients: bool = True,
        name: Any = None,
        **extra: Any,
    ) -> Params:
        """Return the parameters after one update.

        Args:
          grads: the gradients; see `gradxform.apply_gradients`.
          params: the parameters.
          step: the number of earlier steps; see there.
          grads_and_vars: pairs `(gradient, path)` in place of `grads`. Keyword-only.
          experimental_aggregate_gradients: of Keras: whether a `gradient_aggregator` shall run.
            False reaches the transform as an extra argument of this name, outside of `jax.jit`.
          name: of TensorFlow; checked, and without effect.
          **extra: other extra arguments of the update.
        """
        check_name(name)
        if not isinstance(experimental_aggregate_gradients, bool):
            raise TypeError(
                "apply_gradients: experimental_aggregate_gradients must be True or False, got "
                f"{shown(experimental_aggregate_gradients)}."
            )
        if not experimental_aggregate_gradients:
            extra["experimental_aggregate_gradients"] = False
        if params is None:
            raise TypeError("apply_gradients: needs params, the parameters.")
        grads = list(grads) if isinstance(grads, Iterator) else grads
        is_empty = (type(grads) in (list, tuple) and not grads) or grads_and_vars == []
        if is_empty and self._names.startswith("keras") and jax.tree.leaves(params):
            return params  # as in Keras
        grads = one_tree("apply_gradients", grads, grads_and_vars, params)
        self._begin(params)
        tx, live = self._program()
        is_static = not experimental_aggregate_gradients
        if is_static or not all(map(_is_array, jax.tree.leaves(extra))):
            tx = put_live(tx, live) if live else tx  # only arrays can enter a program
            new = applied("apply_gradients", tx, grads, self._state, params, step, None, extra)
        else:
            new = _applying(tx, live, grads, self._state, params, step, extra)
        params, state = new
        self._advance(state)
        return params

    def _begin(self, params: Params) -> None:
        """Make the state for these parameters if there is none yet."""
        if is_tracing():
            raise TypeError(
                "Optimizer: keeps its state between calls, and cannot be used inside jax.jit. Use "
                "make_step, or gradxform.apply_gradients."
            )
        if self._first_params is None:
            state = self._tx.init(params)
            self._state = state if self._state is None else fitting(self._tx, self._state, state)
            self._first_params = jax.eval_shape(lambda: params)

    def _advance(self, state: OptState) -> None:
        self._state = state
        self._iterations += 1

    def _program(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the transform with holes for its live numbers, and these."""
        tx, live = with_numbers_of_now(self._tx) if has_called(self._tx) else (self._tx, ())
        live_numbers = numbers.as_arguments(self._tx, self._live)
        return numbers.with_holes(tx, self._live, len(live)), (*live, *live_numbers)

    # ------------------------------------------------------------------------- what can be asked

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
        self._state = state if self._first_params is None else fitting(self._tx, state, self._state)
        with contextlib.suppress(ValueError):  # perhaps nothing in it counts steps
            self._iterations = int(np.max(np.asarray(current_step(state))))

    @property
    def iterations(self) -> int:
        """How many updates were applied; for a state that was set, how many it says."""
        return self._iterations

    @property
    def hyperparams(self) -> Hyperparams:
        """The numbers of the transform by name, to read and to set: `opt.hyperparams["b1"]`.

        They are those that `inject_hyperparams` keeps in the state, and the fields of all other
        parts. Where several have the same name, the part's name comes in front; while they are
        equal, the name alone means all of them: the learning rate of a step and of a decay.
        """
        return Hyperparams(self)

    @hyperparams.setter
    def hyperparams(self, new: dict[str, Any]) -> None:
        self.hyperparams.update(new)

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
        """Return the arguments as plain data, with the transform as `to_config` writes it.

        With names of Keras, Keras's own config of the optimizer, under the name of this one.
        """
        if self._names.startswith("keras"):
            with contextlib.suppress(TypeError, ValueError):  # Keras does not have it
                return keras.serialize(self)["config"]
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
          TypeError: if one is not an array of numbers of its kind.
        """
        if self._first_params is None:
            raise ValueError(
                "Optimizer: set_weights needs the parameters; pass them as Optimizer(tx, params)."
            )
        names = names_of(self._names)
        of = self._named(), self._state, self._first_params
        self.state, iterations = names.with_weights(*of, list(weights))
        self._iterations = self._iterations if iterations is None else iterations


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float)


def _apply(
    tx: Any,
    live: tuple[Any, ...],
    grads: Updates,
    state: OptState,
    params: Params,
    step: Any,
    extra: dict[str, Any],
) -> tuple[Params, OptState]:
    tx = put_live(tx, live) if live else tx
    return applied("apply_gradients", tx, grads, state, params, step, None, extra)


_keeping = jax.jit(one_step, static_argnums=0)
_applying = jax.jit(_apply, static_argnums=0)
