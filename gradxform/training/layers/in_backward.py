"""Steps that update each layer of a scan as soon as the backward pass has its gradient.

The parameters and slots of the layers are in references, made of the arrays that the step gets and
frozen at its end. The derivative of a scan reads a layer, differentiates it, and writes the layer
and its slots after the update. All else is updated after the backward pass, as in any step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import is_divided_by_compiler, platform_of, zeros_of
from gradxform.base import ArrayRule, extra_names
from gradxform.engine import reach_of
from gradxform.leaves import Path
from gradxform.leaves.storage import is_stored
from gradxform.training.layers.check import LayerState, layer_states
from gradxform.training.layers.derivative import scanned
from gradxform.training.layers.found import Scan, scans_of
from gradxform.training.layers.scan import IN_STEP, Layers, arrays_in
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
        # What belongs to layers of which none is trained goes with all else.
        self.scans_trained = [s for s in self.scans if self.trained & {*s.indices}]
        self.kinds = [
            kind if kind.scan in self.scans_trained else LayerState() for kind in self.kinds
        ]
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
                self.token = None  # it is traced, and ends here

        # Derivatives of what does not depend on a parameter outside of layers need a token: without
        # one, JAX would leave the backward pass of its layers out.
        value, pull, aux = jax.vjp(loss, chosen, jnp.zeros(()), has_aux=True)
        if "value" in (extra_names(self.tx) or ()) and not jnp.ndim(aux[0]):
            self.extra = {"value": aux[0]} | self.extra
        one = jnp.ones_like(value)
        self.known: dict[int, Any] = {}
        self.asked = self._totals()
        now = {k: asked for k, asked in enumerate(self.asked) if asked.kind != "later"}
        for wave in sorted({asked.wave for asked in now.values()}):
            self.wave = wave
            of_wave = {k: asked for k, asked in now.items() if asked.wave == wave}
            self.sums = self._nothing_of(of_wave)
            self._add_up(as_gradients(pull(one)[0]), of_wave)
        self.wave = None
        # What only the state remembers is added up while layers are updated.
        later = {k: asked for k, asked in enumerate(self.asked) if asked.kind == "later"}
        self.sums = self._nothing_of(later)
        gradients = pull(one)[0]
        for k in later:
            self.known[k] = sum(jax.freeze(refs[k])[0] for refs in self.sums.values())
        return (value, aux), gradients

    def _nothing_of(self, totals: dict[int, Asked]) -> dict[int, dict[int, Any]]:
        """Return references to totals before anything is added to them, for each scan."""
        return {
            scan.number: {k: jax.new_ref(nothing_of(x)) for k, x in totals.items()}
            for scan in self.scans_trained
        }

    # ---------------------------------------------------------------------------------- updates

    def step(self, gradients: Updates) -> tuple[Params, OptState]:
        """Return the parameters and the state, after the update of all else but layers."""
        totals = self._totals_of(None, False)
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
            leaves[j] = self.stacks[j].in_place(i) if is_here else self.layer_of_leaf(j, i)
        for k, kind in enumerate(self.kinds):
            if kind.scan is scan and kind.is_stack:
                stack = self.slots[k]
                slots[k] = stack.in_place(i) if in_place else stack.layer(i)
        return self.treedef.unflatten(gs), leaves, slots

    def layer_of_leaf(self, j: int, i: Any) -> Array:
        if j not in self.stacks:
            return layer_of(self.leaves[j], i)
        # On TPUs, XLA would convert whole stacks before a loop, or copy those that it writes.
        return lax.optimization_barrier(self.stacks[j].layer(i))

    def update_layer(self, scan: Scan, i: Any, gradients: dict[int, Array]) -> None:
        """Update a layer in the references; or only add up what totals need of it."""
        if self.wave is not None:
            arguments = self._of_layer(scan, i, gradients)
            totals = self._totals_of(scan, True)
            self._update(totals, *arguments)
            self._add(scan, {k: totals.asked[k][1] for k in self.sums[scan.number]})
            return
        new_leaves, new_slots, later = self._updated_layer(scan, i, gradients)
        self._add(scan, later)
        for j, x in new_leaves.items():
            self.stacks[j].set(i, x)
        for k, x in new_slots.items():
            if self.kinds[k].is_stack:
                self.slots[k].set(i, x)
            else:
                for ref, a in zip(self.own[k], jax.tree.leaves(x), strict=True):
                    ref[...] = a

    def _add(self, scan: Scan, sums: dict[int, Array]) -> None:
        """Add what a layer has to totals."""
        for k, ref in self.sums[scan.number].items():
            ref[...] = with_more(self.asked[k], ref[...], sums[k][None])

    def _updated_layer(self, scan: Scan, i: Any, gradients: dict[int, Array]) -> Any:
        gradient = jax.tree.leaves(gradients)[0]
        is_on_cpu = platform_of(gradient) == "cpu"
        # Rows of a layer are rows of the stack, which devices that divide rows would exchange.
        in_place = self.is_by_entry and not is_on_cpu and not is_divided_by_compiler(gradient)
        arguments = self._of_layer(scan, i, gradients, in_place)
        of_scan = [k for k, kind in enumerate(self.kinds) if kind.scan is scan]
        trained = [j for j in scan.indices if j in self.trained]
        gs, leaves, slots = arguments
        parts = gs, {j: leaves[j] for j in scan.indices}, {k: slots[k] for k in of_scan}

        def update(gradients: Updates, layer: dict[int, Any], own: dict[int, Any]) -> Any:
            all_leaves = [layer.get(j, x) for j, x in enumerate(leaves)]
            all_slots = [own.get(k, x) for k, x in enumerate(slots)]
            totals = self._totals_of(scan, False)
            params, state = self._update(totals, gradients, all_leaves, all_slots)
            new_leaves, new_slots = leaves_of_state(params), leaves_of_state(state)
            later = {k: totals.asked[k][1] for k in self.sums[scan.number]}
            return {j: new_leaves[j] for j in trained}, {k: new_slots[k] for k in of_scan}, later

        if not is_on_cpu:
            return update(*parts)
        # XLA copies the stacks on CPUs unless the update stands in a condition.
        shapes = jax.eval_shape(update, *parts)
        nothing = lambda *_: jax.tree.map(zeros_of, shapes)  # noqa: E731
        return lax.cond(i >= 0, update, nothing, *parts)

    # ----------------------------------------------------------------------------------- totals

    def _totals(self) -> list[Asked]:
        """Return the totals that an update asks for; all parts of the tree ask for the same."""
        self.asked = []
        if not self.scans_trained:
            return []
        scan = self.scans_trained[0]

        def step(totals: Totals, i: Any) -> None:
            gradients = {j: self.layer_of_leaf(j, i) for j in scan.indices if j in self.trained}
            self._update(totals, *self._of_layer(scan, i, gradients))

        here = self._here(scan)
        return totals_asked_for(step, here, (jax.ShapeDtypeStruct((), jnp.int32),))

    def _here(self, scan: Scan | None) -> frozenset[Path]:
        """Return the leaves of a part of the tree; None for all but layers."""
        if scan is not None:
            return frozenset(self.paths[i] for i in scan.indices)
        layers = {i for one in self.scans_trained for i in one.indices}
        return frozenset(path for i, path in enumerate(self.paths) if i not in layers)

    def _totals_of(self, scan: Scan | None, only_adds_up: bool) -> Totals:
        """Return the totals that a part of the tree may know; None for all but layers."""
        number = None if scan is None else scan.number
        known = {
            k: x[number] if isinstance(x, dict) else x
            for k, x in self.known.items()
            if not isinstance(x, dict) or number in x
        }
        return Totals(self._here(scan), known, only_adds_up)

    def _add_up(self, gradients: Updates, of_wave: dict[int, Asked]) -> None:
        """Add to the totals of a wave what is not in layers."""
        totals = self._totals_of(None, True)
        self._update(totals, gradients, self.leaves, self.state_leaves)
        for k, asked in of_wave.items():
            own = totals.asked[k][1]
            layers = {n: jax.freeze(refs[k])[0] for n, refs in self.sums.items()}
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
        return scanned(self, scan, stack, x, xs, self.token)


def _is_by_entry(part: Any) -> bool:
    """Whether a part is not a rule, or one that looks at nothing but entries and totals."""
    return not isinstance(part, ArrayRule) or reach_of(part) == "entry"
