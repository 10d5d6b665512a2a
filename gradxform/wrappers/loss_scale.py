"""Loss scaling: gradients of a loss times a factor, so that float16 can hold them."""

import itertools
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._jax.versions import is_tracer
from gradxform.base import ArrayRule, check_transform, locality_of, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import dtype_of, flatten_updates
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import (
    as_number,
    at_least_float32,
    cast,
    promote,
    safe_increment,
    scalar,
    scalar_dtype,
    times,
)
from gradxform.slots import zero_count
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, Fraction, OptState, PositiveInt, Range, Updates
from gradxform.wrappers.checks import Guard, check
from gradxform.wrappers.compose import chain
from gradxform.wrappers.one_pass import is_one_run
from gradxform.wrappers.parts import all_parts, records_params
from gradxform.wrappers.update_when import update_when

__all__ = [
    "loss_scale",
    "scaled_loss",
    "LossScaleState",
]

# Both a scale and its reciprocal are normal numbers of float32, which XLA does not flush to 0.
LEAST, LARGEST = 2.0**-126, 2.0**126
Scale = Annotated[float, Range("in [2**-126, 2**126]", lambda x: LEAST <= x <= LARGEST)]
Growth = Annotated[float, Range("greater than 1", lambda x: x > 1)]


class LossScaleState(NamedTuple):
    """State of `loss_scale`."""

    loss_scale: Array  # scalar, at least float32; what the next loss is multiplied by
    finite_steps: Array  # int32 scalar; finite steps in a row since the scale last changed
    total_skipped: Array  # int32 scalar; steps skipped since init
    inner_state: Any  # the inner state; only finite steps change it
    spared: Any = None  # int32 scalar with hysteresis; bad steps before the scale falls
    stuck_steps: Any = None  # int32 scalar with max_stuck; skipped in a row at the least scale


@transform
class loss_scale(Guard):
    """Undo the scale of a loss in its gradients, skip steps that overflow, and adapt the scale.

    With the scale s, of a loss that was multiplied by s (`scaled_loss`), and n, the number of
    finite steps in a row:

        g finite:      u = inner(g / s),  n <- n + 1;
                       if n = growth_interval:  s <- min(growth_factor s, max_scale),  n <- 0
        g not finite:  u = 0, the inner state unchanged,  n <- 0,
                       s <- max(backoff_factor s, min_scale)

    For gradients that pass through float16, where numbers below 6e-8 are 0 and above 65504
    infinite. The inner transform sees g / s in float32 or wider, so that a clip or a weight decay
    in it has its usual meaning; its updates are cast back to the dtype of `g`. Put everything that
    looks at gradients inside. `make_step` and its kin scale the loss themselves.

    With hysteresis h the scale falls only after h steps that are not finite, in a row or not, since
    it last grew; then each one more makes it fall, until it grows.

    `metrics` shows `loss_scale` and `total_skipped`. If the gradients of many steps in a row are
    not finite with the least scale, the run has failed: `max_stuck` makes it an error.

    Around a part that communicates between replicas, such as `distributed.tower`, all replicas skip
    if one of them must, and so keep the same scale.

    Args:
      inner: the transform that gets the gradients of the loss itself.
      initial_scale: the first scale, from min_scale to max_scale. Powers of two scale exactly.
      growth_interval: after how many finite steps in a row the scale grows, at least 1; None keeps
        it as it is, also after steps that are skipped.
      growth_factor: by how much, greater than 1.
      backoff_factor: what the scale is multiplied by after a step that is not finite, in (0, 1).
      min_scale: the least scale, at least 2**-126.
      max_scale: the largest scale, at most 2**126.
      axis_name: a mesh axis over whose replicas they agree to skip, though the inner transform does
        not communicate along it: for parameters that are divided over replicas. Keyword-only.
      hysteresis: h, at least 1; None for 1. Keyword-only.
      max_stuck: how many steps in a row may be skipped with the least scale, at least 1; one more
        is an error. None for any number. Keyword-only.

    Raises:
      FloatingPointError: at update, if more than `max_stuck` steps in a row were skipped with the
        least scale; from a compiled step, JAX raises its own error with this one's text.
      ValueError: if the three scales are not in order, or if `inner` has a loss scale itself.

    Reference: Micikevicius et al., Mixed Precision Training, 2018, section 3.2. The growth is that
    of `LossScaleOptimizer` of Keras, which does not bound the scale.
    """

    inner: Any
    initial_scale: Scale = 2.0**15
    growth_interval: PositiveInt | None = 2000
    growth_factor: Growth = 2.0
    backoff_factor: Fraction = 0.5
    min_scale: Scale = 1.0
    max_scale: Scale = 2.0**24
    axis_name: str | None = field(default=None, kw_only=True)
    hysteresis: PositiveInt | None = field(default=None, kw_only=True)
    max_stuck: PositiveInt | None = field(default=None, kw_only=True)

    State = LossScaleState
    locality = "tree"  # one bad entry anywhere skips the whole update
    asks_for_sums = True
    looks_at_gradients = True
    handles_rows = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        if has_loss_scale(self.inner):
            raise ValueError(
                f"{name_of(self)}: {name_of(self.inner)} has a loss scale already, and a loss is "
                "scaled once. Keep the outer one."
            )
        names = "min_scale", "initial_scale", "max_scale"
        numbers = [(k, x) for k in names if isinstance(x := getattr(self, k), int | float)]
        for (low, least), (high, largest) in itertools.pairwise(numbers):
            if least > largest:
                raise ValueError(
                    f"{name_of(self)}: {low} must be at most {high}, got {least} and {largest}."
                )

    @property
    def needs_overflows(self) -> bool:
        """Whether the scale adapts."""
        return self.growth_interval is not None

    @property
    def set_by(self) -> tuple[tuple[str, str], ...]:
        """The scale, where it stays as it is."""
        return (("loss_scale", "initial_scale"),) if self.growth_interval is None else ()

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis over whose replicas it agrees."""
        return () if self.axis_name is None else (self.axis_name,)

    def init(self, params):
        """Return the first scale, counts of 0 and the inner state."""
        return LossScaleState(
            loss_scale=jnp.array(scalar(self.initial_scale), copy=True),
            finite_steps=zero_count(),
            total_skipped=zero_count(),
            inner_state=self.inner.init(params),
            spared=self._first_spared(),
            stuck_steps=None if self.max_stuck is None else zero_count(),
        )

    def _first_spared(self) -> Array | None:
        return None if self.hysteresis is None else jnp.asarray(self.hysteresis - 1, jnp.int32)

    def gradient_factor(self, state: LossScaleState) -> Array:
        """Return the inverse of the scale."""
        return 1 / scalar(state.loss_scale)

    def update(self, updates, state, params=None, **extra):
        """Run the inner update on the gradients of the loss itself, if they are finite."""
        return self._updated(updates, state, params, extra, False)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the update, or as they are if it is skipped."""
        return self._updated(updates, state, params, extra, True)

    def _updated(
        self, updates: Updates, state: Any, params: Any, extra: dict[str, Any], to_params: bool
    ) -> tuple[Any, LossScaleState]:
        check_state(self, state, LossScaleState)
        updates = engine.merged_rows(updates)
        for i, g in enumerate(flatten_updates(updates)[0]):  # the factor would make integers floats
            if not jnp.issubdtype(dtype_of(g), jnp.inexact):
                engine.check_gradient([self], updates, i, g)
        # One multiplication per entry; for a power of two it equals the division.
        factor = self.gradient_factor(state)
        # The guards look at the largest magnitude, in one pass. The sum of squares of a clip inside
        # would not do: for finite float32 numbers above 1.8e19 it overflows, and steps that the
        # clip makes harmless would be skipped. Nor can it be shared, since it belongs to the branch
        # that this flag chooses. The factor counts: a scale below 1 may overflow finite gradients.
        findings = check(self, updates, state, params, extra)
        finite = findings.finite

        given, one_pass = self.inner, to_params and _takes_scaled(self.inner)
        # Updates have the dtype of their gradients, which rounds those of 16 bits. Rules that run
        # together round what they return; other parts must not round what they hand on.
        adds = one_pass or (to_params and not any(map(_is_narrow, flatten_updates(updates)[0])))
        inner_state, before = state.inner_state, None
        if one_pass:
            given = chain(_unscale(), given)
            inner_state = (_UnscaleState(factor), inner_state)
        else:
            before = jax.tree_util.Partial(_updates_times_loss_scale, factor)
        new, inner_state = update_when(
            self,
            given,
            finite,
            *(updates, inner_state, params, extra),
            zeros=True,
            before=before,
            found=findings.inside,
            to_params=adds,
        )
        inner_state = inner_state[1] if one_pass else inner_state
        skipped = jnp.where(finite, state.total_skipped, safe_increment(state.total_skipped))
        state = state._replace(
            **self._next_scale(state, finite), total_skipped=skipped, inner_state=inner_state
        )
        self._raise_if_stuck(state)
        if adds:
            return new, state
        new = _unscaled_like_grads(new, updates)
        return (apply_updates(params, new) if to_params else new), state

    def _next_scale(self, state: LossScaleState, finite: Array) -> dict[str, Any]:
        """Return the fields of the state that follow the scale, after this step."""
        scale, steps = scalar(state.loss_scale), safe_increment(state.finite_steps)
        steps, spared = jnp.where(finite, steps, jnp.zeros_like(steps)), state.spared
        stuck = state.stuck_steps
        if stuck is not None:
            is_stuck = ~finite & (scale <= scalar(self.min_scale))
            stuck = jnp.where(is_stuck, safe_increment(stuck), jnp.zeros_like(stuck))
        fields = {"spared": spared, "stuck_steps": stuck}
        if self.growth_interval is None:
            return fields | {"loss_scale": state.loss_scale, "finite_steps": steps}
        grows, falls = steps >= self.growth_interval, ~finite  # never both: a bad step counts 0
        if spared is not None:
            falls = falls & (spared == 0)
            remaining = jnp.where(finite, spared, jnp.maximum(spared - 1, 0))
            first = self._first_spared()  # None if the state is that of another hysteresis
            fields["spared"] = remaining if first is None else jnp.where(grows, first, remaining)
        more = jnp.minimum(scale * scalar(self.growth_factor), scalar(self.max_scale))
        less = jnp.maximum(scale * scalar(self.backoff_factor), scalar(self.min_scale))
        scale = jnp.where(grows, more, jnp.where(falls, less, scale))
        return fields | {
            "loss_scale": scale.astype(state.loss_scale.dtype),
            "finite_steps": jnp.where(grows, jnp.zeros_like(steps), steps),
        }

    def _raise_if_stuck(self, state: LossScaleState) -> None:
        """Raise, now or when a compiled step runs, if too many steps in a row were skipped."""
        if self.max_stuck is None:
            return
        part, most = name_of(self), self.max_stuck

        def check_now(stuck: Any) -> None:
            if int(stuck) > most:
                raise FloatingPointError(
                    f"{part}: the gradients of {int(stuck)} steps in a row were not finite with "
                    f"the least scale, and max_stuck is {most}. Look for what is not finite in the "
                    "loss itself; a smaller min_scale helps only where gradients overflow."
                )

        if is_tracer(state.stuck_steps):
            jax.debug.callback(check_now, state.stuck_steps)
        else:
            check_now(state.stuck_steps)


def unscaled_updates(updates: Updates, scale: Array) -> Updates:
    """Return gradients of a loss times a scale as those of the loss, in float32 or wider."""
    return _updates_times_loss_scale(1 / scale, updates)


def _updates_times_loss_scale(factor: Array, updates: Updates) -> Updates:
    leaves, treedef = flatten_updates(updates)
    return jax.tree.unflatten(treedef, engine.map_rows(_leaf_times_loss_scale, [leaves], factor))


class _UnscaleState(NamedTuple):
    """What `_unscale` multiplies by."""

    factor: Array  # scalar, at least float32


@transform
class _unscale(ArrayRule):
    """Multiply gradients by the inverse of the scale, which is in the state."""

    State = _UnscaleState
    locality = "entry"
    handles_complex = True

    def init(self, params):
        """Return a factor of 1."""
        return _UnscaleState(jnp.ones((), scalar_dtype()))

    def prepare(self, updates, state, params):
        """Return the state, and the factor."""
        return state, state.factor

    def rule(self, g, p, factor):
        """Return the gradient of the loss itself."""
        return times(factor, g)


def _takes_scaled(tx: Any) -> bool:
    """Whether rules that run together, tile by tile, may begin with gradients of a scaled loss."""
    return is_one_run(tx) and locality_of(tx) != "tree" and not records_params(tx)


def _is_narrow(g: Any) -> bool:
    return at_least_float32(dtype_of(g)) != dtype_of(g)


def _leaf_times_loss_scale(g: Any, factor: Array) -> Any:
    if isinstance(g, RowSparse):
        return g.with_values(_leaf_times_loss_scale(g.values, factor))
    return times(factor, cast(g, at_least_float32(dtype_of(g))))


def _unscaled_like_grads(new: Updates, grads: Updates) -> Updates:
    """Return updates in the dtypes of their gradients."""
    leaves, treedef = flatten_updates(new)
    dtypes = [dtype_of(x) for x in flatten_updates(grads)[0]]
    return jax.tree.unflatten(
        treedef, [_unscaled_in_dtype(x, dtype) for x, dtype in zip(leaves, dtypes, strict=True)]
    )


def _unscaled_in_dtype(x: Any, dtype: Any) -> Any:
    return x.with_values(cast(x.values, dtype)) if isinstance(x, RowSparse) else cast(x, dtype)


def has_loss_scale(tx: Any) -> bool:
    """Whether a transform has a part that undoes the scale of a loss."""
    return any(isinstance(part, loss_scale) for part in all_parts(tx))


def has_scale(state: OptState) -> bool:
    """Whether there is a loss scale in a state, at any depth."""
    return bool(_states(state))


def scale_in(part: Any, state: OptState) -> Array:
    """Return the scale in a state, at any depth; `part` is the name in messages.

    Raises:
      ValueError: if there is none, or there are several.
    """
    states = _states(state)
    if len(states) != 1:
        have = f"{len(states)} scales" if states else "no scale"
        raise ValueError(
            f"{name_of(part)}: the state has {have} in it, and a loss has one. Wrap the whole "
            "optimizer, as loss_scale(...), and pass its state."
        )
    (scale,) = jax.tree.leaves(states[0].loss_scale)  # the value of a variable of nnx
    return as_number(part, "the scale in the state", scale)


def _states(state: Any) -> list[LossScaleState]:
    def is_scale_state(x: Any) -> bool:
        return isinstance(x, LossScaleState)

    return [x for x in jax.tree.leaves(state, is_leaf=is_scale_state) if is_scale_state(x)]


def scaled_loss(loss: Any, state: OptState) -> Array:
    """Return a loss times the scale in a state, the loss to differentiate.

        def scaled_loss_fn(params):
            return scaled_loss(loss_fn(params), state)

        grads = jax.grad(scaled_loss_fn)(params)
        updates, state = tx.update(grads, state, params)

    Args:
      loss: a real floating scalar. The product is in float32 or wider; compute the loss in float32,
        since a float16 would get the scale as its gradient, which must then be below 65504.
      state: the state of an optimizer with one `loss_scale` in it, at any depth.

    Raises:
      TypeError: if the loss is not a real floating scalar.
      ValueError: if the state does not have exactly one scale.
    """
    return times_scale("scaled_loss", loss, scale_in("scaled_loss", state))


def times_scale(part: Any, loss: Any, scale: Array) -> Array:
    """Return a loss times a scale, in float32 or wider; `part` is the name in messages."""
    is_float = isinstance(loss, float) or (
        hasattr(loss, "dtype") and jnp.issubdtype(dtype_of(loss), jnp.floating)
    )
    if not is_float or jnp.shape(loss) != ():
        raise TypeError(f"{name_of(part)}: loss must be a real floating scalar, got {shown(loss)}.")
    loss = jnp.asarray(loss)
    dtype = promote(at_least_float32(loss.dtype), scale.dtype)
    return cast(loss, dtype) * cast(scale, dtype)
