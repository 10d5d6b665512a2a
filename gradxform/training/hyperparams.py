"""The hyperparameters of the holder: numbers to read and to set by name."""

from collections.abc import Iterator, MutableMapping
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import call_update
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.schedules.numbers_of_now import of_this_moment
from gradxform.training import numbers
from gradxform.training.programs import as_one_replica, axes_named_by
from gradxform.types import OptState, Params, Updates
from gradxform.values import put_live


class UnknownHyperparam(KeyError):
    """A name that no hyperparameter has."""

    def __str__(self) -> str:  # that of KeyError would quote it
        return str(self.args[0])


@final
class Hyperparams(MutableMapping[str, Any]):
    """The hyperparameters of an `Optimizer`: a dict that cannot get new keys."""

    __slots__ = ("_holder",)

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def _injected(self) -> dict[str, tuple[numbers.Injected, str]]:
        """Return by name the dict of the state that has the hyperparameter, and its key there."""
        dicts = list(numbers.injected_in(self._holder._state))
        several = len(dicts) > 1
        return {
            "/".join(map(str, (*part.place[:-1], k))) if several else k: (part, k)
            for part in dicts
            for k in part.hyperparams
        }

    def _numbers(self) -> dict[str, numbers.Number]:
        injected = self._injected()
        by_name = numbers.numbers_of(self._holder._tx)
        return {"/".join(n.names) if k in injected else k: n for k, n in by_name.items()}

    def _own(self, name: str) -> list[numbers.Number]:
        """Return the numbers that a name means: one, or all fields of that name if they are equal.

        Raises:
          UnknownHyperparam: if it does not mean any.
        """
        by_name = self._numbers()
        if name in by_name:
            return [by_name[name]]
        alike = [number for number in by_name.values() if number.field == name]
        if len({number.value for number in alike}) != 1:
            raise UnknownHyperparam(self._unknown(name))
        return alike

    def __getitem__(self, name: str) -> Any:
        injected = self._injected()
        if name in injected:
            part, k = injected[name]
            return part.hyperparams[k]
        return self._own(name)[0].value

    def __setitem__(self, name: str, value: Any) -> None:
        injected = self._injected()
        if name in injected:
            self._inject(*injected[name], value)
        else:
            for number in self._own(name):
                self._set(number, value)

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"Optimizer: the hyperparameter {name!r} can be set, but not deleted.")

    def __iter__(self) -> Iterator[str]:
        yield from self._injected()
        yield from self._numbers()

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))

    def _unknown(self, name: Any) -> str:
        names = list(self)
        listed = ", ".join(map(repr, names)) or "none"
        later = (
            " Those of inject_hyperparams are there once there is a state: Optimizer(tx, params)."
            if self._holder._state is None and any(numbers.injected_parts(self._holder._tx))
            else ""
        )
        return (
            f"Optimizer: no number is called {shown(name)}; there are {listed}."
            f"{did_you_mean(name, names)}{later}"
        )

    def _inject(self, part: numbers.Injected, k: str, value: Any) -> None:
        if k in part.scheduled:
            raise ValueError(
                f"Optimizer: the hyperparameter {k!r} follows a schedule, and the next update "
                "would undo what is set. Make the optimizer with a number."
            )
        _check_real_hyperparam(k, value)
        old = jnp.asarray(part.hyperparams[k])
        parts = list(numbers.injected_parts(self._holder._tx))
        if len(parts) == 1:  # its factory checks the range
            values = {x: float(y) for x, y in part.hyperparams.items() if jnp.ndim(y) == 0}
            parts[0].inner_with(values | {k: float(value)})
        new = part.hyperparams | {k: jnp.full(old.shape, value, old.dtype)}
        self._holder._state = numbers.with_state_at(self._holder._state, part.place, new)

    def _set(self, number: numbers.Number, value: Any) -> None:
        holder = self._holder
        if isinstance(value, jax.Array | np.ndarray | np.generic) and not np.ndim(value):
            value = value.item()
        tx = numbers.with_number(holder._tx, number, value)
        if number.place not in holder._live and holder._first_params is not None:
            if holder._tx == tx:
                return
            _check_traceable_hyperparam(holder, number)
            holder._live.append(number.place)
        holder._tx = tx


def _check_traceable_hyperparam(holder: Any, number: numbers.Number) -> None:
    """Require that a number does not decide what is computed."""
    now = of_this_moment(holder._tx)

    def update(x: Any, updates: Updates, state: OptState, params: Params) -> Any:
        tx = put_live(numbers.with_holes(now, [number.place], 0), (x,))
        return call_update(tx, updates, state, params, {})

    params = holder._first_params
    if holder._replicas is not None:  # the numbers are those of all replicas, and traced as such
        return
    try:
        update = as_one_replica(update, axes_named_by(now))
        jax.eval_shape(update, np.float64(number.value), params, holder._state, params)
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            f"Optimizer: the hyperparameter {number.field!r} of {name_of(number.owner)} decides "
            "what is computed, and stays as it is. Make another optimizer, and carry the state "
            "over with migrate_state."
        ) from None
    except TypeError:  # the update needs an extra argument, say: it will say so itself
        return


def _check_real_hyperparam(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) or getattr(value, "shape", None) == ()
    if not is_number or isinstance(value, bool) or not np.isfinite(value):
        raise TypeError(
            f"Optimizer: the hyperparameter {name!r} must be a finite number, got {shown(value)}."
        )
