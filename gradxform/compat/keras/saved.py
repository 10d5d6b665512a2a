"""Optimizers of `as_keras` in files: what Keras saved of a transform, and of its own options."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras import decays
from gradxform.compat.keras.keras3_options import OPTIONS, around_keras3_step
from gradxform.compat.keras.optimizer import plain_array, tree_of
from gradxform.compat.keras.rates import last_of_every
from gradxform.compat.keras.weights import get_weights, parameter_paths, set_weights
from gradxform.errors import name_of, shown
from gradxform.interop import OfFunctions
from gradxform.leaves import flatten_with_names
from gradxform.transforms.counts import count_updates
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import OptState, Params
from gradxform.wrappers.compose import chain
from gradxform.wrappers.flatten import flatten
from gradxform.wrappers.parts import all_parts

_CLASS = "gradxform>TransformOptimizer"


class SavedTransform:
    """The optimizer of a file that `as_keras` made, as a transform."""

    def __init__(self, config: Mapping[str, Any], custom_objects: Any) -> None:
        own = dict(config["config"])
        rate = own.pop("learning_rate", 1.0)
        if isinstance(rate, dict):
            place = "config.config.learning_rate"
            rate = decays.deserialized(rate, custom_objects, place)
        self._options = {k: own.get(k, default) for k, (default, _) in OPTIONS.items()}
        k = self._options["gradient_accumulation_steps"]
        self._rate = last_of_every(rate, k) if k and callable(rate) else rate
        self.inner = importlib.import_module("gradxform.config").from_config(own.get("transform"))
        self.tx = self._around(self.inner)

    def _around(self, inner: Any) -> chain:
        """Return what Keras does around the steps of a transform."""
        steps = chain(inner, scale_by_learning_rate(self._rate, flip_sign=False))
        return around_keras3_step(name_of(self.inner), steps, self._rate, self._options)

    def state(
        self, params: Params, weights: Sequence[np.ndarray], order: Sequence[str] | None
    ) -> OptState:
        """Return the state that these weights are, of a run with `params`.

        Raises:
          ValueError: if they are not those of this transform for these parameters.
        """
        # Keras's own weights come first. A count stands for the transform among the other parts.
        counted = self._around(count_updates())
        first = counted.init(params)
        length = len(get_weights(counted, first, params, 3, order))
        inner = self._inner_state(params, weights[length:], order)
        outer = set_weights(counted, params, weights[:length], 3, order)
        stub = OfFunctions(lambda params: inner, _update_of_saved_transform)
        return _filled_saved_state(
            self._around(stub).init(params),
            _saved_arrays_by_path(outer),
            _ids_of_saved_arrays(inner),
        )

    def _inner_state(
        self, params: Params, weights: Sequence[np.ndarray], order: Sequence[str] | None
    ) -> OptState:
        """Return the state of the transform; in Keras its slots stand in the model's order."""
        paths = parameter_paths("load_optimizer", params, order)
        names = ["/".join(path) for path in paths]
        leaves = {"/".join(path): p for path, p in _saved_arrays_by_path(params).items()}
        in_order = tree_of(names)([jnp.asarray(leaves[name]) for name in names])
        there = jax.eval_shape(self.inner.init, in_order)
        places = ["/".join(path) for path in _saved_arrays_by_path(there)]
        state = self.inner.init(params)
        kept = {"/".join(path): x for path, x in _saved_arrays_by_path(state).items()}
        flat = any(isinstance(part, flatten) for part in all_parts(self.inner))
        if flat and names != list(leaves):
            raise ValueError(
                "load_optimizer: flatten joins the parameters in the order of the tree here, and "
                "in that of the model there; its state cannot be taken over."
            )
        if len(weights) != len(places) or set(kept) != set(places):
            raise ValueError(
                f"load_optimizer: the file has {len(weights)} arrays of {name_of(self.inner)}, "
                f"whose state has {len(kept)} for these parameters. Pass the parameters of that "
                "model; a mask by path must match them by the paths that they have here."
            )
        new = {}
        for place, x in zip(places, weights, strict=True):
            plain, restore = plain_array(kept[place])
            if jnp.shape(x) != plain.shape:
                raise ValueError(
                    f"load_optimizer: {place} of {name_of(self.inner)} has shape {plain.shape}, "
                    f"the file's {jnp.shape(x)}. Pass order=, the paths of the parameters in the "
                    "order of the Keras model."
                )
            new[place] = restore(jnp.asarray(x, plain.dtype))
        return jax.tree.unflatten(jax.tree.structure(state), [new[place] for place in kept])


def is_transform(config: Any) -> bool:
    """Whether a config of Keras is that of `as_keras`."""
    if not isinstance(config, Mapping):
        return False
    if _CLASS not in (config.get("registered_name"), config.get("class_name")):  # HDF5 has one
        return False
    own = config.get("config")
    if not isinstance(own, Mapping) or not isinstance(own.get("transform"), dict):
        raise ValueError(
            f"config: an optimizer of as_keras has its transform as a dict, got {shown(own)}."
        )
    return True


def _update_of_saved_transform(updates: Any, state: Any, params: Any = None) -> Any:
    raise NotImplementedError  # a stand-in, of which only `init` is called


def _saved_arrays_by_path(tree: Any) -> dict[tuple[str, ...], Any]:
    return dict(flatten_with_names(tree)[0])


def _ids_of_saved_arrays(tree: Any) -> set[int]:
    return {id(x) for x in jax.tree.leaves(tree)}


def _filled_saved_state(state: Any, outer: Mapping[tuple[str, ...], Any], inner: set[int]) -> Any:
    """Return a state with the arrays of `outer` by path, and its own where they are the inner's."""
    named, treedef = flatten_with_names(state)
    return treedef.unflatten(x if id(x) in inner else outer[path] for path, x in named)
