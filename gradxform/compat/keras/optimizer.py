"""A transform as an optimizer of Keras 3."""

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.base import check_transform
from gradxform.compat.keras.imports import keras_on_jax
from gradxform.errors import shown
from gradxform.leaves import flatten_with_names
from gradxform.tree.apply import apply_updates
from gradxform.types import SupportsTransform
from gradxform.values.config import from_config, to_config
from gradxform.wrappers.loss_scale import has_loss_scale


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
    optimizer = type("TransformOptimizer", (_KerasSteps, base), contents)
    return keras.saving.register_keras_serializable("gradxform")(optimizer)


# Keras is not imported with this file: `register_optimizer` puts its class behind `_KerasSteps`.
_Behind: Any = object


class _KerasSteps(_Behind):
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
                    initializer=functools.partial(_copied_for_keras_variable, data),
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
    return x, _keras_value_unchanged


def _keras_value_unchanged(x: Any) -> Any:
    return x


def _copied_for_keras_variable(x: Any, shape: Any, dtype: Any = None) -> Any:
    # A compiled step donates its variables, and two of them must not share an array.
    return jnp.array(x, copy=True)
