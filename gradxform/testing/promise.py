"""Promises, and comparisons that name the leaf that breaks one.

A promise is a function of a `Case`. It returns None if it is kept, raises `Broken` if not, and
raises `Skipped`, which pytest also counts as skipped, if it does not apply to the transform.
"""

import contextlib
import functools
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.jaxprs import as_open_jaxpr, jaxprs_of, line_of, variables_in
from gradxform.base import Transform
from gradxform.testing.case import Case
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Updates

Promise = Callable[[Case], None]


class Broken(AssertionError):
    """A promise that is not kept.

    Attributes:
      promise: the name of the promise.
      leaf: the path of the leaf, such as `updates['w']` or `state[0].mu['w']`; "" without a leaf.
      expected: the promised result.
      got: the actual result.
      remedy: how to keep the promise.
    """

    def __init__(
        self, got: str, *, expected: str = "", leaf: str = "", remedy: str = "", promise: str = ""
    ) -> None:
        super().__init__(got)
        self.promise, self.leaf, self.expected = promise, leaf, expected
        self.got, self.remedy = got, remedy

    def __str__(self) -> str:
        text = f"{self.promise.replace('_', ' ')}: " if self.promise else ""
        text += f"{self.leaf}: " if self.leaf else ""
        text += f"expected {self.expected}, got {self.got}" if self.expected else self.got
        text += "" if text.endswith(".") else "."
        return f"{text} {self.remedy}" if self.remedy else text


class Skipped(unittest.SkipTest):
    """A promise that does not apply to a transform, with the reason."""


def promise(remedy: str) -> Callable[[Promise], Promise]:
    """Make a function of a case a promise.

    It runs with strict promotion. Any error that it raises becomes `Broken` with its name.

    Args:
      remedy: how to keep the promise; used unless the function raises `Broken` with a remedy.
    """

    def register(function: Promise) -> Promise:
        name = function.__name__

        @functools.wraps(function)
        def run(case: Case) -> None:
            try:
                with settings(case):
                    function(case)
            except Skipped:
                raise
            except Broken as broken:
                broken.promise = name
                broken.remedy = broken.remedy or remedy
                raise
            except Exception as error:  # any error of the transform breaks the promise
                raise Broken(
                    f"{type(error).__name__}: {shortened(' '.join(str(error).split()), 300)}",
                    expected="no error",
                    remedy=remedy,
                    promise=name,
                ) from error

        return run

    return register


def shortened(text: str, length: int) -> str:
    """Return a text, or its beginning if it is longer than `length`."""
    return text if len(text) <= length else text[:length] + " ..."


def transform_of(case: Case) -> Any:
    """Return the transform of a case.

    Raises:
      Skipped: if it is one of another library.
    """
    if case.foreign or not isinstance(case.tx, Transform):
        raise Skipped("other libraries do not promise this")
    return case.tx


@contextlib.contextmanager
def settings(case: Case) -> Iterator[None]:
    """Run under the strictest promotion, whatever the configuration of JAX."""
    lax = case.foreign  # other libraries may rely on implicit promotion
    with (
        jax.numpy_dtype_promotion("standard" if lax else "strict"),
        jax.numpy_rank_promotion("allow" if lax else "raise"),
        jax.disable_jit(False),
        # A NaN in an intermediate result may be masked out; NaNs in the result are reported.
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


# ---------------------------------------------------------------------------------------- running


def run(
    tx: Any, tree: Params, grads: list[Updates], update: Callable[..., Any] | None = None
) -> tuple[Params, list[Updates], OptState]:
    """Run several steps, and return the parameters, all updates and the last state."""
    step = update or tx.update
    state, all_updates = tx.init(tree), []
    for g in grads:
        updates, state = step(g, state, tree)
        check_structure("updates", updates, g)
        tree = apply_updates(tree, updates)
        all_updates.append(updates)
    return tree, all_updates, state


def wide_numbers(program: Any) -> Iterator[str]:
    """Yield the operations of a traced program with float64 results, except random draws."""
    for eqn in as_open_jaxpr(program)[0].eqns:
        if any(is_key(v.aval) for v in variables_in(eqn.invars)):
            continue
        inner = [jaxpr for _, jaxpr in jaxprs_of(eqn)]
        for jaxpr in inner:
            yield from wide_numbers(jaxpr)
        if not inner and any(v.aval.dtype == jnp.float64 for v in eqn.outvars):
            yield f"a {eqn.primitive.name} in float64" + (
                f" at {at}" if (at := line_of(eqn)) else ""
            )


# ------------------------------------------------------------------------------------- comparing


def leaves_of(name: str, tree: PyTree) -> dict[str, Any]:
    """Return the leaves of `tree` by path; the paths begin with `name`."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {name + jax.tree_util.keystr(path): leaf for path, leaf in flat}


def check_structure(name: str, got: PyTree, expected: PyTree, remedy: str = "") -> None:
    """Require two trees to have the same structure."""
    if jax.tree.structure(got) == jax.tree.structure(expected):
        return
    actual_paths, expected_paths = leaves_of(name, got), leaves_of(name, expected)
    for path in expected_paths:
        if path not in actual_paths:
            raise Broken("none", expected="a leaf", leaf=path, remedy=remedy)
    for path in actual_paths:
        if path not in expected_paths:
            raise Broken("a leaf", expected="none", leaf=path, remedy=remedy)
    actual, promised = (shortened(str(jax.tree.structure(tree)), 120) for tree in (got, expected))
    raise Broken(actual, expected=promised, leaf=name, remedy=remedy)


def type_str(x: Any) -> str:
    """Return the type of a leaf as text: `float32[3,4]`."""
    if not hasattr(x, "dtype"):
        return f"a Python {type(x).__name__}"
    weak = ", weakly typed" if getattr(x, "weak_type", False) else ""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]{weak}"


def check_types(name: str, got: PyTree, expected: PyTree, remedy: str = "") -> None:
    """Require the same structure, and the same shape, dtype and weak type of every leaf."""
    check_structure(name, got, expected, remedy)
    pairs = zip(leaves_of(name, got).items(), jax.tree.leaves(expected), strict=True)
    for (path, a), b in pairs:
        if type_str(a) != type_str(b):
            raise Broken(type_str(a), expected=type_str(b), leaf=path, remedy=remedy)


def is_key(x: Any) -> bool:
    """Whether an array is one of typed keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def as_numpy(x: Any) -> Any:
    """Return a leaf as float64, complex128 or integers."""
    if isinstance(x, jax.Array) and is_key(x):
        return np.asarray(jax.random.key_data(x))
    if jnp.issubdtype(jnp.result_type(x), jnp.floating):
        return np.asarray(x, np.float64)
    x = np.asarray(x)
    return x.astype(np.complex128) if np.iscomplexobj(x) else x


def check_close(
    name: str,
    got: PyTree,
    expected: PyTree,
    rtol: float,
    atol: Any = None,
    what: str = "",
    sway: Callable[[], PyTree] | None = None,
) -> None:
    """Require every entry to be within `atol + rtol |expected|` of the expected one.

    With `sway`, entries that are further off may differ by that much more.

    Args:
      name: the name of the tree, with which paths begin.
      got: a tree.
      expected: a tree of the same structure.
      rtol: as in `numpy.testing.assert_allclose`; integers must be equal.
      atol: likewise, a number for each leaf. Defaults to `rtol` times its largest entry.
      what: appended to the expected value in the message, such as " without jit".
      sway: a function that returns how far roundings change each entry, as `rounding.sway` does.
    """
    check_structure(name, got, expected)
    expected_leaves = jax.tree.leaves(expected)
    slack: list[Any] = []  # the result of `sway`, which is called only if needed
    for i, (path, leaf) in enumerate(leaves_of(name, got).items()):
        a, b = as_numpy(leaf), as_numpy(expected_leaves[i])
        if a.shape != b.shape:
            raise Broken(f"the shape {a.shape}", expected=f"{b.shape}{what}", leaf=path)
        # At least 1e-6: where a leaf is nearly 0 everywhere, its size would allow nothing.
        size = max(1e-6, float(np.max(np.abs(b), initial=0.0)))
        allowed = (rtol * size if atol is None else atol[i]) + rtol * np.abs(b)
        exact = not np.issubdtype(b.dtype, np.inexact)
        wrong = (a != b) if exact else ~_near(a, b, allowed)
        if np.any(wrong) and not exact and sway is not None:
            slack = slack or jax.tree.leaves(sway())
            wrong &= ~_near(a, b, allowed + slack[i])
        if np.any(wrong):
            raise _differing(path, a, b, wrong, what)


def _near(a: Any, b: Any, allowed: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)


def _differing(path: str, a: Any, b: Any, wrong: Any, what: str) -> Broken:
    """Return the error for the entry that is furthest off."""
    with np.errstate(invalid="ignore"):
        error = np.where(wrong, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf), -1.0)
    worst = np.unravel_index(int(np.argmax(error)), error.shape)
    count = f", {int(np.sum(wrong))} of {wrong.size} entries off" if wrong.ndim else ""
    index = f"[{', '.join(map(str, worst))}]" if worst else ""
    return Broken(f"{a[worst]:.7g}{count}", expected=f"{b[worst]:.7g}{what}", leaf=path + index)
