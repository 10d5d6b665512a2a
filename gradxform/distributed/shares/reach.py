"""How far the parts of a transform look, which decides whether they may run on shards of arrays.

A part of this library declares it (`locality`). A function, or an object of another library, does
not. It may run if every operation of its program is entrywise.
"""

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._jax.jaxprs import as_open_jaxpr, jaxprs_of
from gradxform.base import ArrayRule, GradientTransformation, locality_of, own_locality_of
from gradxform.base.traits import Traits
from gradxform.errors import name_of
from gradxform.interop import stateless, stateless_with_tree_map
from gradxform.leaves import dtype_of
from gradxform.types import Params
from gradxform.values.content import is_hashable
from gradxform.wrappers.parts import all_parts, inner_parts, remembered_by_transform

_LOOKS_AT = {"array": "whole arrays", "tree": "the whole tree"}
_NOT_ON_SHARDS = (
    "it cannot run on shards of arrays; with partition(...) it can run beside, on parameters of "
    "its own."
)
_NOT_IN_SHARDS = "it cannot run where the arrays are apart; use shards=1."


def check_reach(part: Any, tx: Any) -> tuple[str, list[Any]]:
    """Require every part of `tx` that declares a locality to look no further than a row.

    A part that looks at the whole tree may run if it only needs sums, which can be formed over
    shards. A rule for matrices may run because the engine brings them together.

    Returns:
      "entry" or "row", and the parts that do not declare a locality.

    Raises:
      ValueError: if a part looks further.
    """
    # Whoever asks at each step gets the same answer.
    return remembered_by_transform(tx, "_reach", functools.partial(_reach, part))


def _reach(part: Any, tx: Any) -> tuple[str, list[Any]]:
    reach, undeclared = "entry", []
    for one in all_parts(tx):
        if isinstance(one, GradientTransformation) and one.sees_pieces:
            continue
        if isinstance(one, ArrayRule):
            part_reach = engine.reach_of(one) if one.asks_for_sums else one.locality
        elif inner_parts(one):
            # Only what the wrapper adds itself: its inner parts are among `all_parts` too.
            part_reach = "entry" if one.asks_for_sums else own_locality_of(one)
        elif _declares_own_reach(one):
            part_reach = locality_of(one)
        else:
            undeclared.append(one)
            continue
        if part_reach in _LOOKS_AT:
            _refuse(part, one, f"looks at {_LOOKS_AT[part_reach]}", _NOT_ON_SHARDS)
        reach = "row" if part_reach == "row" else reach
    return reach, undeclared


def sums_products(tx: Any) -> bool:
    """Return whether a rule in `tx` may sum products over devices that have columns of matrices."""
    return remembered_by_transform(tx, "_sums_products", _sums_products)


def _sums_products(tx: Any) -> bool:
    return any(engine.grams_needed(one, 1, 2) is not None for one in all_parts(tx))


def check_leafwise(part: Any, tx: Any, params: Params) -> None:
    """Require every part of `tx` to look at one array at a time, or be an entrywise program.

    Raises:
      ValueError: if a part looks at several arrays.
    """
    undeclared = []
    for one in all_parts(tx):
        if not isinstance(one, ArrayRule) and not inner_parts(one) and not _declares_own_reach(one):
            undeclared.append(one)
        elif own_locality_of(one) == "tree":
            _refuse(part, one, f"looks at {_LOOKS_AT['tree']}", _NOT_IN_SHARDS)
    check_entrywise(part, undeclared, params, _NOT_IN_SHARDS)


def sees_pieces(tx: Any) -> bool:
    """Whether a part of `tx` knows that it sees pieces of arrays."""
    parts = all_parts(tx)
    return any(isinstance(one, GradientTransformation) and one.sees_pieces for one in parts)


def _declares_own_reach(tx: Any) -> bool:
    """Whether a transform's class declares a locality; one that holds a function cannot."""
    if not isinstance(tx, GradientTransformation) or isinstance(
        tx, stateless | stateless_with_tree_map
    ):
        return False
    return any("locality" in vars(c) for c in type(tx).__mro__ if c is not Traits)


def _refuse(part: Any, one: Any, why: str, so: str) -> NoReturn:
    name = name_of(one)
    if not isinstance(one, GradientTransformation):  # name the function that made it: optax.adam
        function = getattr(one, "update", one)
        factory = getattr(function, "__qualname__", name).split(".")[0]
        name = f"{getattr(function, '__module__', '').split('.')[0]}.{factory}"
    raise ValueError(f"{name_of(part)}: {name} {why}, so {so}")


# ---------------------------------------------------------------------------- entrywise programs


def check_entrywise(
    part: Any, undeclared: Sequence[Any], params: Params, so: str = _NOT_ON_SHARDS
) -> None:
    """Require the program of each of `undeclared` to act on every entry independently.

    Args:
      part: the part that error messages name.
      undeclared: transforms that do not declare a locality.
      params: the parameters.
      so: the end of the message, after the operation that looks further.

    Raises:
      ValueError: if one does not; the message names its operation that looks further.
    """
    leaves, treedef = jax.tree.flatten(params)
    kinds = tuple((jnp.shape(p), dtype_of(p)) for p in leaves)
    for one in undeclared:
        ask = _why_not_entrywise if is_hashable(one) else _why_not_entrywise.__wrapped__
        why = ask(one, treedef, kinds)
        if why:
            _refuse(part, one, why, so)


@functools.lru_cache(maxsize=128)
def _why_not_entrywise(tx: Any, treedef: Any, kinds: tuple[Any, ...]) -> str | None:
    """Return why a transform is not known to be entrywise; None if it is."""
    # Also trace it with long dimensions that differ between the arrays: a program may depend on
    # sizes, and one that mixes arrays of such shapes must look further than at single entries.
    long = [((4096 + i,) * max(len(shape), 1), dtype) for i, (shape, dtype) in enumerate(kinds)]
    for probe in (kinds, long):
        params = treedef.unflatten([jax.ShapeDtypeStruct(s, d) for s, d in probe])
        try:
            init = jax.make_jaxpr(tx.init)(params)
            state = jax.eval_shape(tx.init, params)
            update = jax.make_jaxpr(lambda g, s, p: tx.update(g, s, p))(params, state, params)
        except Exception as error:  # whatever another library may raise
            return f"does not declare its locality and cannot be traced ({type(error).__name__})"
        operation = _far_reaching_operation(init) or _far_reaching_operation(update)
        if operation:
            return f"looks further than at single entries ({operation})"
    return None


def _far_reaching_operation(closed: Any) -> str | None:
    """Return the name of an operation that is not entrywise; None if all are."""
    if any(jnp.ndim(c) for c in getattr(closed, "consts", ())):
        return "an array of its own"
    for eqn in as_open_jaxpr(closed)[0].eqns:
        inner = [x for _, x in jaxprs_of(eqn)]
        for one in inner:
            operation = _far_reaching_operation(one)
            if operation:
                return operation
        shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
        name = eqn.primitive.name
        if inner:
            if name not in _CALLS:
                return name
        elif name == "broadcast_in_dim":
            if shapes[0] not in ((), shapes[-1]):
                return name
        elif any(shapes) and name not in _ENTRYWISE:
            return name
    return None


_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
    *("remat", "checkpoint", "cond"),
}
_ENTRYWISE = {
    *("abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "conj"),
    *("convert_element_type", "copy", "copy_p", "cos", "cosh", "div", "eq", "erf", "erf_inv"),
    *("erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite"),
    *("le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg"),
    *("nextafter", "not", "or", "pow", "real", "reduce_precision", "rem", "round", "rsqrt"),
    *("select_n", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh"),
    "xor",
}
