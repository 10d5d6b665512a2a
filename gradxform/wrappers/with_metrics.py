"""Norms of gradients, updates and parameters, kept in the state."""

import functools
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, transform
from gradxform.errors import must_be, name_of, require_one_of
from gradxform.leaves import Path, is_hole, path_str, require_params, widest_dtype, with_paths
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import abs_sq, add, at_least_float32, cast, over, same_bits
from gradxform.numerics.roots import root
from gradxform.types import Array, Choice, PyTree

NORMS = ("gradient", "update", "parameter")
PER = ("tree", "group", "leaf")


class WithMetricsState(NamedTuple):
    """State of `with_metrics`. A norm is a scalar, or a dict of them by group or by leaf."""

    inner_state: Any  # the inner state
    gradient_norm: Any = None  # of the last gradient; None if not asked for
    update_norm: Any = None  # of the last update
    parameter_norm: Any = None  # of the parameters before the last update
    lost_steps: Any = None  # the fraction of entries that the last update did not move

    def metrics(self) -> dict[str, Array]:
        """Return the norms, and the ratios to the norm of the parameters."""
        norms = {k: _norms_by_name(getattr(self, f"{k}_norm")) for k in NORMS}
        numbers = {_name(f"{k}_norm", n): x for k in NORMS for n, x in norms[k].items()}
        for k in ("gradient", "update"):
            for n, size in norms["parameter"].items():
                if n in norms[k]:
                    numbers[_name(f"{k}_ratio", n)] = over(norms[k][n], size)
        lost = _norms_by_name(self.lost_steps)
        return numbers | {_name("lost_steps", n): x for n, x in lost.items()}


def _norms_by_name(norms: Any) -> dict[str, Array]:
    """Return the norms of a field as a dict."""
    if norms is None:
        return {}
    return norms if isinstance(norms, dict) else {"": norms}


def _name(norm: str, name: str) -> str:
    return f"{norm}/{name}" if name else norm


@transform
class with_metrics(Transform):
    """Keep the norms of the gradient, the update and the parameters in the state.

    The updates are those of `inner`. `metrics(state)` shows the norms as `gradient_norm`,
    `update_norm` and `parameter_norm`, and the ratios of the first two to the third as
    `gradient_ratio` and `update_ratio` (0 where the parameters are 0); per group or leaf as
    `update_norm/encoder`. They are those of the last update, in float32 or wider.

    With `lost_steps`, it shows as well the fraction of entries with an update other than 0 that do
    not move, because it is below half of their last place. In bfloat16 these are the steps below
    1/512 of an entry. If it is near 1, see `master_weights`.

    This costs one more pass over the trees in `norms`. For a row-sparse leaf, only the touched rows
    are measured, those of the parameter too.

    Replicas measure what they see, without communication: around `distributed.tower` each its own
    gradient, inside it the mean of all. Inside `distributed.zero1` norms cover all shards.

    Of its own kind: it measures a step, and changes nothing.

    Args:
      inner: the transform to measure.
      per: what has a norm of its own: "tree", all parameters together; "group", those under one
        key of the first level with several keys, as `params/encoder` where all are under `params`;
        or "leaf".
      norms: which norms, of "gradient", "update" and "parameter".
      lost_steps: whether to count the entries that do not move. Keyword-only.

    Raises:
      ValueError: at update, if the parameters are needed and not given; or for a gradient of
        something that was not a parameter at init.
    """

    inner: Any
    per: Choice = "tree"
    norms: tuple[str, ...] = NORMS
    lost_steps: bool = field(default=False, kw_only=True)

    locality = "tree"  # the norms in the state depend on all of it, the updates do not
    asks_for_sums = True
    handles_rows = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        require_one_of(self, "per", PER)
        valid = isinstance(self.norms, tuple) and set(self.norms) <= set(NORMS)
        if not valid or len(set(self.norms)) != len(self.norms) or not self.norms:
            listed = ", ".join(map(repr, NORMS))
            raise ValueError(must_be(self, "norms", f"a tuple of some of {listed}", self.norms))

    def init(self, params):
        """Return norms of 0 and the inner state."""
        # Behind a mask the groups are those of all parameters, also of those it hides.
        all_paths = [path for path, _ in with_paths(params)]
        ends = {"tree": 0, "group": _first_difference(all_paths) + 1, "leaf": None}
        names: dict[str, Path] = {}
        for path in [path for path, p in with_paths(params) if not is_hole(p)]:
            name = "/".join(path[: ends[self.per]])
            if self.per == "leaf" and name in names:
                raise ValueError(
                    f"{name_of(self)}: the parameters {path_str(names[name])} and "
                    f"{path_str(path)} are both called {name!r}. Rename one, or choose "
                    'per="group".'
                )
            names[name] = path
        dtype = widest_dtype(params)

        def zeros() -> Any:
            if self.per == "tree":
                return jnp.zeros((), dtype)
            return {name: jnp.zeros((), dtype) for name in names}

        norms = {f"{k}_norm": zeros() for k in self.norms}
        norms |= {"lost_steps": zeros()} if self.lost_steps else {}
        return WithMetricsState(inner_state=self.inner.init(params), **norms)

    def update(self, updates, state, params=None, **extra):
        """Return the inner update, and the state with the norms of this step."""
        check_state(self, state, WithMetricsState)
        if "parameter" in self.norms or self.lost_steps:
            require_params(self, params)
        grads = engine.merged_rows(updates)
        updates, inner_state = call_update(self.inner, grads, state.inner_state, params, extra)
        leaves = {
            "gradient": _leaves_by_path(grads),
            "update": _leaves_by_path(updates),
        }
        if "parameter" in self.norms:
            leaves["parameter"] = _touched_rows(leaves["gradient"], _leaves_by_path(params))
        norms = {
            f"{k}_norm": self._norms(getattr(state, f"{k}_norm"), leaves[k]) for k in self.norms
        }
        if self.lost_steps:
            lost, sizes = _lost_entries(
                leaves["update"],
                _touched_rows(leaves["update"], _leaves_by_path(params)),
            )
            norms["lost_steps"] = jax.tree.map(
                lambda x, n, old: cast(over(x, n), old.dtype),
                *(self._sums(state.lost_steps, x) for x in (lost, sizes)),
                state.lost_steps,
            )
        return updates, state._replace(inner_state=inner_state, **norms)

    def _norms(self, old: Any, leaves: dict[Path, Any]) -> Any:
        """Return the norms of leaves in the form and the dtypes of the old ones."""
        sums = self._sums(old, _squares(leaves))
        return jax.tree.map(lambda x, old: cast(root(x), old.dtype), sums, old)

    def _sums(self, old: Any, numbers: dict[Path, Array]) -> Any:
        """Return the sums of the numbers of leaves, in the form of `old`."""
        sums = dict.fromkeys(_norms_by_name(old), jnp.zeros((), jnp.float32))
        for path, number in numbers.items():
            # A path begins with the name of one group only.
            starts = ("/".join(path[:k]) for k in range(len(path) + 1))
            name = next(filter(sums.__contains__, starts), None)
            if name is None:
                raise ValueError(
                    f"{name_of(self)}: {path_str(path)} was not a parameter at init. Was this "
                    "state made for other parameters?"
                )
            sums[name] = add(sums[name], number)
        sums = dict(zip(sums, engine.totals_over_parts(list(sums.values())), strict=True))
        return sums if isinstance(old, dict) else sums[""]


def _first_difference(paths: list[Path]) -> int:
    """Return how many keys at the beginning of all paths are the same."""
    levels = zip(*paths, strict=False)  # as many as the shortest path has
    return next((k for k, keys in enumerate(levels) if len(set(keys)) > 1), 0)


def _leaves_by_path(tree: PyTree) -> dict[Path, Any]:
    return engine.seen_here({path: x for path, x in with_paths(tree) if not is_hole(x)})


def _touched_rows(grads: dict[Path, Any], params: dict[Path, Any]) -> dict[Path, Any]:
    """Return the parameters; of one with a row-sparse gradient, the touched rows."""
    rows = {path: g for path, g in grads.items() if isinstance(g, RowSparse)}
    touched = {path: g.with_values(engine.take_rows(g, params[path])) for path, g in rows.items()}
    return params | touched


def _squares(leaves: dict[Path, Any]) -> dict[Path, Array]:
    """Return the sum of |x|^2 over each leaf, over all devices that hold shards of it."""
    sums = engine.map_rows(_sum_of_squares, [list(leaves.values())])
    return engine.over_all_shards(dict(zip(leaves, sums, strict=True)), of_parts=True)


def _lost_entries(
    updates: dict[Path, Any], params: dict[Path, Any]
) -> tuple[dict[Path, Array], dict[Path, Array]]:
    """Return for each update how many entries it does not move, and how many there are."""
    pairs = engine.map_rows(
        _lost_entries_of_leaf, [list(updates.values()), [params[k] for k in updates]]
    )
    lost, sizes = ({k: pair[i] for k, pair in zip(updates, pairs, strict=True)} for i in range(2))
    of_devices = functools.partial(engine.over_all_shards, of_parts=True)
    return of_devices(lost), of_devices(sizes)


def _lost_entries_of_leaf(u: Any, p: Any) -> tuple[Array, Array]:
    u, p = (x.values if isinstance(x, RowSparse) else jnp.asarray(x) for x in (u, p))
    there = cast(add(p, u), p.dtype)
    if jnp.iscomplexobj(p):
        stays = same_bits(there.real, p.real) & same_bits(there.imag, p.imag)
    else:
        stays = same_bits(there, p)
    stays = stays & (u != 0)
    # Counted in integers: a float32 stops counting at 2^24.
    lost = jnp.sum(stays, dtype=jnp.int32)
    return cast(lost, jnp.float32), jnp.asarray(u.size, jnp.float32)


def _sum_of_squares(x: Any) -> Array:
    if isinstance(x, RowSparse):
        return x.sum_of_squares()
    return jnp.sum(abs_sq(cast(x, at_least_float32(x.dtype))))
