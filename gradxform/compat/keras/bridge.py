"""Keras 3 itself: a transform as an optimizer of it, and an optimizer of it as a transform."""

import contextlib
import functools
import importlib
import json
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import Transform, check_transform, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    align_params,
    flatten_with_names,
    is_hole,
    map_with_paths,
    require_params,
    structure_of,
    with_paths,
)
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, PyTree, SupportsTransform
from gradxform.values.config import from_config, to_config
from gradxform.values.fields import set_fields
from gradxform.wrappers.loss_scale import has_loss_scale


def imported_from_keras(caller: str, module: str) -> Any:
    """Return a module of the extra `keras`.

    Raises:
      ImportError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # Keras without its backend
            raise ImportError(
                f"{caller}: {module} cannot be imported without {error.name!r}; set "
                "KERAS_BACKEND=jax in the environment before the first import of keras."
            ) from error
        raise ImportError(
            f"{caller}: {module} is not installed; install the extra, gradxform[keras]."
        ) from error


def keras_on_jax(caller: Any) -> Any:
    """Return the module `keras`.

    Raises:
      ImportError: if Keras 3 is not installed.
      RuntimeError: if its backend is not JAX.
    """
    caller = caller if isinstance(caller, str) else name_of(caller)
    keras = imported_from_keras(caller, "keras")
    if int(keras.__version__.partition(".")[0]) < 3:
        raise ImportError(f"{caller}: needs Keras 3, this is {keras.__version__}.")
    backend = keras.config.backend()
    if backend != "jax":
        raise RuntimeError(
            f"{caller}: Keras runs on the backend {backend!r}, only 'jax' runs these optimizers; "
            "set KERAS_BACKEND=jax in the environment before the first import of keras."
        )
    return keras


# ----------------------------------------------------------------------------------------- as_keras


def as_keras(tx: SupportsTransform, learning_rate: Any = 1.0, **keras_options: Any) -> Any:
    """Return a transform as an optimizer of Keras 3, for `model.compile`.

        model.compile(as_keras(gx.adamw(1e-3), clipnorm=1.0), loss="mse")

    Keras adds learning_rate times the updates of `tx` to the parameters. A callback that sets the
    learning rate so scales what `tx` does by itself. What Keras does around a step is in
    `keras_options`. Everything that `tx` remembers is in variables of the optimizer, named by their
    paths in the state. A model that is saved and loaded goes on bitwise as if it had not been; call
    `register_optimizer` before you load it in another process.

    Args:
      tx: a transform. It sees the parameters by the paths of Keras's variables, such as
        `sequential/dense/kernel`.
      learning_rate: the factor of the updates: a number, or a schedule of Keras.
      **keras_options: clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum,
        ema_overwrite_frequency, loss_scale_factor, gradient_accumulation_steps, weight_decay, name.

    Raises:
      ImportError: if Keras 3 is not installed.
      RuntimeError: if Keras runs on another backend than JAX, or lacks what the class overrides.
      TypeError: if `tx` is not a transform.
      ValueError: for a weight_decay at a learning rate of 1, for a `loss_scale` in `tx`, and for
        what Keras refuses.
    """
    check_transform("as_keras", tx, "tx")
    if has_loss_scale(tx):
        raise ValueError(
            "as_keras: Keras scales the loss only for its own class; leave loss_scale out, and "
            "compile with keras.optimizers.LossScaleOptimizer(as_keras(...))."
        )
    cls = register_optimizer()
    rate = learning_rate
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        rate = float(rate)
    elif not callable(rate):
        raise TypeError(
            f"as_keras: learning_rate must be a number or a schedule of Keras, got {shown(rate)}."
        )
    if keras_options.get("weight_decay") and rate == 1.0:
        decay = keras_options["weight_decay"]
        raise ValueError(
            f"as_keras: weight_decay={decay!r} at a learning rate of 1 would shrink the parameters "
            "by that factor in every step; put add_decayed_weights or adamw in tx."
        )
    return cls(tx, rate, **keras_options)


@functools.cache
def register_optimizer() -> type:
    """Return the class of the optimizers of `as_keras`, which Keras then knows by its name.

    Keras only loads classes that are registered. Call this before you load a model that was saved
    in another process.

    Raises:
      ImportError: if Keras 3 is not installed.
      RuntimeError: if Keras runs on another backend than JAX, or lacks what the class overrides.
    """
    keras = keras_on_jax("as_keras")
    base: Any = keras.optimizers.Optimizer
    # Keras does not export this method. `update_step`, which it does, sees one variable alone,
    # while a transform sees all of them.
    if "_backend_update_step" not in dir(base):
        raise RuntimeError(
            f"as_keras: the optimizers of Keras {keras.__version__} do not have the method "
            "_backend_update_step, in which a transform sees all gradients; install a version of "
            "Keras that has it, such as 3.15."
        )
    contents = {"__module__": __name__, "__doc__": "An optimizer of Keras 3; see `as_keras`."}
    optimizer = type("TransformOptimizer", (_Steps, base), contents)
    return keras.saving.register_keras_serializable("gradxform")(optimizer)


# Keras is not imported with this file: `register_optimizer` puts its class behind `_Steps`.
_Behind: Any = object


class _Steps(_Behind):
    """The methods by which an optimizer of Keras 3 takes the steps of a transform."""

    def __init__(self, transform: Any, learning_rate: Any = 1.0, **options: Any):
        super().__init__(learning_rate=learning_rate, **options)
        # Keras tracks tuples and dicts among its attributes by replacing them.
        self._held = types.SimpleNamespace(tx=transform)

    @property
    def transform(self) -> Any:
        """The transform."""
        return self._held.tx

    @property
    def state(self) -> Any:
        """The state of the transform, in dicts by the paths of the model's variables.

        Raises:
          ValueError: before the optimizer is built.
        """
        held = self._held
        if not self.built:
            raise ValueError(
                f"{self.name}: the optimizer has no state yet; call build(trainable_variables)."
            )
        values = [f(v.value) for f, v in zip(held.restore, held.slots, strict=True)]
        return jax.tree.unflatten(held.treedef, values)

    def set_state(self, state: Any) -> None:
        """Set the state of the transform.

        Raises:
          ValueError: before the optimizer is built, and for a state of another structure.
        """
        before, values = jax.tree.leaves(self.state), jax.tree.leaves(state)
        if jax.tree.structure(state) != self._held.treedef or any(
            jnp.shape(x) != jnp.shape(y) for x, y in zip(values, before, strict=True)
        ):
            raise ValueError(
                f"{self.name}: the state must have the structure and shapes of the optimizer's "
                "own; make it by transform.init of parameters in the same dicts."
            )
        self._assign_state(state)

    def _assign_state(self, state: Any) -> None:
        for v, x in zip(self._held.slots, jax.tree.leaves(state), strict=True):
            self.assign(v, plain_array(x)[0])

    def build(self, variables: Any) -> None:
        """Make a variable of every array in the state."""
        if self.built:
            return
        super().build(variables)
        held = self._held
        held.own = [v for v in variables if not getattr(v, "overwrite_with_gradient", False)]
        held.tree = tree_of([v.path for v in held.own])
        state = held.tx.init(held.tree([v.value for v in held.own]))
        named, held.treedef = flatten_with_names(state)
        held.slots, held.restore = [], []
        for path, x in named:
            data, restore = plain_array(x)
            held.restore.append(restore)
            held.slots.append(
                self.add_variable(
                    shape=data.shape,
                    initializer=functools.partial(_copied_for_variable, data),
                    dtype=data.dtype.name,
                    name=".".join(path).replace("/", "."),
                )
            )

    def _backend_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        held = self._held
        # Keras leaves out the variables without a gradient.
        of_index = {self._get_variable_index(v): g for g, v in zip(grads, variables, strict=True)}
        gradients = held.tree([of_index.get(self._get_variable_index(v)) for v in held.own])
        params = held.tree([v.value for v in held.own])
        updates, state = held.tx.update(gradients, self.state, params)
        rate = keras_on_jax("as_keras").ops.convert_to_tensor(learning_rate)
        updates = jax.tree.map(lambda u: u * rate.astype(u.dtype), updates)
        new = jax.tree.leaves(apply_updates(params, updates))
        for v, p in zip(held.own, new, strict=True):
            self.assign(v, p)
        self._assign_state(state)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Put the average in the place of the parameters."""
        super().finalize_variable_values(var_list)
        # In arrays of their own: `fit` donates both, and would fail when it is called again.
        for v in var_list if self.use_ema else ():
            v.assign(jnp.array(v.value, copy=True))

    def get_config(self) -> dict[str, Any]:
        """Return the config: Keras's options, and the transform as plain data.

        Raises:
          TypeError: with the path of what `to_config` cannot write.
        """
        return super().get_config() | {"transform": to_config(self.transform)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer of a config."""
        options = config | {"transform": from_config(config["transform"])}
        return super().from_config(options, custom_objects)


def tree_of(paths: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """Return a function from a list of leaves to nested dicts by path.

    The dicts keep the order of the model: what is saved must not depend on how layers are called
    (`dense_9`, `dense_10`).
    """
    taken: set[tuple[str, ...]] = set()
    names = []
    for path in paths:
        parts, n = tuple(path.split("/")), 0
        own = parts
        # Two weights of a layer may have one name; and the name of one may be the path to another.
        while any(own[: len(t)] == t or t[: len(own)] == own for t in taken):
            n += 1
            own = (*parts[:-1], f"{parts[-1]}_{n}")
        taken.add(own)
        names.append(own)

    def tree(leaves: Sequence[Any]) -> Any:
        root: Any = OrderedDict()
        for own, x in zip(names, leaves, strict=True):
            node = root
            for name in own[:-1]:
                node = node.setdefault(name, OrderedDict())
            node[own[-1]] = x
        return root

    order = jax.tree.leaves(tree(range(len(names))))
    if order == list(range(len(names))):
        return tree
    # A layer whose weights do not stand together; names in one dict do.
    flat = ["/".join(own) for own in names]
    return lambda leaves: OrderedDict(zip(flat, leaves, strict=True))


def plain_array(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return a leaf of a state as an array of numbers, and what makes the leaf of it again."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x), functools.partial(
            jax.random.wrap_key_data, impl=jax.random.key_impl(x)
        )
    return x, _value_unchanged


def _value_unchanged(x: Any) -> Any:
    return x


def _copied_for_variable(x: Any, shape: Any, dtype: Any = None) -> Any:
    # A compiled step donates its variables, and two of them must not share an array.
    return jnp.array(x, copy=True)


# --------------------------------------------------------------------------------------- from_keras


class FromKerasState(NamedTuple):
    """State of `from_keras`."""

    slots: dict[str, PyTree]  # each like params, by Keras's name for it
    others: dict[str, Array]  # the optimizer's other variables: iteration, learning_rate, ...


class _Variables(NamedTuple):
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
      ValueError: if Keras cannot make the optimizer of its config; for LossScaleOptimizer, which
        stands around another; and after exclude_from_weight_decay.
    """

    config: str

    def __init__(self, optimizer: Any = None, *, config: str | None = None):
        keras = keras_on_jax(self)
        if config is None:
            config = _config_text(keras, optimizer)
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

    def init(self, params):
        """Return the variables with which the optimizer begins."""
        made = _built_optimizer(self, params)
        names = dict.fromkeys(name for name, i in made.places if i is not None)
        slots: dict[str, Any] = {k: [None] * len(made.params) for k in names}
        others: dict[str, Any] = {}
        for (name, i), v in zip(made.places, made.optimizer.variables, strict=True):
            if i is None:
                others[name] = v.value
            else:
                slots[name][i] = v.value
        return FromKerasState({k: _like_params(params, x) for k, x in slots.items()}, others)

    def update(self, updates, state, params=None):
        """Return the differences that a step of the optimizer makes."""
        require_params(self, params)
        check_state(self, state, FromKerasState)
        return _updated(self, updates, state, params)


@functools.partial(jax.jit, static_argnums=0)
def _updated(
    self: from_keras, updates: Any, state: FromKerasState, params: Any
) -> tuple[Any, FromKerasState]:
    align_params(self, updates, structure_of(updates), params)
    grads = {path: g for path, g in with_paths(updates) if not is_hole(g)}
    if not grads:
        return updates, state
    keras = keras_on_jax(self)
    made = _built_optimizer(self, params)
    own = {path: p for path, p in with_paths(params) if not is_hole(p)}
    slots = {k: dict(with_paths(tree)) for k, tree in state.slots.items()}
    paths = list(own)
    values = [state.others[name] if i is None else slots[name][paths[i]] for name, i in made.places]
    variables = dict(zip(paths, made.params, strict=True))
    mapping = [(variables[path], p) for path, p in own.items()]
    mapping += zip(made.optimizer.variables, values, strict=True)
    # Gradients that are missing are not handed over: Keras would warn of them in every step.
    with _promoting(), keras.StatelessScope(state_mapping=mapping) as scope:
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


def _built_optimizer(self: from_keras, params: Any) -> _Variables:
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

    with _promoting():
        variables = [_variable(keras, path, p) for path, p in with_paths(params) if not is_hole(p)]
        optimizer.add_variable_from_reference = recorded
        optimizer.build(variables)
    places: list[tuple[str, int | None]] = []
    for v in optimizer.variables:
        place = references.get(id(v), (v.name, None))
        while place in places:  # a name that the optimizer uses twice
            place = (f"{place[0]}_", place[1])
        places.append(place)
    return _Variables(optimizer, variables, places)


def _variable(keras: Any, path: tuple[str, ...], p: Any) -> Any:
    """Return a variable of Keras with the path of a parameter, which Muon reads."""
    with contextlib.ExitStack() as stack:
        for name in path[:-1]:
            stack.enter_context(keras.name_scope(name))
        return keras.Variable(p, dtype=p.dtype.name, name=path[-1] if path else "params")


@contextlib.contextmanager
def _promoting() -> Iterator[None]:
    """Let Keras's code promote types and ranks, on which it relies."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _like_params(params: Any, leaves: list[Any]) -> Any:
    """Return the leaves, one for each parameter that is not a hole, in the structure of params."""
    rest = iter(leaves)
    return map_with_paths(lambda path, p: next(rest), params)


def _config_text(keras: Any, optimizer: Any) -> str:
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
    # What a config leaves out, Keras keeps in attributes that it does not export.
    if any(getattr(optimizer, f"_exclude_from_weight_decay{x}", None) for x in ("", "_pattern")):
        raise ValueError(
            "from_keras: exclude_from_weight_decay is not part of the config of an optimizer, and "
            "would be lost. Give these parameters an optimizer without a decay, with partition."
        )
    config = keras.optimizers.serialize(optimizer)
    own = {k: v for k, v in config["config"].items() if k != "name"}
    return json.dumps(config | {"config": own}, sort_keys=True)
