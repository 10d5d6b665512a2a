"""Steps that update each layer of a scan as soon as the backward pass has its gradient.

The parameters and slots of the layers are in references, made of the arrays that the step gets and
frozen at its end. The derivative of a scan reads a layer, differentiates it, and writes the layer
and its slots after the update. All else is updated after the backward pass, as in any step.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import platform_of, zeros_of
from gradxform.base import ArrayRule
from gradxform.engine import reach_of
from gradxform.leaves.storage import is_stored
from gradxform.training.layers.check import layer_states
from gradxform.training.layers.found import Scan, scans_of
from gradxform.training.layers.scan import IN_STEP, Layers, arrays_in, types_of_layer
from gradxform.training.layers.stacks import Stack, layer_of, leaves_of_state
from gradxform.training.layers.sums import Asked, Totals, nothing_of, totals_asked_for, with_more
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.wrappers.one_pass import call_update_params, is_one_run
from gradxform.wrappers.parts import all_parts

__all__ = []


class LayeredStep:
    """One step: the scans of its loss, and the references to their layers."""

    def __init__(self, part: str, tx: Any, params: Params, state: OptState) -> None:
        self.part, self.tx, self.extra = part, tx, {}
        self.params, self.state = params, state
        self.leaves, self.treedef = jax.tree.flatten(params)
        self.paths = [path for path, _ in arrays_in(params)]
        self.state_leaves = leaves_of_state(state)
        self.state_def = jax.tree.structure(state, is_leaf=is_stored)
        self.scans: list[Scan] = []
        self.token: Any = None
        self.next_scan = iter(self.scans)
        self.is_by_entry = is_one_run(tx) and all(map(_is_by_entry, all_parts(tx)))

    # --------------------------------------------------------------------------- before the loss

    def find(self, loss_fn: Callable[..., Any], args: Any) -> None:
        """Find the scans of a loss, and how the state belongs to their layers."""
        self.scans = scans_of(self.part, loss_fn, self.params, args)
        self.kinds = layer_states(self.part, self.tx, self.params, self.state, self.scans)

    def keep(self, on: list[bool]) -> list[bool]:
        """Return which parameters are differentiated after the layers; `on` are the trained."""
        self.trained = {i for scan in self.scans for i in scan.indices if on[i]}
        layers = {i for scan in self.scans for i in scan.indices}
        return [is_on and i not in layers for i, is_on in enumerate(on)]

    # ----------------------------------------------------------------------------- derivatives

    def value_and_grad(
        self, objective: Callable[..., Any], chosen: Params, as_gradients: Callable[..., Any]
    ) -> tuple[Any, Updates]:
        """Return what `jax.value_and_grad(objective, has_aux=True)` does; update the layers.

        Args:
          objective: the loss and something else, as a function of what is not in layers.
          chosen: that.
          as_gradients: makes gradients of cotangents: None where the loss does not depend on it.
        """
        self.stacks = {i: Stack(self.leaves[i]) for i in sorted(self.trained)}
        places = [k for k, kind in enumerate(self.kinds) if kind.scan is not None]
        self.slots = {k: Stack(self.state_leaves[k]) for k in places if self.kinds[k].is_stack}
        # What a state has of a leaf as a whole, such as its norm, each layer finds alike.
        self.own = {
            k: [jax.new_ref(jnp.asarray(x)) for x in jax.tree.leaves(self.state_leaves[k])]
            for k in places
            if not self.kinds[k].is_stack
        }

        def loss(chosen: Params, token: Array) -> Any:
            self.token, self.next_scan = token, iter(self.scans)
            context = IN_STEP.set(self)
            try:
                return objective(chosen)
            finally:
                IN_STEP.reset(context)

        # Derivatives of what does not depend on a parameter outside of layers need a token: without
        # one, JAX would leave the backward pass of its layers out.
        value, pull, aux = jax.vjp(loss, chosen, jnp.zeros(()), has_aux=True)
        self.extra |= self.extra_of(aux)
        one = jnp.ones_like(value)
        self.known: dict[int, Any] = {}
        self.asked = self._totals()
        for wave in sorted({asked.wave for asked in self.asked}):
            self.wave = wave
            of_wave = [asked.wave == wave for asked in self.asked]
            self.sums: dict[int, list[Any]] = {
                scan.number: [
                    jax.new_ref(nothing_of(asked)) if now else None
                    for asked, now in zip(self.asked, of_wave, strict=True)
                ]
                for scan in self.scans
            }
            gradients = as_gradients(pull(one)[0])
            self._add_up(gradients, of_wave)
        self.wave = None
        gradients = pull(one)[0]
        return (value, aux), gradients

    def extra_of(self, aux: Any) -> dict[str, Any]:
        """Return the extra arguments that the loss gives."""
        return {}

    # ---------------------------------------------------------------------------------- updates

    def step(self, gradients: Updates) -> tuple[Params, OptState]:
        """Return the parameters and the state, after the update of all else but layers."""
        totals = Totals(self._known(None), False)
        params, state = self._update(totals, gradients, self.leaves, self.state_leaves)
        leaves = jax.tree.leaves(params)
        for i, stack in self.stacks.items():
            leaves[i] = stack.end()
        slots = leaves_of_state(state)
        for k, stack in self.slots.items():
            slots[k] = stack.end()
        for k, refs in self.own.items():
            form = jax.tree.structure(self.state_leaves[k])
            slots[k] = form.unflatten([jax.freeze(ref) for ref in refs])
        return self.treedef.unflatten(leaves), self.state_def.unflatten(slots)

    def _update(
        self, totals: Totals, gradients: Updates, leaves: list[Any], slots: list[Any]
    ) -> tuple[Params, OptState]:
        params, state = self.treedef.unflatten(leaves), self.state_def.unflatten(slots)
        given = self.tx, gradients, state, params, self.extra
        if totals.only_adds_up or self.asked:
            with totals.asked_for(self.paths):
                return call_update_params(*given)
        return call_update_params(*given)

    def _of_layer(
        self, scan: Scan, i: Any, gradients: dict[int, Array], in_place: bool = False
    ) -> Any:
        """Return the arguments of `_update` for one layer: all else does not have a gradient."""
        gs = [gradients.get(j) for j in range(len(self.leaves))]
        leaves, slots = [*self.leaves], [*self.state_leaves]
        for j in scan.indices:
            is_here = in_place and j in self.trained
            leaves[j] = self.stacks[j].in_place(i) if is_here else self._layer_of_leaf(j, i)
        for k, kind in enumerate(self.kinds):
            if kind.scan is scan and kind.is_stack:
                stack = self.slots[k]
                slots[k] = stack.in_place(i) if in_place else stack.layer(i)
        return self.treedef.unflatten(gs), leaves, slots

    def _layer_of_leaf(self, j: int, i: Any) -> Array:
        if j not in self.stacks:
            return layer_of(self.leaves[j], i)
        # On TPUs, XLA would convert whole stacks before a loop, or copy those that it writes.
        return lax.optimization_barrier(self.stacks[j].layer(i))

    def _update_layer(self, scan: Scan, i: Any, gradients: dict[int, Array]) -> None:
        """Update a layer in the references; or only add up what totals need of it."""
        if self.wave is not None:
            arguments = self._of_layer(scan, i, gradients)
            totals = Totals(self._known(scan), True)
            self._update(totals, *arguments)
            for asked, ref, (_, x) in zip(
                self.asked, self.sums[scan.number], totals.asked, strict=True
            ):
                if ref is not None:
                    ref[...] = with_more(asked, ref[...], x)
            return
        new_leaves, new_slots = self._updated_layer(scan, i, gradients)
        for j, x in new_leaves.items():
            self.stacks[j].set(i, x)
        for k, x in new_slots.items():
            if self.kinds[k].is_stack:
                self.slots[k].set(i, x)
            else:
                for ref, a in zip(self.own[k], jax.tree.leaves(x), strict=True):
                    ref[...] = a

    def _updated_layer(self, scan: Scan, i: Any, gradients: dict[int, Array]) -> Any:
        is_on_cpu = platform_of(jax.tree.leaves(gradients)[0]) == "cpu"
        arguments = self._of_layer(scan, i, gradients, not is_on_cpu and self.is_by_entry)
        of_scan = [k for k, kind in enumerate(self.kinds) if kind.scan is scan]
        trained = [j for j in scan.indices if j in self.trained]
        gs, leaves, slots = arguments
        parts = gs, {j: leaves[j] for j in scan.indices}, {k: slots[k] for k in of_scan}

        def update(gradients: Updates, layer: dict[int, Any], own: dict[int, Any]) -> Any:
            all_leaves = [layer.get(j, x) for j, x in enumerate(leaves)]
            all_slots = [own.get(k, x) for k, x in enumerate(slots)]
            totals = Totals(self._known(scan), False)
            params, state = self._update(totals, gradients, all_leaves, all_slots)
            new_leaves, new_slots = leaves_of_state(params), leaves_of_state(state)
            return {j: new_leaves[j] for j in trained}, {k: new_slots[k] for k in of_scan}

        if not is_on_cpu:
            return update(*parts)
        # XLA copies the stacks on CPUs unless the update stands in a condition.
        shapes = jax.eval_shape(update, *parts)
        nothing = lambda *_: jax.tree.map(zeros_of, shapes)  # noqa: E731
        return lax.cond(i >= 0, update, nothing, *parts)

    # ----------------------------------------------------------------------------------- totals

    def _totals(self) -> list[Asked]:
        """Return the totals that an update asks for; all parts of the tree ask for the same."""
        scan = self.scans[0]

        def step(totals: Totals, i: Any) -> None:
            gradients = {j: self._layer_of_leaf(j, i) for j in scan.indices if j in self.trained}
            self._update(totals, *self._of_layer(scan, i, gradients))

        self.asked = []
        return totals_asked_for(step, (jax.ShapeDtypeStruct((), jnp.int32),))

    def _known(self, scan: Scan | None) -> dict[int, Array]:
        """Return the totals that a part of the tree may know; None for all but layers."""
        number = None if scan is None else scan.number
        return {
            k: x[number] if isinstance(x, dict) else x
            for k, x in self.known.items()
            if not isinstance(x, dict) or number in x
        }

    def _add_up(self, gradients: Updates, of_wave: list[bool]) -> None:
        """Add to the totals of a wave what is not in layers."""
        totals = Totals(self._known(None), True)
        self._update(totals, gradients, self.leaves, self.state_leaves)
        for k, (asked, is_now) in enumerate(zip(self.asked, of_wave, strict=True)):
            if not is_now:
                continue
            own = totals.asked[k][1]
            layers = {n: jax.freeze(refs[k]) for n, refs in self.sums.items()}
            if asked.kind == "leaves":
                self.known[k] = {None: own, **layers}
                continue
            total = own
            for x in layers.values():
                total = with_more(asked, total, x)
            self.known[k] = total

    # ------------------------------------------------------------------------------------ a scan

    def scan(self, stack: Layers, x: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """Return the last carry and all outputs, with a derivative that updates the layers."""
        scan = next(self.next_scan)
        return _scanned_in_step(self, scan, stack, x, xs, self.token)


def _is_by_entry(part: Any) -> bool:
    """Whether a part is not a rule, or one that looks at nothing but entries and totals."""
    return not isinstance(part, ArrayRule) or reach_of(part) == "entry"


class _Floats(NamedTuple):
    """Which leaves of a tree have a cotangent."""

    are: list[bool]

    def of(self, tree: PyTree) -> list[Any]:
        """Return these leaves."""
        return list(itertools.compress(jax.tree.leaves(tree), self.are))

    def cotangents(self, values: list[Any], like: PyTree) -> PyTree:
        """Return a tree of cotangents, of which these are those of floating leaves."""
        rest = iter(values)
        leaves, treedef = jax.tree.flatten(like)
        none = lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0)  # noqa: E731
        pairs = zip(self.are, leaves, strict=True)
        return treedef.unflatten([next(rest) if is_float else none(x) for is_float, x in pairs])


def _floats(tree: PyTree) -> _Floats:
    return _Floats([jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(tree)])


def _scanned_in_step(
    step: LayeredStep, scan: Scan, stack: Layers, x: PyTree, xs: PyTree, token: Array
) -> tuple[PyTree, PyTree]:
    layer_def = jax.tree.structure(stack.params)
    types = types_of_layer((stack.params, xs))

    def block(p: Params, x: PyTree, s: PyTree) -> tuple[PyTree, PyTree]:
        return stack.call(p, x, s)

    # What the block has from elsewhere, such as other parameters, has cotangents of its own.
    x_types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), a.dtype), x)
    block, from_elsewhere = jax.closure_convert(block, types[0], x_types, types[1])
    count = jnp.arange(stack.count)

    def layer(i: Any) -> Params:
        return layer_def.unflatten([step._layer_of_leaf(j, i)[0] for j in scan.indices])

    def turn(x: PyTree, i_and_s: Any, elsewhere: Any) -> tuple[PyTree, PyTree]:
        i, s = i_and_s
        return block(layer(i), x, s, *elsewhere)

    @jax.custom_vjp
    def run(x: PyTree, xs: PyTree, elsewhere: Any, token: Array) -> tuple[PyTree, PyTree]:
        return lax.scan(lambda x, t: turn(x, t, elsewhere), x, (count, xs), unroll=stack.unroll)

    def forward(x: PyTree, xs: PyTree, elsewhere: Any, token: Array) -> Any:
        def kept(x: PyTree, t: Any) -> Any:
            new, y = turn(x, t, elsewhere)
            return new, (y, x)

        x, (ys, inputs) = lax.scan(kept, x, (count, xs), unroll=stack.unroll)
        return (x, ys), (inputs, xs, elsewhere)

    def backward(kept: Any, cotangents: Any) -> Any:
        inputs, xs, elsewhere = kept
        of_x, of_ys = cotangents
        floats = [_floats(t) for t in (of_type(inputs), of_type(xs), elsewhere)]
        is_on = [j in step.trained for j in scan.indices]

        def turn_back(carry: Any, t: Any) -> Any:
            ct, ct_elsewhere = carry
            i, x, s, ct_y = t
            leaves = jax.tree.leaves(layer(i))

            def of(trained: list[Any], x: PyTree, s: PyTree, elsewhere: Any) -> Any:
                rest = iter(trained)
                mixed = [next(rest) if on else p for on, p in zip(is_on, leaves, strict=True)]
                return block(layer_def.unflatten(mixed), x, s, *elsewhere)

            out, pull = jax.vjp(of, list(itertools.compress(leaves, is_on)), x, s, elsewhere)
            y_floats = _floats(out[1])
            cts = floats[0].cotangents(ct, out[0]), y_floats.cotangents(ct_y, out[1])
            g, ct_x, ct_s, ct_e = pull(cts)
            trained = list(itertools.compress(scan.indices, is_on))
            step._update_layer(scan, i, {j: x[None] for j, x in zip(trained, g, strict=True)})
            more = [a + b for a, b in zip(ct_elsewhere, floats[2].of(ct_e), strict=True)]
            return (floats[0].of(ct_x), more), floats[1].of(ct_s)

        first = floats[0].of(of_x), [jnp.zeros_like(a) for a in floats[2].of(elsewhere)]
        ct_ys = _floats(of_ys).of(of_ys)
        (ct, ct_elsewhere), ct_xs = lax.scan(
            turn_back, first, (count, inputs, xs, ct_ys), reverse=True, unroll=stack.unroll
        )
        like = jax.tree.map(lambda a: a[0], inputs)
        return (
            floats[0].cotangents(ct, like),
            floats[1].cotangents(ct_xs, xs),
            floats[2].cotangents(ct_elsewhere, elsewhere),
            jnp.zeros_like(token),
        )

    def of_type(t: PyTree) -> PyTree:
        return t

    run.defvjp(forward, backward)
    return run(x, xs, from_elsewhere, token)
