"""Wrappers that learn by how much to scale all that an optimizer has moved the parameters."""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, tell_moved
from gradxform.errors import require_at_least
from gradxform.leaves import align_params, align_slot, require_params
from gradxform.leaves.states import check_state
from gradxform.numerics import cast, promote, safe_increment, scalar, scalar_dtype
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import copied_params
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, Params, Scalar, Updates
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable
from gradxform.wrappers.parts import check_movable, keeps_copies, refuse_complex


class LearnedScale(Transform, abc.ABC):
    """Base of wrappers whose update leads to x0 + S ((p - x0) / (S' + eps) + u).

    x0 are the first parameters, u is the inner update, and S is the sum of the scales `s` in the
    state, S' before this step. A class has the fields `eps`, added to S', and `num_betas`, and says
    in `Kind` the class of its state.

    Of its own kind: a rule for the whole tree chooses the factor of all steps so far.
    """

    base_optimizer: Any
    eps: Any
    num_betas: Any
    Kind: Any

    locality = "tree"
    begins_small = True
    asks_for_sums = True
    why_no_rows = "moves all rows at every step"
    holds = (("base_optimizer", "base_optimizer_state"),)
    follows = ("x0",)

    def __post_init__(self) -> None:
        check_transform(self, self.base_optimizer, "base_optimizer")
        require_at_least(self, 1, "num_betas")
        check_movable(self, self.base_optimizer)
        check_changeable(self, self.base_optimizer)
        refuse_exchange(self, self.base_optimizer)

    @abc.abstractmethod
    def first_scalars(self) -> dict[str, Array]:
        """Return the fields that do not depend on the parameters, `s` among them."""

    @abc.abstractmethod
    def tuned(
        self, state: Any, total: Scalar, updates: Updates, leaves: list[list[Any]]
    ) -> dict[str, Array]:
        """Return these fields after a step.

        Args:
          state: the state before it.
          total: S'.
          updates: the gradients.
          leaves: the arrays of the gradients, of the parameters and of x0.
        """

    def scale_of(self, s: Array) -> Array:
        """Return S, of the scales `s`."""
        return jnp.sum(cast(s, scalar_dtype()), -1)

    def estimated_rate(self, state):
        """Return the scale S."""
        return self.scale_of(state.s)

    def betas(self) -> list[float]:
        """Return the decays 0.9, 0.99, ..."""
        return [1 - 0.1**i for i in range(1, self.num_betas + 1)]

    def init(self, params: Params) -> Any:
        """Return the first scales, and a copy of the parameters."""
        return self.Kind(
            base_optimizer_state=self.base_optimizer.init(params),
            count=zero_count(),
            x0=copied_params(params),
            **self.first_scalars(),
        )

    def update(self, updates, state, params=None, **extra):
        """Return the scaled step from the first parameters."""
        require_params(self, params)
        state = check_state(self, state, self.Kind)
        refuse_complex(self, updates)
        base_updates, base_state = call_update(
            self.base_optimizer, updates, state.base_optimizer_state, params, extra
        )
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        x0 = align_slot(self, updates, treedef, state, "x0")
        # Parameters that were restored after `init` are where the run begins.
        firsts = engine.map_rows(_start_of_run, [x0.leaves, ps], state.count == 0)
        # Delta is relative to the old scale, as the parameters are; the step to the new one.
        before = self.scale_of(state.s)
        scalars = self.tuned(state, before, updates, [gs, ps, firsts])
        after = self.scale_of(scalars["s"])
        # A scale of 0 has led to x0, except for a rounding: nothing is left of the way there.
        share = jnp.where(before == 0, 1, 1 - after / (before + scalar(self.eps)))
        columns = [treedef.flatten_up_to(base_updates), gs, ps, firsts]
        us = engine.map_rows(_scaled_step, columns, share, after)
        new = jax.tree.unflatten(treedef, us)
        if keeps_copies(self.base_optimizer):  # its copies are where its own updates lead
            expected, actual = apply_updates(params, base_updates), apply_updates(params, new)
            base_state = tell_moved(self.base_optimizer, base_state, expected, actual)
        return new, state._replace(
            base_optimizer_state=base_state,
            count=safe_increment(state.count),
            x0=x0.rebuilt(firsts),
            **{k: cast(x, getattr(state, k).dtype) for k, x in scalars.items()},
        )


def _start_of_run(x0: Array, p: Array, is_first: Array) -> Array:
    return jnp.where(is_first, cast(jnp.asarray(p), x0.dtype), x0)


def _scaled_step(u: Array, g: Array, p: Array, x0: Array, share: Scalar, after: Scalar) -> Array:
    """Return a share of the way from p back to x0, and S u; x0 and p cancel first."""
    wide = promote(u.dtype, p.dtype, x0.dtype)
    moved = cast(x0, wide) - cast(p, wide)
    return cast(cast(share, wide) * moved + cast(after, wide) * cast(u, wide), g.dtype)
