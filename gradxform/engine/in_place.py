"""Rules for whole matrices, one matrix after the other, each of its arrays where its leaf keeps it.

For rules that need many arrays at once, on processors with little memory besides the state. A loop
over all matrices has one copy of the rule. What it loads it stores before it loads the next.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import settled_carry
from gradxform.engine.renewal import turn_of_share
from gradxform.engine.slices import slice_of_axis, with_slice_of_axis
from gradxform.types import Array

Lists = tuple[list[Array], ...]  # of several arrays, each a list of that of every leaf


class InPlace(NamedTuple):
    """One of the matrices of several leaves: how its arrays are loaded and stored.

    Every method that stores returns another value like this one.
    """

    leaf: Any  # the index of the leaf
    number: Any  # that of the matrix among those of the leaf
    slots: Lists  # (B, ...) each
    given: Lists = ()  # the gradients (B, m, n), unless updates take their places
    moved: Lists = ()  # what updates change, the gradients or parameters and what goes with these
    turned: Sequence[bool] = ()  # of each leaf, whether rows and columns are exchanged in these two
    seen: Callable[[Array], Array] = lambda g: g  # the gradient as the rule gets it
    move: Callable[..., Sequence[Array]] = lambda old, u: [u]  # what is moved, after an update

    def gradient(self) -> Array:
        """Return the gradient of the matrix, (1, m, n); before `with_update`."""
        (gradients,) = self.given or self.moved
        return self._loaded([gradients], self.leaf, lambda k, x: self.seen(self._turn(k, x)))

    def slot(self, k: int, *others: int, side: Any = 0) -> Array:
        """Return a slot of the matrix, (1, ...); of several equal ones that of this number."""
        if isinstance(side, int):
            k, others, side = (k, *others)[side], (), 0
        lists = [self.slots[i] for i in (k, *others)]
        return self._loaded(lists, side * len(lists[0]) + self.leaf, lambda k, x: x)

    def with_slot(self, new: Array, k: int, *others: int, side: Any = 0) -> "InPlace":
        """Return this with a new slot; of several equal ones with that of this number."""
        if isinstance(side, int):
            return self.with_slots(lambda old, new: [new], [(k, *others)[side]], new)[0]
        ks = k, *others
        both = [x for i in ks for x in self.slots[i]]
        (both,), _ = self._stored([both], side * len(self.slots[k]) + self.leaf, _taking, new)
        size = len(self.slots[k])
        parts = [both[i * size : (i + 1) * size] for i in range(len(ks))]
        return self._with_lists(dict(zip(ks, parts, strict=True)))

    def with_slots(
        self, f: Callable[..., Sequence[Array]], ks: Sequence[int], *args: Array
    ) -> tuple["InPlace", list[Array]]:
        """Return this with some new slots, and what else `f(*slots, *args)` returns after them.

        The slots are read where they are: `f` is a function of single entries.
        """
        lists = [self.slots[k] for k in ks]
        lists, rest = self._stored(lists, self.leaf, lambda _, *xs: f(*xs), *args)
        return self._with_lists(dict(zip(ks, lists, strict=True))), rest

    def with_update(self, u: Array) -> "InPlace":
        """Return this after the update of the matrix, which nothing else may need."""

        def move(k: int, *arrays: Array) -> list[Array]:
            *old, u = arrays
            return [self._turn(k, x) for x in self.move(*(self._turn(k, x) for x in old), u)]

        lists, _ = self._stored(self.moved, self.leaf, move, u)
        return self._replace(moved=tuple(lists))

    def settled(self, *xs: Any) -> Any:
        """Return this and arrays that are computed before anything else is loaded."""
        arrays, xs = lax.optimization_barrier((self.arrays, xs))
        return self.with_arrays(arrays), *xs

    def repeated(self, turns: Any, turn: Callable[[Any, "InPlace"], "InPlace"]) -> "InPlace":
        """Return this after so many turns, which get their numbers."""

        def one(i: Any, arrays: Any) -> Any:
            return turn(i, self.with_arrays(arrays)).settled()[0].arrays

        start = settled_carry(lambda arrays: one(0, arrays), self.arrays, turns)
        return self.with_arrays(lax.fori_loop(0, turns, one, start))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays, in the order of `with_arrays`."""
        return self.slots, self.given, self.moved

    def with_arrays(self, arrays: tuple[Any, ...]) -> "InPlace":
        """Return this with other arrays."""
        slots, given, moved = arrays
        return self._replace(slots=slots, given=given, moved=moved)

    def _with_lists(self, new: dict[int, list[Array]]) -> "InPlace":
        count = len(self.slots)
        new = {k % count: x for k, x in new.items()}
        return self._replace(slots=tuple(new.get(k, x) for k, x in enumerate(self.slots)))

    def _turn(self, k: int, x: Array) -> Array:
        return jnp.swapaxes(x, -1, -2) if self.turned and self.turned[k] else x

    def _part(self, x: Array) -> Array:
        return x if x.shape[0] == 1 else slice_of_axis(x, self.number, 1, 0)

    def _put(self, x: Array, new: Array) -> Array:
        return new if x.shape[0] == 1 else with_slice_of_axis(x, new, self.number, 0)

    def _loaded(self, lists: Any, i: Any, f: Callable[[int, Array], Array]) -> Array:
        xs = [x for xs in lists for x in xs]
        if len(xs) == 1:
            return f(0, self._part(xs[0]))
        branches = [lambda xs, k=k: f(k, self._part(xs[k])) for k in range(len(xs))]
        return lax.optimization_barrier(lax.switch(i, branches, xs))

    def _stored(self, lists: Any, i: Any, f: Callable[..., Any], *args: Array) -> Any:
        """Return lists after `f(k, *old, *args)` of the arrays of an index, and other results.

        In the branch of a leaf its arrays are written where they are.
        """

        def branch(k: int) -> Any:
            def run(lists: Any, args: Any) -> Any:
                new = f(k, *(self._part(xs[k]) for xs in lists), *args)
                pairs = zip(lists, new, strict=False)
                put = [[*xs[:k], self._put(xs[k], x), *xs[k + 1 :]] for xs, x in pairs]
                return put, [*new[len(lists) :]]

            return run

        lists = [[*xs] for xs in lists]
        branches = [branch(k) for k in range(len(lists[0]))]
        return (
            branches[0](lists, args) if len(branches) == 1 else lax.switch(i, branches, lists, args)
        )


def _taking(k: int, old: Array, new: Array) -> list[Array]:
    return [new]


def run_in_place(
    turn: Callable[[InPlace], InPlace],
    sizes: Sequence[int],
    slots: Lists,
    given: Lists = (),
    moved: Lists = (),
    **how: Any,
) -> InPlace:
    """Return the arrays of leaves after a turn for each of their matrices.

    Args:
      turn: what a rule does with one matrix.
      sizes: how many matrices each leaf has.
      slots: as in `InPlace`, as the others are.
      given: the gradients.
      moved: what updates change.
      **how: other fields.
    """
    count = sum(sizes)
    leaves = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    numbers = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)

    def one(i: Any, at: InPlace) -> InPlace:
        place = jnp.asarray(leaves)[i], jnp.asarray(numbers)[i]
        with turn_of_share(i, count, 1, count):
            return turn(at._replace(leaf=place[0], number=place[1]))

    return InPlace(0, 0, slots, given, moved, **how).repeated(count, one)
