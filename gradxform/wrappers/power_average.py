"""Power function averages of the parameters, and their reconstruction after the run."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import transform
from gradxform.errors import leaf_path, name_of, shown
from gradxform.numerics import safe_increment, scalar
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import Array, Params, PyTree
from gradxform.values.export_names import announce_named_tuples
from gradxform.wrappers.average import Averager, Rate

__all__ = [
    "power_moving_average",
    "power_snapshots",
    "reconstruct_average",
    "PowerMovingAverageState",
    "PowerSnapshot",
]

# The relative length of the equal average of all steps, for which the exponent is 0.
LONGEST = 1 / math.sqrt(12)


def exponent_of(length: float) -> float:
    """Return the exponent gamma of the power function with a relative length.

    It solves length^2 (gamma + 2)^2 (gamma + 3) = gamma + 1.
    """
    inverse = length**-2
    # gamma^3 + 7 gamma^2 + (16 - 1/length^2) gamma + (12 - 1/length^2), whose largest root is real.
    roots = np.roots([1.0, 7.0, 16.0 - inverse, 12.0 - inverse])
    return max(0.0, float(np.max(roots.real)))


def _check_length(part: Any, length: Any) -> None:
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    if not is_number:
        raise TypeError(f"{name_of(part)}: lengths must be numbers, got {shown(length)}.")
    if not 0 < length <= LONGEST:
        raise ValueError(
            f"{name_of(part)}: lengths must be greater than 0 and at most {LONGEST:.4f}, which is "
            f"the equal average of all steps, got {length!r}."
        )


class PowerMovingAverageState(NamedTuple):
    """State of `power_moving_average`."""

    inner_state: Any  # the inner state
    num_updates: Array  # int32 scalar; updates so far
    averages: dict[str, Any]  # from each length, as a string, to its average, at least float32

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the averages by length."""
        return dict(self.averages)

    def exchanged(self, name: str, params: Params) -> "PowerMovingAverageState":
        """Return the state with `params` as the average of a length."""
        return self._replace(averages=self.averages | {name: copied_params(params)})


@transform
class power_moving_average(Averager):
    """Keep power function averages of the parameters, of several relative lengths at once.

    Update rule, with p the parameters after update number t = 1, 2, ..., for every length s, from
    a = p at t = 1:

        a <- b a + (1 - b) p,    b = (1 - 1/t)^(g + 1)

    The exponent g is such that the weights of the average, proportional to t^g, have a standard
    deviation of s t: the average covers the same share of the run at any time, and the first
    parameters are forgotten. `eval_params(state, params, length=s)` returns a.

    The best length is known only after a run, and it matters. Keep two lengths, save
    `power_snapshots(state)` at regular steps, and after the run `reconstruct_average` makes the
    average of any length of them.

    With other parts of a chain, other wrappers, row-sparse gradients and gradients of None it works
    as `moving_average` does.

    Args:
      inner: the optimizer.
      lengths: different relative lengths s, greater than 0 and at most 0.2886 (the equal average).

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models,
    2024, equations (1-2, 4) and Algorithm 2.
    """

    inner: Any
    lengths: tuple[float, ...] = (0.05, 0.1)

    State = PowerMovingAverageState
    follows = ("averages",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths:
            raise ValueError(f"{name_of(self)}: lengths must have at least one length, got ().")
        for length in self.lengths:
            _check_length(self, length)
        object.__setattr__(self, "lengths", tuple(map(float, self.lengths)))
        for i, length in enumerate(self.lengths):
            if length in self.lengths[:i]:
                raise ValueError(
                    f"{name_of(self)}: lengths must be different, got {length!r} twice."
                )

    def init(self, params):
        """Return the inner state, and a copy of the parameters for every length."""
        averages = {repr(length): copied_params(params) for length in self.lengths}
        return PowerMovingAverageState(self.inner.init(params), zero_count(), averages)

    def counted(
        self, state: PowerMovingAverageState, extra: dict[str, Any]
    ) -> PowerMovingAverageState:
        """Return the state after one more update."""
        lengths = set(map(repr, self.lengths))
        if set(state.averages) != lengths:
            raise ValueError(
                f"{name_of(self)}: the lengths are {sorted(lengths)}, the state has "
                f"{sorted(state.averages)}. Was this state made by another transform's init?"
            )
        return state._replace(num_updates=safe_increment(state.num_updates))

    def rates(self, state: PowerMovingAverageState) -> dict[str, Rate]:
        """Return 1 - (1 - 1/t)^(g + 1) for every length."""
        # At t = 1 the rate is 1: before the first update, too, the average equals the parameters.
        t = jnp.maximum(scalar(state.num_updates), 1)
        log = jnp.log1p(-1 / t)  # minus infinity at t = 1
        return {
            repr(length): (-jnp.expm1((exponent_of(length) + 1) * log), None)
            for length in self.lengths
        }

    def trees(self, state: PowerMovingAverageState) -> dict[str, PyTree]:
        """Return the averages by length."""
        return dict(state.averages)

    def with_trees(
        self, state: PowerMovingAverageState, trees: dict[str, PyTree]
    ) -> PowerMovingAverageState:
        """Return the state with other averages."""
        return state._replace(averages=trees)


# ------------------------------------------------------------------------------- after the run


class PowerSnapshot(NamedTuple):
    """One average of `power_moving_average` at one step, to be saved."""

    step: int  # the number of updates until then
    length: float  # its relative length
    average: PyTree  # NumPy arrays, like the parameters


def power_snapshots(state: Any) -> list[PowerSnapshot]:
    """Return the averages in the state of a `power_moving_average`, at any depth, on the host.

    Args:
      state: a state that contains one.

    Raises:
      ValueError: if it contains none, or more than one, or has not been updated.
    """
    states = [x for x in jax.tree.leaves(state, is_leaf=_is_state) if _is_state(x)]
    if len(states) != 1:
        raise ValueError(
            "power_snapshots: the state must contain one PowerMovingAverageState, but "
            f"{name_of(type(state))} contains {len(states) or 'none'}."
        )
    [power] = states
    step = int(power.num_updates)
    if step < 1:
        raise ValueError(
            "power_snapshots: the state was never updated, so there is nothing to save."
        )
    return [
        PowerSnapshot(step, float(length), jax.tree.map(np.array, average))
        for length, average in power.averages.items()
    ]


def _is_state(x: Any) -> bool:
    return isinstance(x, PowerMovingAverageState)


def reconstruct_average(
    snapshots: Iterable[PowerSnapshot], length: float, *, step: int | None = None
) -> PyTree:
    """Return the power function average of any length, from saved averages of other lengths.

    The result is the combination of the saved averages whose weights of the steps are nearest to
    those of `length`, in the sense of least squares. Lengths between those of the snapshots come
    out best. Take some tens of snapshots over the whole run, each with two lengths.

    Args:
      snapshots: all that `power_snapshots` returned during a run; their averages may be restored
        from a checkpoint, in any container.
      length: the relative length, greater than 0 and at most 0.2886.
      step: the step of the average. Defaults to the last one of the snapshots. Keyword-only.

    Returns:
      A tree of NumPy arrays in the dtypes of the last snapshot's.

    Raises:
      TypeError: if the length is not a number, or a snapshot is not a `PowerSnapshot`.
      ValueError: if there are none, if the step is before the first or after the last
        snapshot, if a number is out of range, or if the averages differ in structure or shape.

    Reference: Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models,
    2024, section 3.2 and Algorithm 3.
    """
    snapshots = [_checked_snapshot(i, snapshot) for i, snapshot in enumerate(snapshots)]
    if not snapshots:
        raise ValueError(
            "reconstruct_average: snapshots must have at least one snapshot, got none."
        )
    _check_length("reconstruct_average", length)
    first, last = (pick(s.step for s in snapshots) for pick in (min, max))
    step = last if step is None else step
    if not first <= step <= last:
        raise ValueError(
            f"reconstruct_average: step must be from {first} to {last}, the steps of the first and "
            f"of the last snapshot, got {shown(step)}."
        )
    factors = _factors_of_snapshots(
        [s.step for s in snapshots], [s.length for s in snapshots], step, length
    )
    flat = [jax.tree_util.tree_flatten_with_path(s.average) for s in snapshots]
    for leaves, treedef in flat:
        _check_snapshots_alike(leaves, treedef, *flat[-1])
    sums = []
    for column in zip(*(leaves for leaves, _ in flat), strict=True):
        dtype = np.asarray(column[-1][1]).dtype
        # Factors of either sign cancel: their sum needs float64.
        wide = np.promote_types(dtype, np.float64)
        total = sum(
            f * np.asarray(x).astype(wide) for f, (_, x) in zip(factors, column, strict=True)
        )
        sums.append(np.asarray(total).astype(dtype))
    return jax.tree.unflatten(flat[-1][1], sums)


def _checked_snapshot(index: int, snapshot: Any) -> PowerSnapshot:
    if getattr(snapshot, "_fields", None) != PowerSnapshot._fields:
        raise TypeError(
            f"reconstruct_average: snapshots[{index}] must be a PowerSnapshot, got "
            f"{shown(snapshot)}. Make one of what you restored: "
            "PowerSnapshot(step, length, average)."
        )
    step, length = int(snapshot.step), float(snapshot.length)
    _check_length(f"reconstruct_average: snapshots[{index}]", length)
    if step < 1:
        raise ValueError(
            f"reconstruct_average: snapshots[{index}] must have a step of at least 1, got {step}."
        )
    return PowerSnapshot(step, length, snapshot.average)


def _check_snapshots_alike(leaves: Any, treedef: Any, last_leaves: Any, last_treedef: Any) -> None:
    if treedef != last_treedef:
        raise ValueError("reconstruct_average: the averages of the snapshots differ in structure.")
    for (path, x), (_, y) in zip(leaves, last_leaves, strict=True):
        if np.shape(x) != np.shape(y):
            raise ValueError(
                f"reconstruct_average: {leaf_path(path)} has shape {np.shape(x)} in one snapshot "
                f"and {np.shape(y)} in the last."
            )


def _factors_of_snapshots(
    steps: Sequence[int], lengths: Sequence[float], step: int, length: float
) -> np.ndarray:
    """Return by what to multiply each snapshot, so that their sum is nearest to the average."""
    t = np.asarray([*steps, step], np.float64)
    g = np.asarray([*map(exponent_of, lengths), exponent_of(length)])
    products = _inner_products(t[:, None], g[:, None], t[None], g[None])
    # Averages of near steps are almost equal, and the system almost singular: cut off its noise.
    return np.linalg.lstsq(products[:-1, :-1], products[:-1, -1], rcond=1e-13)[0]


def _inner_products(t: Any, g: Any, other_t: Any, other_g: Any) -> np.ndarray:
    """Return the inner products of the weights of averages, as functions of time.

    At step t, time r <= t has the weight (g + 1) r^g / t^(g + 1). The integral of the product of
    two such functions goes to the earlier step, since the earlier average knows nothing later.
    """
    earlier, later = np.minimum(t, other_t), np.maximum(t, other_t)
    exponent = np.where(t < other_t, other_g, g)  # that of the later one
    scale = (g + 1) * (other_g + 1) / (g + other_g + 1)
    return scale * (earlier / later) ** exponent / later


announce_named_tuples(__name__)
