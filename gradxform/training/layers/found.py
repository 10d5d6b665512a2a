"""The scans over layers that a loss has, found by a trace before it is differentiated."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax import jaxprs
from gradxform._jax.versions import zeros_of
from gradxform.training.layers.scan import IN_STEP, Layers, arrays_in, leaf_name, types_of_layer
from gradxform.types import Params, PyTree

__all__ = []


class Scan(NamedTuple):
    """A scan over layers, in the order in which the loss has them."""

    number: int
    indices: tuple[int, ...]  # of its parameters among those of the loss
    count: int  # of layers
    place: str  # in messages


class _Finding:
    """Takes the scans of a loss over, and notes them; nothing is computed."""

    def __init__(self, part: str, params: Params) -> None:
        self.part, self.scans = part, []
        self.types: list[list[tuple[int, ...]]] = []  # for each, of what the first layer gets
        self.paths = [leaf_name(path) for path, _ in arrays_in(params)]
        self.leaves = jax.tree.leaves(params)

    def scan(self, stack: Layers, x: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """Note a scan, and return results that depend on nothing."""
        line = jaxprs.line_here()
        place = str(stack) + (f" at {line}" if line else "")
        indices = tuple(self._index_of(stack, place, *pair) for pair in arrays_in(stack.params))
        for scan in self.scans:
            both = set(scan.indices) & set(indices)
            if both:
                raise ValueError(
                    f"{self.part}: {self.paths[min(both)]} is a parameter of two scans, "
                    f"{scan.place} and {place}. A layer is updated in the backward pass of its "
                    "scan, before the gradient of the other is known. Scan over it once, or use "
                    "update_in_backward=False."
                )
        self.scans.append(Scan(len(self.scans), indices, stack.count, place))
        first = types_of_layer((stack.params, xs))
        out = jax.eval_shape(lambda x, p, s: stack.call(p, x, s), x, *first)
        x_type, y_type = out
        y_type = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((stack.count, *a.shape), a.dtype), y_type
        )
        # The equation by which `scans_of` sees where in the program the scan is.
        lax.optimization_barrier([self.leaves[i] for i in indices] + jax.tree.leaves(x))
        self.types.append([jnp.shape(a) for a in jax.tree.leaves(x)])
        # A key is handed on, since keys do not have zeros.
        new_x = jax.tree.map(lambda kind, a: a if _is_key(kind) else zeros_of(kind), x_type, x)
        if any(map(_is_key, jax.tree.leaves(y_type))):
            raise TypeError(f"{self.part}: y of {place} must not have keys; return numbers.")
        return new_x, jax.tree.map(zeros_of, y_type)

    def _index_of(self, stack: Layers, place: str, path: Any, leaf: Any) -> int:
        found = [i for i, x in enumerate(self.leaves) if x is leaf]
        if not found:
            name = leaf_name(path)
            raise ValueError(
                f"{self.part}: update_in_backward needs the parameters themselves as layers, and "
                f"{name!r} of {place} is not one: the loss has computed it, or is inside "
                "jax.jit, vmap, scan or another scan_layers there. Pass params[...] as it is, and "
                "compute with it in block; pass what is not a parameter in xs."
            )
        return found[0]


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def scans_of(part: str, loss_fn: Callable[..., Any], params: Params, args: Any) -> list[Scan]:
    """Return the scans of a loss.

    Raises:
      ValueError: if there is none; if a scan is under a condition or in a loop; or if the loss uses
        parameters of layers elsewhere, too.
    """
    treedef = jax.tree.structure(params)
    found: list[_Finding] = []

    def trace(leaves: list[Any]) -> Any:
        whole = treedef.unflatten(leaves)
        finding = _Finding(part, whole)
        found.append(finding)
        context = IN_STEP.set(finding)
        try:
            return loss_fn(whole, *args)
        finally:
            IN_STEP.reset(context)
            finding.leaves = []  # which are traced, and end here

    jaxpr, _ = jaxprs.as_open_jaxpr(jax.make_jaxpr(trace)(jax.tree.leaves(params)))
    finding = found[-1]
    if not finding.scans:
        raise ValueError(
            f"{part}: update_in_backward=True updates the layers of gradxform.scan_layers, and "
            "loss_fn does not call it. Scan over the layers with it, or leave "
            "update_in_backward out."
        )
    marks = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "optimization_barrier"]
    own_marks = []
    for scan, shapes in zip(finding.scans, finding.types, strict=True):
        stacks = [jaxpr.invars[i] for i in scan.indices]
        own = next((m for m in marks if m.invars[: len(stacks)] == stacks), None)
        # Under `jax.vmap`, what the first layer gets has one more axis.
        if own is None or [v.aval.shape for v in own.invars[len(stacks) :]] != shapes:
            raise ValueError(
                f"{part}: with update_in_backward, {scan.place} must run once in each step, and "
                "is inside a condition, a loop or jax.vmap. Call it in the loss itself; for "
                "microbatches, let block take all of them."
            )
        own_marks.append(own)
    for scan in finding.scans:
        for i in scan.indices:
            use = next(_uses_of(jaxpr, jaxpr.invars[i], None, own_marks), None)
            if use is not None:
                raise ValueError(
                    f"{part}: the loss uses {finding.paths[i]} in {scan.place} and again in {use}. "
                    "A layer is updated in the backward pass of its scan, before other gradients "
                    "of it are known. Use it in block alone (y may return what you need of it), or "
                    "leave update_in_backward out."
                )
    return finding.scans


def _uses_of(jaxpr: Any, variable: Any, call: str | None, but: Sequence[Any] = ()) -> Iterator[str]:
    """Yield where a variable is used, but for some equations."""
    for eqn in jaxpr.eqns:
        places = [k for k, v in enumerate(eqn.invars) if v is variable]
        if not places or any(eqn is one for one in but):
            continue
        line = jaxprs.line_of(eqn, call)
        inner = jaxprs.called(eqn)
        if inner is None:
            yield f"{eqn.primitive.name}" + (f" at {line}" if line else "")
            continue
        for k in places:
            yield from _uses_of(inner[0], inner[0].invars[k], line)
    if any(v is variable for v in jaxpr.outvars) and call is None:
        yield "what it returns"
