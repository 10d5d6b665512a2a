"""`Optimizer`, which keeps the state of a transform between calls."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer, is_tracing
from gradxform.base import check_transform, extra_names
from gradxform.compat.called_numbers import check_numbers
from gradxform.distributed.replicas import Replicas
from gradxform.errors import TypeAndRuntimeError, require_bool
from gradxform.leaves import is_hole, leaves_of, with_paths
from gradxform.leaves.no_gradient import refuse_other_than_arrays
from gradxform.run_states.migration import migrate_state
from gradxform.schedules.numbers_of_now import of_this_moment, with_numbers_of_now
from gradxform.training import keras_attributes, numbers
from gradxform.training.gradients import Differentiation, gradients_of
from gradxform.training.graph_arguments import GATES, check_graph_arguments, check_name
from gradxform.training.held_state import Held
from gradxform.training.hyperparams import Hyperparams
from gradxform.training.loss_scales import refuse_scale
from gradxform.training.part_attributes import fields_called, todays_name
from gradxform.training.programs import (
    Update,
    apply,
    as_one_replica,
    axes_named_by,
    check_replicas,
    gradients,
    init_program,
    run,
)
from gradxform.training.state_names import fitting_state
from gradxform.training.step import (
    Asked,
    Numbers,
    begun_now,
    check_hashes,
    check_step,
    one_step,
    one_tree,
)
from gradxform.training.var_list import as_static
from gradxform.types import OptState, Params, Updates
from gradxform.values.called import has_called
from gradxform.wrappers.external_step import with_counts


@final
class Optimizer(Held):
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
      replicas: `distributed.Replicas`, all of which it trains: parameters, batches, losses and the
        state have their axis. Without it, an optimizer over an axis of replicas, such as
        `tf_contrib.Tower`, has one replica. Keyword-only.

    Raises:
      TypeError: if `tx` is not a transform, `name` not a string, or `replicas` something else.
      ValueError: if `names` is unknown, or `name` is empty.
    """

    GATE_NONE, GATE_OP, GATE_GRAPH = GATES.values()

    __slots__ = (
        "_begun_at",
        "_live",
        "_updates_slots",
    )

    def __init__(
        self,
        tx: Any,
        params: Params | None = None,
        names: str = "gradxform",
        name: Any = None,
        *,
        replicas: Replicas | None = None,
    ) -> None:
        check_transform("Optimizer", tx, "tx")
        check_replicas(replicas)
        super().__init__(tx, names, name)
        self._replicas = replicas
        self._begun_at: dict[str, Any] = {}  # of a gradient that was computed and not yet applied
        self._updates_slots = True
        self._live = numbers.always_live(tx)
        if params is not None:
            self._begin(params)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(self, name, value)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError(
            f"Optimizer: is final, and {cls.__name__} cannot subclass it. Write an update rule as "
            "an ArrayRule."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python's protocols, also before there are slots
            raise AttributeError(f"Optimizer: has no attribute {name!r}.")
        injected = self._injected_name(name)
        return (
            keras_attributes.attribute(self, name)
            if injected is None
            else self.hyperparams[injected]
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        injected = self._injected_name(name)
        if injected is not None:
            self.hyperparams[injected] = value  # in the state
            return
        if self._replicas is not None and self._first_params is not None:
            raise AttributeError(
                f"Optimizer: {name} of all replicas cannot be set once there is a state. Make "
                "another Optimizer, and set its state."
            )
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
            # Where the state does not count its steps, a schedule goes on at those taken here.
            step = None if self._counts_steps() else self._iterations
            self._state, _ = migrate_state(self._state, self._tx, tx, zeros, step=step)
        self._tx, self._live = tx, numbers.always_live(tx)

    def _injected_name(self, name: str) -> str | None:
        """Return what a number in the state is called that has this name, ours or Keras's."""
        if not any(numbers.injected_parts(self._tx)):
            return None
        if name not in (found := self.hyperparams):
            name = next((k for k in fields_called(name) if k in found), name)
        return todays_name(name, 3) if name in found else None

    def __repr__(self) -> str:
        return f"Optimizer({self.tx!r}, names={self._names!r}, name={self.get_name()!r})"

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
        **extra: Any,
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
          **extra: extra arguments of the update, arrays, such as `update_slots=False`.
        """
        check_graph_arguments(gate_gradients, aggregation_method, colocate_gradients_with_ops, name)
        check_hashes("minimize", loss_fn)
        check_step("minimize", step)
        self._begin(params)
        tx, live = self._program()
        asked = Differentiation(as_static(var_list), has_aux, as_static(sparse))
        arguments = Numbers(live, grad_loss, step)
        static = Asked(tx, loss_fn, asked, part="minimize")
        trees = params, self._state, batch, self._flags() | extra
        params, state, out = run(one_step, self._tx, self._replicas, static, arguments, *trees)
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
        """Return what `gradxform.compute_gradients` returns; no step is taken.

        A `drop_stale` remembers the step at which it was called, for the next `apply_gradients`.

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
        refuse_other_than_arrays("Optimizer", params)
        asked = Differentiation(var_list, has_aux, sparse)
        state = self._state or jax.eval_shape(of_this_moment(self._tx).init, params)
        refuse_scale("compute_gradients", state, "call minimize, or scale it: scaled_loss.")
        if "grad_step" in (extra_names(self._tx) or ()):
            self._begin(params)
            self._begun_at = begun_now(self._tx, self._state)
        if self._replicas is None:
            return gradients_of("compute_gradients", loss_fn, params, batch, asked, grad_loss)
        asked = Differentiation(as_static(var_list), has_aux, as_static(sparse))
        trees = grad_loss, params, batch
        return run(gradients, self._tx, self._replicas, (loss_fn, asked), *trees)

    def get_gradients(
        self, loss_fn: Callable[..., Any], params: Params, *batch: Any
    ) -> list[Updates]:
        """Return the gradients of all parameters, in their order, as Keras's `get_gradients`.

        Args:
          loss_fn: as in `compute_gradients`.
          params: the parameters.
          *batch: the other arguments of `loss_fn`.

        Raises:
          ValueError: if the loss does not depend on a parameter.
        """
        _, grads = self.compute_gradients(loss_fn, params, *batch)
        for (path, g), (_, p) in zip(with_paths(grads), with_paths(params), strict=True):
            if is_hole(g) and not is_hole(p):
                raise ValueError(
                    f"get_gradients: the loss does not depend on {'/'.join(path)}; "
                    "compute_gradients returns None for it."
                )
        return [g for g in leaves_of(grads) if not is_hole(g)]

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
        aggregates = experimental_aggregate_gradients
        require_bool("apply_gradients", "experimental_aggregate_gradients", aggregates)
        flag = "experimental_aggregate_gradients", False
        flags = () if aggregates else (flag,)
        if params is None:
            raise TypeError("apply_gradients: needs params, the parameters.")
        check_step("apply_gradients", step)
        grads = list(grads) if isinstance(grads, Iterator) else grads
        is_empty = (type(grads) in (list, tuple) and not grads) or grads_and_vars == []
        if is_empty and self._names.startswith("keras") and jax.tree.leaves(params):
            return params  # as in Keras
        grads = one_tree("apply_gradients", grads, grads_and_vars, params)
        self._begin(params)
        tx, live = self._program()
        static, numbers = Update(tx, flags), Numbers(live, None, step)
        begun_at = self._begun_at or begun_now(self._tx, self._state)
        arrays = grads, self._state, params, begun_at | self._flags() | extra
        if all(map(_takes_as_array, jax.tree.leaves(extra))):
            params, state = run(apply, self._tx, self._replicas, static, numbers, *arrays)
        elif self._replicas is None:  # only arrays can enter a program
            update = functools.partial(apply, static, numbers, extra=arrays[-1])
            axes = axes_named_by(self._tx)
            params, state = as_one_replica(update, axes)(*arrays[:-1])
        else:
            raise TypeError(
                "apply_gradients: over replicas, extra arguments must be arrays, got "
                f"{', '.join(k for k, x in extra.items() if not _takes_as_array(x))}."
            )
        self._advance(state)
        return params

    @contextlib.contextmanager
    def avoid_updating_slots(self) -> Iterator[None]:
        """Within it, steps leave the slots of `RegAdagrad` as they are: `update_slots=False`.

        Raises:
          TypeError: if the optimizer does not have the extra argument `update_slots`.
        """
        if "update_slots" not in (extra_names(self._tx) or ()):
            raise TypeError(
                f"Optimizer: {self.get_name()} always updates its slots; only RegAdagrad, or "
                "another optimizer with scale_by_rss, can leave them."
            )
        before, self._updates_slots = self._updates_slots, False
        try:
            yield
        finally:
            self._updates_slots = before

    def _flags(self) -> dict[str, Any]:
        """Return the extra arguments that `avoid_updating_slots` sets."""
        if self._updates_slots:
            return {}
        n = () if self._replicas is None else (self._replicas.n,)
        return {"update_slots": np.zeros(n, bool)}

    def set_weights(self, weights: Sequence[Any]) -> None:
        if self._replicas is not None:
            raise ValueError(
                "Optimizer: set_weights takes the weights of one replica; set opt.state to that of "
                "all of them."
            )
        super().set_weights(weights)

    set_weights.__doc__ = Held.set_weights.__doc__

    def _begin(self, params: Params) -> None:
        """Make the state for these parameters if there is none yet."""
        if is_tracing() or any(map(is_tracer, jax.tree.leaves(params))):
            raise TypeAndRuntimeError(
                "Optimizer: keeps its state between calls, and cannot be used inside jax.jit, "
                "jax.vmap or jax.shard_map. Use make_step or gradxform.apply_gradients; "
                "Optimizer(tx, replicas=...) trains all replicas."
            )
        if self._first_params is None:
            refuse_other_than_arrays("Optimizer", params)
            is_alone = self._replicas is None and not axes_named_by(self._tx)
            tx = self._tx if is_alone else of_this_moment(self._tx)
            state = (
                tx.init(params)
                if is_alone
                else run(init_program, tx, self._replicas, tx, (), params)
            )
            if self._iterations:
                state = with_counts(state, jnp.asarray(self._iterations, jnp.int32))
            self._state = (
                state if self._state is None else fitting_state(self._tx, self._state, state)
            )
            self._first_params = jax.eval_shape(lambda: params)

    def _advance(self, state: OptState) -> None:
        self._state = state
        self._iterations += 1
        self._begun_at = {}  # the next gradient begins later

    def _program(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the transform with holes for its live numbers, and these."""
        tx, live = with_numbers_of_now(self._tx) if has_called(self._tx) else (self._tx, ())
        check_numbers(tx, live)
        live_numbers = numbers.as_arguments(self._tx, self._live)
        return numbers.with_holes(tx, self._live, len(live)), (*live, *live_numbers)


def _takes_as_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float)
