"""Promises about the form of a transform, of its state, and of its calls."""

import dataclasses
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import GradientTransformation
from gradxform.base.methods import is_for_replicas
from gradxform.errors import name_of
from gradxform.testing.case import Case, inside
from gradxform.testing.promise import (
    Broken,
    Skipped,
    as_numpy,
    check_close,
    check_structure,
    check_types,
    leaves_of,
    promise,
    transform_of,
)
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Updates
from gradxform.values import Value
from gradxform.values.config import from_json, to_json
from gradxform.values.registry import REGISTRY
from gradxform.wrappers.hyperparams.inject import inject_hyperparams, injected
from gradxform.wrappers.parts import exact_part

# Dtypes of parameters and gradients.
MIXES = [
    (jnp.float32, jnp.float32),
    (jnp.bfloat16, jnp.bfloat16),
    (jnp.bfloat16, jnp.float32),
    (jnp.float32, jnp.bfloat16),
    (jnp.float16, jnp.float16),
]


@promise(
    "Give every new leaf the dtype of the old one (x.astype(old.dtype)), make it with an explicit "
    "dtype (jnp.zeros((), jnp.float32)), and return updates in the dtype of the gradients."
)
def state_is_a_scan_carry(case: Case) -> None:
    """The state keeps its structure, shapes, dtypes and weak types; updates keep their dtype."""
    tx = case.bound
    # Other libraries do not promise anything about mixed precision.
    for p_dtype, g_dtype in MIXES[:2] if case.foreign else MIXES:
        tree = case.params(p_dtype)
        (g,) = case.gradients(tree, 1, g_dtype)
        state = tx.init(tree)
        for path, leaf in leaves_of("state", jax.eval_shape(lambda s: s, state)).items():
            if leaf.weak_type:
                raise Broken("a weakly typed number", expected="a dtype", leaf=path)
        updates, after = jax.eval_shape(tx.update, g, state, tree)
        expected = jax.eval_shape(_without_examples, g, tree)
        if exact_part(tx) is not None:
            expected = jax.tree.map(lambda g, p: _exact(g, p.dtype), expected, tree)
        check_types("updates", updates, expected)
        check_types("state", after, jax.eval_shape(lambda s: s, state))

    def steps(tree: Params, grads: Updates) -> Any:
        def step(carry: tuple[Params, OptState], g: Updates) -> Any:
            p, state = carry
            updates, state = tx.update(g, state, p)
            return (apply_updates(p, updates), state), updates

        return jax.lax.scan(step, (tree, tx.init(tree)), grads)

    tree = case.params()
    grads = jax.tree.map(lambda *x: jnp.stack(x), *case.gradients(tree, 3))
    jax.eval_shape(steps, tree, grads)  # raises if the carry changes


def _exact(g: Any, p_dtype: Any) -> Any:
    """Return the type of an exact update: float32 for a parameter of fewer bits."""
    is_narrow = jnp.issubdtype(p_dtype, jnp.floating) and p_dtype.itemsize < 4
    return jax.ShapeDtypeStruct(g.shape, jnp.float32 if is_narrow else g.dtype)


def _without_examples(grads: Updates, tree: Params) -> Updates:
    """Return gradients with the shapes of the parameters, without an axis of examples."""
    return jax.tree.map(lambda g, p: jnp.zeros(p.shape, g.dtype), grads, tree)


@promise(
    "Make it a class with @transform whose fields are all that it is: numbers, strings, tuples, "
    "other transforms. Define the class at module level, so that it pickles."
)
def is_a_value(case: Case) -> None:
    """Transforms with equal fields and their hashes are equal; they print as a call and pickle."""
    tx = case.tx
    if not isinstance(tx, GradientTransformation):
        raise Skipped(
            f"{type(tx).__name__} is not a transform of gradxform; a class with @transform is a "
            "value"
        )
    hash(tx)
    _require("isinstance(tx, GradientTransformation)", isinstance(tx, GradientTransformation))
    init, update = tx
    _require("init, update = tx unpacks its methods", init == tx.init and update == tx.update)
    _require("tx.update is one object, which jit can cache", tx.update is tx.update)
    if not case.pickles:
        return
    again = eval(repr(tx), _namespace(tx))
    for name, copy in (("eval(repr(tx))", again), ("pickling", pickle.loads(pickle.dumps(tx)))):
        if copy != tx:
            raise Broken(repr(copy), expected=f"{tx!r} after {name}")
        _require(f"hash(tx) is the same after {name}", hash(copy) == hash(tx))
    _require("equal transforms have equal methods", tx.update == again.update)
    _require("tx.update pickles", pickle.loads(pickle.dumps(tx.update)) == tx.update)


def _require(claim: str, holds: bool) -> None:
    if not holds:
        raise Broken("it does not", expected=claim)


def _namespace(tx: Any) -> dict[str, Any]:
    """Return the names that `repr` may use: public ones, and the classes and functions inside."""
    names: dict[str, Any] = dict(REGISTRY)
    for x in inside(tx):
        thing = type(x) if isinstance(x, Value) else x
        if inspect.isroutine(thing) or isinstance(thing, type):
            names[thing.__qualname__.split(".")[-1]] = thing
    return names


@promise(
    "Read only shapes and dtypes in init where numbers are not needed, and let jnp functions see "
    "the parameters where they are."
)
def takes_abstract_parameters(case: Case) -> None:
    """`init` takes the shapes and dtypes of parameters, as `jax.eval_shape` returns them."""
    if case.foreign:
        raise Skipped("other libraries need not take abstract parameters")
    tree = case.params()
    check_types(
        "state",
        jax.eval_shape(lambda state: state, case.tx.init(jax.eval_shape(lambda p: p, tree))),
        jax.eval_shape(case.tx.init, tree),
    )


@promise(
    "Hand traced arrays to the functions of a jax.custom_jvp or jax.custom_vjp as arguments, not "
    "by a closure or a default, and keep none in an attribute or a cache."
)
def leaks_no_traced_arrays(case: Case) -> None:
    """A trace of `init` and `update` leaves no traced array behind: see `jax.checking_leaks`."""
    tree = case.params()
    state, (g,) = case.bound.init(tree), case.gradients(tree, 1)
    with jax.checking_leaks():
        jax.make_jaxpr(lambda p: case.bound.init(p))(tree)
        jax.make_jaxpr(lambda g, state, p: case.bound.update(g, state, p))(g, state, tree)


@promise("Fields must be plain data, values, or functions that are registered under a name.")
def goes_to_json_and_back(case: Case) -> None:
    """`from_json(to_json(tx)) == tx`."""
    unnamed = [
        type(x) for x in inside(case.tx) if isinstance(x, Value) and not type(x).registered_name
    ]
    if not isinstance(case.tx, GradientTransformation) or not case.pickles:
        raise Skipped("it does not consist of values only")
    if unnamed:
        name = unnamed[0].__name__
        raise Skipped(f"{name} needs a name for configs: name='package:{name}'")
    text = to_json(case.tx)
    if from_json(text) != case.tx:
        raise Broken(repr(from_json(text)), expected=repr(case.tx))


@promise(
    "Compute with a number as with an array, or annotate what must be known before a run: a number "
    "that decides shapes as gradxform.types.Size, any other with `| gradxform.types.FixedNumber`."
)
def its_numbers_can_be_in_the_state(case: Case) -> None:
    """`inject_hyperparams` of its class keeps the numbers in the state, or leaves them alone."""
    tx: Any = transform_of(case)
    if getattr(type(tx), "variadic", None) is not None or isinstance(tx, injected):
        raise Skipped("its class does not take numbers as arguments")
    arguments = {f.name: getattr(tx, f.name) for f in dataclasses.fields(tx) if f.init}
    kept = inject_hyperparams(type(tx))(**arguments)
    tree = case.params()
    (g,) = case.gradients(tree, 1)
    state = jax.eval_shape(kept.init, tree)
    _, after = jax.eval_shape(
        lambda s, g, p: kept.update(g, s, p, **case.extra_of(g, p)), state, g, tree
    )
    check_types("state", after, state)


@promise(
    "Map over leaves with jax.tree.map or an ArrayRule, and match trees by path "
    "(gradxform.leaves.align), so that a None is not a leaf."
)
def holes_pass(case: Case) -> None:
    """A None among the parameters stays; a None gradient freezes its parameter and its slots."""
    if case.foreign:
        raise Skipped("other libraries need not support holes")
    tree = case.params()
    grads = case.gradients(tree, 2)
    leaves = jax.tree.leaves(tree)
    state = case.bound.init(tree)
    with_hole = _without_first(grads[0])
    updates, after = case.bound.update(with_hole, state, tree)
    check_structure("updates", updates, with_hole)
    check_structure("state", after, state)
    if jax.tree.leaves(apply_updates(tree, updates))[0] is not leaves[0]:
        raise Broken("an array", expected="None, where the gradient is None", leaf="updates")
    path, _ = jax.tree_util.tree_flatten_with_path(tree)[0][0]
    before = dict(jax.tree_util.tree_flatten_with_path(state)[0])
    for where, leaf in jax.tree_util.tree_flatten_with_path(after)[0]:
        is_frozen = path and where[-len(path) :] == path
        if is_frozen and np.any(as_numpy(leaf) != as_numpy(before[where])):
            raise Broken(
                "another value",
                expected="the old one, where the gradient is None",
                leaf="state" + jax.tree_util.keystr(where),
            )

    # A parameter that is None: a new one, or the first if the transform names the leaves it knows.
    if len(leaves) > 1:
        can_add = isinstance(tree, dict) and not case.names_leaves
        params = {**tree, "none": None} if can_add else _without_first(tree)
        g = {**grads[0], "none": None} if can_add else with_hole
        updates, _ = case.bound.update(g, case.bound.init(params), params)
        check_structure("updates", updates, g)


def _without_first(tree: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, [None, *leaves[1:]])


@promise(
    "Write update(self, updates, state, params=None, **extra): no positional-only parameter, and "
    "extra arguments keyword-only."
)
def takes_params_by_keyword(case: Case) -> None:
    """`update(g, state, params=p)` works, and unknown extra arguments are ignored.

    Parts for replicas refuse them: an argument such as a weight would be missing from a mean.
    """
    tree = case.params()
    state, (g,) = case.bound.init(tree), case.gradients(tree, 1)
    a, _ = case.bound.update(g, state, tree)
    b, _ = case.bound.update(g, state, params=tree)
    check_close("updates", b, a, 0, what=" by position")
    if not case.foreign:
        # A line search passes unknown arguments on to its loss, which refuses this one.
        refuses = "value_fn" in case.extra_of(g, tree) or is_for_replicas(case.tx)
        c, _ = case.bound.update(g, state, tree, **({} if refuses else {"nobody_asked": 1}))
        check_close("updates", c, a, 0, what=" without the extra argument")


@promise(
    "Say needs_params = True on a rule that reads the parameter; in another update, raise an error "
    "that begins with the name of the transform and asks for the parameters."
)
def asks_for_params_by_name(case: Case) -> None:
    """`update(g, state)` gives the same result, or an error names the part that needs params."""
    if case.foreign:
        raise Skipped("other libraries need not say that they need the parameters")
    tree = case.params()
    state, (g,) = case.bound.init(tree), case.gradients(tree, 1)
    try:
        got = case.bound.update(g, state)
    except (TypeError, ValueError) as error:
        parts = {name_of(x) for x in inside(case.tx) if isinstance(x, GradientTransformation)}
        name, _, rest = str(error).partition(":")
        if not (name in parts or name in REGISTRY) or "param" not in rest:
            raise Broken(
                f"{type(error).__name__}: {error}",
                expected="an update, or an error that says which part needs the parameters",
            ) from error
        return
    expected = case.bound.update(g, state, tree)
    for what, a, b in zip(("updates", "state"), got, expected, strict=True):
        check_close(what, a, b, 1e-6, what=" with parameters")
