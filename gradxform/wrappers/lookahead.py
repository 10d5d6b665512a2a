"""Fast weights that are pulled back to slow ones."""

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import (
    Transform,
    call_update,
    check_transform,
    locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import name_of
from gradxform.leaves import align, require_params
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import begun_anew
from gradxform.numerics import cast, promote
from gradxform.slots import zero_count
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    Params,
    PositiveInt,
    Scalar,
    Slot,
    UnitInterval,
)
from gradxform.wrappers.agree import agreed_flags
from gradxform.wrappers.parts import check_movable, keeps_copies

__all__ = [
    "LookaheadParams",
    "lookahead",
    "LookaheadState",
    "LookaheadWithSlowState",
]


class LookaheadState(NamedTuple):
    """State of `lookahead` for a `LookaheadParams` pair, which holds the slow weights."""

    fast_state: Any  # the fast optimizer's state
    steps_since_sync: Array  # int32 scalar; fast steps since the last synchronization

    def evaluated(self, params: Any) -> dict[str, Any]:
        """Return the slow weights of a `LookaheadParams` pair."""
        return {"slow": params.slow} if is_pair(params) else {}

    def exchanged(self, name: str, params: Params) -> "LookaheadState":
        """Return the state itself: the pair holds both weights."""
        return self


class LookaheadWithSlowState(NamedTuple):
    """State of `lookahead` for plain parameters."""

    fast_state: Any  # the fast optimizer's state
    steps_since_sync: Array  # int32 scalar; fast steps since the last synchronization
    slow: Slot  # like params, at least float32; the slow weights

    evaluated, exchanged = eval_methods_of("slow")


class LookaheadParams(NamedTuple):
    """A pair of fast and slow parameters, for callers that store the slow ones themselves."""

    fast: Any  # take gradients here
    slow: Any  # evaluate here

    @classmethod
    def init_synced(cls, params: Any) -> "LookaheadParams":
        """Return a pair with `params` as both."""
        return cls(fast=params, slow=params)


def is_pair(params: Any) -> TypeGuard[LookaheadParams]:
    """Whether `params` is a `LookaheadParams`, ours or Optax's; its fields alone do not tell."""
    kinds = type(params).__mro__
    return isinstance(params, tuple) and any(k.__name__ == "LookaheadParams" for k in kinds)


def _pull(u: Array, p: Array, slow: Array, sync: Array, step_size: Scalar) -> tuple[Array, Array]:
    """Return the updates of the fast and of the slow weights."""
    wide = promote(u.dtype, p.dtype, slow.dtype)
    distance = cast(p, wide) + cast(u, wide) - cast(slow, wide)
    rate = cast(jnp.asarray(step_size), jnp.finfo(wide).dtype)
    fast = jnp.where(sync, cast(u, wide) - (1 - rate) * distance, cast(u, wide))
    return cast(fast, u.dtype), jnp.where(sync, rate * distance, jnp.zeros_like(distance))


def _pull_of_params(
    u: Array, p: Array, slow: Array, sync: Array, step_size: Scalar
) -> tuple[Array, Array]:
    """Like `_pull`, both in the dtype of the update."""
    fast, change = _pull(u, p, slow, sync, step_size)
    return fast, cast(change, u.dtype)


def _pull_of_state(
    u: Array, p: Array, slow: Array, sync: Array, step_size: Scalar
) -> tuple[Array, Array]:
    """Return the update of the fast weights, and the new slow weights."""
    fast, change = _pull(u, p, slow, sync, step_size)
    slow = cast(cast(slow, change.dtype) + change, slow.dtype)
    return engine.made_with(fast, [slow]), slow


@transform
class lookahead(Transform):
    """Let an optimizer run ahead, and pull it back to a slow average of where it has been.

    Update rule, with u the fast optimizer's update, s the slow weights, every `sync_period` steps:

        s <- s + slow_step_size (p + u - s)
        p <- s                           (on all other steps p <- p + u)

    With plain parameters the slow weights are stored in the state; evaluate at
    `eval_params(state, params)`. With a `LookaheadParams` pair, Optax's form, take gradients at the
    fast parameters; the updates are a pair too. Must be the last part of a chain, because its
    updates must be applied unchanged. A fast optimizer that keeps copies of the parameters
    (`scale_by_madgrad`, `distributed.zero1`, ...) is told how far they are pulled back.

    Of its own kind: it sets the parameters to copies of its own, and the copies to them.

    Args:
      fast_optimizer: the optimizer of the fast weights.
      sync_period: fast steps from one synchronization to the next, at least 1.
      slow_step_size: how far the slow weights move, in [0, 1].
      reset_state: whether the fast optimizer's state is initialized at every synchronization.

    Raises:
      ValueError: if the fast optimizer goes on from a place of its own, so that its next step would
        undo the pull; at update, if no parameters are given.

    Reference: Zhang et al., Lookahead Optimizer: k steps forward, 1 step back, 2019, Algorithm 1.
    """

    fast_optimizer: Any
    sync_period: PositiveInt
    slow_step_size: UnitInterval
    reset_state: bool = False

    follows = ("slow",)
    holds = (("fast_optimizer", "fast_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.fast_optimizer, "fast_optimizer")
        check_movable(self, self.fast_optimizer)

    @property
    def locality(self) -> str:
        """How far the fast optimizer looks."""
        return locality_of(self.fast_optimizer)

    def init(self, params):
        """Return the fast state and, for plain parameters, the slow weights."""
        steps = zero_count()
        if is_pair(params):
            return LookaheadState(self.fast_optimizer.init(params.fast), steps)
        return LookaheadWithSlowState(
            self.fast_optimizer.init(params), steps, copied_params(params)
        )

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        if not is_pair(new):
            return super().moved(state, old, new)
        fast_state = tell_moved(self.fast_optimizer, state.fast_state, old.fast, new.fast)
        return state._replace(fast_state=fast_state)

    def update(self, updates, state, params=None, **extra):
        """Take a fast step, and synchronize if it is time."""
        require_params(self, params)
        pair = is_pair(params)
        kinds = LookaheadWithSlowState, LookaheadState
        kind, other = kinds[pair], kinds[not pair]
        if getattr(state, "_fields", None) == other._fields:
            raise ValueError(
                f"{name_of(self)}: init and update must both get plain parameters, or both a "
                "LookaheadParams."
            )
        state = check_state(self, state, kind)
        fast: Params = params.fast if pair else params
        updates, fast_state = call_update(
            self.fast_optimizer, updates, state.fast_state, fast, extra
        )
        sync = state.steps_since_sync >= self.sync_period - 1
        if self.reset_state:  # replicas that communicate must reset their states together
            (sync,) = agreed_flags(
                self.fast_optimizer, (sync,), updates, state.fast_state, fast, extra
            )
        us, treedef = jax.tree.flatten(updates)
        ps = align(self, updates, treedef, fast, "the parameters have").leaves
        old_slow = params.slow if pair else state.slow
        slow = align(self, updates, treedef, old_slow, "the slow weights have")
        pull = _pull_of_params if pair else _pull_of_state
        pulled = engine.map_rows(pull, [us, ps, slow.leaves], sync, self.slow_step_size)
        new = jax.tree.unflatten(treedef, [u for u, _ in pulled])
        keeps = keeps_copies(self.fast_optimizer)
        if keeps:  # its copies are where its own updates lead, not where the pull leads
            before, after = apply_updates(fast, updates), apply_updates(fast, new)
            fast_state = tell_moved(self.fast_optimizer, fast_state, before, after)
        if self.reset_state:
            first = self.fast_optimizer.init(fast)
            if keeps:  # `init` copies the parameters before this step
                first = tell_moved(self.fast_optimizer, first, fast, apply_updates(fast, new))
            fast_state = begun_anew(sync, first, fast_state)
        steps = jnp.where(sync, 0, state.steps_since_sync + 1)
        if pair:
            slow_updates = jax.tree.unflatten(treedef, [s for _, s in pulled])
            new = type(params)(fast=new, slow=slow_updates)
            return new, state._replace(fast_state=fast_state, steps_since_sync=steps)
        return new, state._replace(
            fast_state=fast_state,
            steps_since_sync=steps,
            slow=slow.rebuilt([s for _, s in pulled]),
        )
