"""The methods of `distributed_digits.py`, by name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from command_line import Refused, did_you_mean, one_line
from jax import lax
from jax.sharding import AbstractMesh

import gradxform.distributed as gd
from gradxform.testing import hlo

AXIS = "replica"
PERIOD = 10

Maker = Callable[..., Any]
EVERY_STEP: dict[str, Maker] = {
    "sync": lambda inner: gd.tower(inner, AXIS),
    "sync_replicas": lambda inner: gd.sync_replicas(inner, AXIS),
    "zero1": lambda inner: gd.zero1(inner, AXIS),
}
# The moving rate and the block momentum are those of the papers, for n replicas.
EVERY_PERIOD: dict[str, Maker] = {
    "model_average": lambda inner, k, n, steps: gd.model_average(inner, AXIS, period=k),
    "elastic_average": lambda inner, k, n, steps: gd.elastic_average(
        inner, AXIS, period=k, moving_rate=0.9 / n, rho=0.0
    ),
    "agn": lambda inner, k, n, steps: gd.agn(inner, AXIS, period=k),
    "diloco": lambda inner, k, n, steps: gd.diloco(inner, AXIS, period=k),
    "slowmo": lambda inner, k, n, steps: gd.slowmo(inner, AXIS, period=k),
    "bmuf": lambda inner, k, n, steps: gd.bmuf(inner, AXIS, period=k, block_momentum=1 - 1 / n),
    "post_local_sgd": lambda inner, k, n, steps: gd.post_local_sgd(
        inner, AXIS, period=k, warmup=steps // 10
    ),
}
METHODS = [*EVERY_STEP, *EVERY_PERIOD]


def make_method(name: str, inner: Any, period: int | None, n: int, steps: int) -> Any:
    """Return the optimizer of n replicas.

    Args:
      name: the name of the method.
      inner: the optimizer of each replica.
      period: steps from one exchange to the next, for methods with a period.
      n: the number of replicas.
      steps: the number of steps of the whole run.
    """
    if name not in METHODS:
        hint = did_you_mean(name, METHODS) or f"There are {', '.join(METHODS)}."
        raise Refused(f"--method: no method named {name!r}. {hint}")
    if name in EVERY_STEP and period is not None:
        raise Refused(f"--period: {name} exchanges at every step; leave the option out.")
    try:
        if name in EVERY_STEP:
            return EVERY_STEP[name](inner)
        return EVERY_PERIOD[name](inner, period or PERIOD, n, steps)
    except (TypeError, ValueError) as error:
        raise Refused(one_line(error)) from error


def evaluated(tx: Any, params: Any, state: Any) -> Any:
    """Return the parameters to evaluate: the center or anchor, or else the mean of the replicas."""
    if isinstance(tx, gd.elastic_average | gd.agn | gd.outer):
        return gd.eval_params(state)
    return jax.tree.map(lambda p: lax.pmean(p, AXIS), params)


def resized(tx: Any, carry: dict[str, Any], n: int) -> dict[str, Any]:
    """Resize parameters and state to n replicas."""
    old = len(jax.tree.leaves(carry["params"])[0])
    if old == n or not isinstance(tx, gd.zero1):
        return gd.resize_replicas(carry, n)
    return {
        "params": gd.resize_replicas(carry["params"], n),
        "state": _redivide(tx, carry, old, n),
    }


def _redivide(tx: Any, carry: dict[str, Any], old: int, n: int) -> Any:
    """Divide the state of `zero1`, which is in `old` pieces, into n pieces."""
    one = jax.tree.map(lambda p: p[0], carry["params"])
    before, after = (tx.state_specs(one, AbstractMesh((k,), (AXIS,))) for k in (old, n))

    def piece(x: Any, was: Any, spec: Any) -> np.ndarray:
        whole = np.concatenate(x, tuple(was).index(AXIS)) if AXIS in was else x[0]
        pieces = np.split(whole, n, tuple(spec).index(AXIS)) if AXIS in spec else [whole] * n
        return np.stack(pieces)

    return jax.tree.map(piece, carry["state"], before, after)


class Sent:
    """The bytes that each device sends, counted in the compiled step, or else by a formula.

    The formula: a sum of P bytes over N devices sends 2 (N - 1) / N P in a ring.
    """

    def __init__(self, tx: Any, r: gd.Replicas, size: int, lowered: Any) -> None:
        self.tx, self.size = tx, size
        self.counted = r.mode != "vmap" and jax.process_index() == 0
        ring = 2 * (r.n - 1) / r.n * size
        if self.counted:
            self.wire = hlo.wire_bytes(lowered.compile())
        elif hasattr(tx, "due"):
            self.wire = hlo.WireBytes(0.0, (ring,), 1)
        else:
            self.wire = hlo.WireBytes(ring, (), 1)

    def note(self, history: dict[str, list[float]], first: int, last: int) -> None:
        """Add the exchanges and the bytes of these steps to the history."""
        steps = jnp.arange(first, last + 1)
        exchanges = int(np.sum(self.tx.due(steps))) if hasattr(self.tx, "due") else len(steps)
        bytes_ = self.wire.always * len(steps) + self.wire.conditional * exchanges
        for name, more in (("exchanges", exchanges), ("sent", bytes_)):
            total = history.setdefault(name, [])
            total.append(float(more) + (total[-1] if total else 0.0))
