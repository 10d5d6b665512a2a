"""Parameters of 16 bits or fewer that learn: wide copies, rounding by chance, compensation."""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, locality_of, transform
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    align,
    align_params,
    align_slot,
    check_params,
    dtype_of,
    is_hole,
    path_at,
    path_str,
    require_params,
    with_paths,
)
from gradxform.numerics import as_rounded, at_least_float32, cast
from gradxform.states import check_state
from gradxform.storage import Chance, Compensated, Master, NarrowForm, Remainder
from gradxform.transforms.tree_rules import live_key
from gradxform.types import Array, Key, OptState, Params, PyTree, Slot, Updates
from gradxform.wrappers.parts import check_movable

__all__ = [
    "kahan",
    "master_weights",
    "stochastic_rounding",
    "KahanState",
    "MasterWeightsState",
    "StochasticRoundingState",
]


def is_narrow(x: Any) -> bool:
    """Whether an array is real, and has entries of fewer than 32 bits."""
    dtype = dtype_of(x)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 4


class _Leaf(NamedTuple):
    """What becomes of a parameter."""

    change: Any  # the update
    new: Any  # the parameter, where it is narrow
    slot: Any


class NarrowParams(Transform):
    """Base of wrappers that say where narrow parameters go, which is not a sum in their dtype."""

    inner: Any

    State: Any = None
    slot: str = ""  # the field of the state with an array for each parameter, if there is one
    form: NarrowForm
    holds = (("inner", "inner_state"),)
    sets_params = True
    exact_updates = True
    handles_rows = False
    why_no_rows = "rounds whole parameters"

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_movable(self, self.inner)

    @property
    def locality(self) -> Any:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def _check(self, path: Path, p: Any) -> None:
        """Require a parameter to be of a dtype that the form takes."""

    def _slots(self, params: Params) -> PyTree:
        """Return the slots; of a parameter that needs none, an empty array."""
        for path, p in with_paths(params):
            if not is_hole(p):
                self._check(path, p)
        return jax.tree.map(
            lambda p: self.form.first(jnp.asarray(p)) if is_narrow(p) else jnp.zeros((0,)), params
        )

    def _begun(self, params: Params) -> tuple[OptState, PyTree]:
        """Return the inner state, of wide parameters, and the slots."""
        check_params(self, params)
        slots = self._slots(params) if self.slot else None
        return self.inner.init(self._wide(params, slots)), slots

    def _wide(self, params: Params, slots: PyTree) -> Params:
        """Return the parameters as the inner transform sees them."""
        ps, treedef = jax.tree.flatten(params)
        kept = [None] * len(ps)
        if slots is not None:
            kept = align(self, params, treedef, slots, f"the state's {self.slot} has").leaves
            self._check_slots(params, kept)
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        columns = [[ps[i] for i in narrow], [kept[i] for i in narrow]]
        for i, p in zip(narrow, engine.map_rows(_Widen(self.form), columns), strict=True):
            ps[i] = p
        return treedef.unflatten(ps)

    def _check_slots(self, params: Params, slots: list[Any]) -> None:
        wanted = jax.tree.leaves(jax.eval_shape(self._slots, params))
        for i, (slot, like) in enumerate(zip(slots, wanted, strict=True)):
            if (jnp.shape(slot), dtype_of(slot)) != (like.shape, like.dtype):
                p = jax.tree.leaves(params)[i]
                raise ValueError(
                    f"{name_of(self)}: the state's {self.slot} of {path_at(params, i)} is "
                    f"{dtype_of(slot)} of shape {jnp.shape(slot)}; a parameter of {dtype_of(p)} "
                    f"and shape {jnp.shape(p)} needs {like.dtype} of shape {like.shape}. Was this "
                    "state made for other parameters?"
                )

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, Any]:
        """Return updates whose sums with the parameters are what is wanted.

        Those of narrow parameters are in float32, so that no sum is rounded twice.
        """
        leaves, state = self._taken(updates, state, params, extra, True)
        treedef = jax.tree.structure(updates)
        return treedef.unflatten([leaf.change for leaf in leaves]), state

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, Any]:
        """Return the new parameters, narrow ones assigned and not added, and the state.

        Args:
          grads: the gradients.
          state: the state.
          params: the parameters.
          **extra: extra arguments of the inner transform.
        """
        self.check_extra(extra)
        leaves, state = self._taken(grads, state, params, extra, False)
        ps = align_params(self, grads, jax.tree.structure(grads), params)
        pairs = zip(ps.leaves, leaves, strict=True)
        return ps.rebuilt(
            [leaf.new if is_narrow(p) else cast(p + leaf.change, p.dtype) for p, leaf in pairs]
        ), state

    def _taken(
        self, updates: Updates, state: Any, params: Any, extra: dict[str, Any], added: bool
    ) -> tuple[list[_Leaf], Any]:
        """Return what becomes of each parameter with an update, and the state.

        Args:
          updates: the gradients.
          state: the state.
          params: the parameters.
          extra: extra arguments of the inner transform.
          added: whether the updates will be added, which may lead elsewhere.
        """
        require_params(self, params)
        check_state(self, state, self.State)
        engine.refuse_rows(self, updates, "rounds whole parameters")
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        wide = self._wide(params, getattr(state, self.slot) if self.slot else None)
        given = [
            cast(jnp.asarray(g), at_least_float32(dtype_of(g))) if is_narrow(p) else g
            for g, p in zip(gs, ps, strict=True)
        ]
        own, inner_state = call_update(
            self.inner, treedef.unflatten(given), state.inner_state, wide, extra
        )
        us = treedef.flatten_up_to(own)
        slot = align_slot(self, updates, treedef, state, self.slot) if self.slot else None
        kept = [None] * len(gs) if slot is None else slot.leaves
        keys, state = self._keys(updates, state)
        done = [_Leaf(*x) for x in zip(us, ps, kept, strict=True)]
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        columns = [[column[i] for i in narrow] for column in (ps, us, kept, keys)]
        made = engine.map_rows(_Assign(self.form, added), columns)
        for i, leaf in zip(narrow, made, strict=True):
            done[i] = _Leaf(*leaf)
        if slot is not None:
            state = state._replace(**{self.slot: slot.rebuilt([leaf.slot for leaf in done])})
        return done, state._replace(inner_state=inner_state)

    def _keys(self, updates: Updates, state: Any) -> tuple[list[Any], Any]:
        """Return a key for each update, and the state after they are used."""
        return [None] * len(jax.tree.leaves(updates)), state


class _Widen(NamedTuple):
    """What the inner transform sees of a parameter; the key of its compiled call."""

    form: NarrowForm

    def __call__(self, p: Any, slot: Any) -> Array:
        return self.form.wide(jnp.asarray(p), slot)


class _Assign(NamedTuple):
    """Where a parameter goes; the key of its compiled call."""

    form: NarrowForm
    added: bool

    def __call__(self, p: Any, u: Any, slot: Any, key: Any) -> _Leaf:
        p = jnp.asarray(p)
        wide = self.form.wide(p, slot)
        new, slot = self.form.taken(wide, cast(jnp.asarray(u), wide.dtype), slot, key, p.dtype)
        before = cast(p, wide.dtype)
        change = as_rounded(new, wide.dtype) - before
        if self.added:
            slot = self.form.landed(new, cast(before + change, p.dtype), slot)
        return _Leaf(change, new, slot)


class MasterWeightsState(NamedTuple):
    """State of `master_weights`."""

    inner_state: Any  # the inner state, of float32 parameters
    # The copies in float32, or the lower halves in uint16. Of shape (0,) where none is needed.
    master: Slot


@transform
class master_weights(NarrowParams):
    """Optimize copies in float32 of parameters in 16 bits or fewer.

    Update rule, with m the copy of a parameter p, and u the inner update for m:

        m <- m + u;    p <- m, rounded to the dtype of p

    In bfloat16, a step below 1/512 of a parameter is rounded away. Here it counts: the run is that
    of float32 parameters, except that the loss sees rounded ones. The inner transform gets the
    copies as its parameters, and gradients in float32. Parameters in float32 or wider, complex and
    integer ones pass as they are.

    A copy takes 4 bytes. With `remainders` it is made of p and the 16 bits that a bfloat16 lacks of
    a float32, and takes 2. Both forms have the same copies, bit for bit; of two bfloat16 that are
    equally near, p is the larger in magnitude with `remainders`, and the even one without.

    The updates are in float32, so that their sums with the parameters are exact. What changes them
    afterwards, such as a later part of a chain, is refused. If something else moves a parameter
    between two steps, the copy follows.

    Args:
      inner: the optimizer.
      remainders: whether to keep the missing bits only; all real parameters must be bfloat16.

    Raises:
      ValueError: at init, with `remainders`, for a real parameter that is not bfloat16; at update,
        if no parameters are given, or the state is that of others.
      TypeError: for row-sparse gradients.

    Reference: Micikevicius et al., Mixed Precision Training, 2018, Section 3.1.
    """

    inner: Any
    remainders: bool = False

    State = MasterWeightsState
    slot = "master"

    @property
    def form(self) -> NarrowForm:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How the copies are kept."""
        return Remainder() if self.remainders else Master()

    def _check(self, path: Path, p: Any) -> None:
        dtype = dtype_of(p)
        if self.remainders and jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.bfloat16:
            raise ValueError(
                f"{name_of(self)}: parameter {path_str(path)} is {dtype}, and remainders complete "
                "bfloat16 ones. Leave out remainders, or give the others to another optimizer "
                "with partition(...)."
            )

    def init(self, params: Params) -> MasterWeightsState:
        """Return the inner state of the copies, and the copies."""
        return MasterWeightsState(*self._begun(params))


class StochasticRoundingState(NamedTuple):
    """State of `stochastic_rounding`."""

    inner_state: Any  # the inner state, of float32 parameters
    key: Array  # (2,) uint32; a seed, and the number of updates so far


@transform
class stochastic_rounding(NarrowParams):
    """Round parameters in 16 bits or fewer up or down by chance, so that small steps count.

    Update rule, with u the inner update in float32:

        p <- p + u, rounded to a neighbor in the dtype of p

    The upper neighbor is taken with the probability of the place between the two, so that the mean
    is p + u. It takes no memory. The bits follow from the key, the number of the update, the path
    of the parameter and the place of an entry: a resumed run goes on exactly, and replicas that
    start alike stay alike. The noise is that of an entry's last place: average the parameters, or
    let the learning rate fall, to be rid of it.

    The inner transform gets parameters and gradients in float32. Parameters in float32 or wider,
    complex and integer ones pass as they are. The updates are in float32; what changes them
    afterwards is refused.

    Args:
      inner: the optimizer.
      key: the seed: an integer or a PRNG key.

    Raises:
      ValueError: at update, if no parameters are given.
      TypeError: if the key is not one; for row-sparse gradients.

    Reference: Gupta et al., Deep Learning with Limited Numerical Precision, 2015, Section 3;
    Zamirai et al., Revisiting BFloat16 Training, 2020.
    """

    inner: Any
    key: Key

    State = StochasticRoundingState
    form = Chance()

    def init(self, params: Params) -> StochasticRoundingState:
        """Return the inner state, and the key."""
        inner_state, _ = self._begun(params)
        seed = jax.random.bits(live_key(self.key), (), jnp.uint32)
        return StochasticRoundingState(inner_state, jnp.stack([seed, jnp.zeros_like(seed)]))

    def _keys(self, updates: Updates, state: Any) -> tuple[list[Any], Any]:
        """Return a key for each update, from its path, and the state with the next key."""
        paths = ["/".join(path) for path, g in with_paths(updates) if not is_hole(g)]
        seeds = [np.asarray([zlib.crc32(path.encode()), 0], np.uint32) for path in paths]
        later = state.key + np.asarray([0, 1], np.uint32)
        return [state.key ^ seed for seed in seeds], state._replace(key=later)


class KahanState(NamedTuple):
    """State of `kahan`."""

    inner_state: Any  # the inner state, of float32 parameters
    lost: Slot  # in the dtype of the parameter; what roundings took. Of shape (0,) where not needed


@transform
class kahan(NarrowParams):
    """Remember what rounding takes from the steps of parameters in 16 bits or fewer.

    Update rule, from c = 0 and with u the inner update in float32:

        y = u + c;    q = p + y, rounded to the dtype of p
        c <- y - (q - p), rounded to the dtype of p;    p <- q

    Small steps add up in c until they move p. It takes as much memory as the parameters, half of
    what `master_weights` takes in 16 bits, and a step that is added is exact up to 1/512 of it in
    bfloat16.

    The inner transform gets parameters and gradients in float32. Parameters in float32 or wider,
    complex and integer ones pass as they are. The updates are in float32; what changes them
    afterwards is refused.

    Args:
      inner: the optimizer.

    Raises:
      ValueError: at update, if no parameters are given, or the state is that of others.
      TypeError: for row-sparse gradients.

    Reference: Kahan, Further Remarks on Reducing Truncation Errors, 1965; Zamirai et al.,
    Revisiting BFloat16 Training, 2020.
    """

    inner: Any

    State = KahanState
    slot = "lost"
    form = Compensated()

    def init(self, params: Params) -> KahanState:
        """Return the inner state, and zeros."""
        return KahanState(*self._begun(params))
