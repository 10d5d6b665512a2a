"""Runs of one optimizer: its paths on two surfaces, and its training of a network on the digits.

All learning rates run at once, under `vmap`, and so do both surfaces: each is one compiled scan.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from docs.site.samples import Make
from docs.site.surfaces import SURFACES, loss_of

PATH_STEPS, PATH_EVERY = 150, 2
PATH_RATES = tuple(10 ** (k / 4) for k in range(-14, 3))
DIGITS_STEPS, DIGITS_EVERY = 300, 10
DIGITS_RATES = tuple(10 ** (k / 2) for k in range(-8, 2))
WILD = 3.0  # a path that rises above this multiple of the first loss would leave the picture
# A rate is good if its loss ends at most this much above that of the best.
GOOD = 0.1


class Problem(NamedTuple):
    """What is minimized: everything that a scan needs."""

    params: Any
    batches: Any
    loss: Any  # of parameters and a batch
    total: Any  # the loss that is measured, of parameters
    every: int


def _scan(make: Make, problem: Problem, rate: Any) -> tuple[Any, Any, Any]:
    """Return the losses, parameters and evaluated parameters, from the start and every so often."""
    tx = make(rate)

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        params, state = carry

        def loss(p: Any, **_: Any) -> Any:
            return problem.loss(p, batch)

        value, grads = jax.value_and_grad(loss)(params)
        given = {"value": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
        if make_steps(tx):
            given["step"] = jnp.zeros((), jnp.int32)
        if per_example(tx):  # one example
            grads = jax.tree.map(lambda g: g[None], grads)
        updates, state = tx.update(grads, state, params, **given)
        return (gx.apply_updates(params, updates), state), None

    def measured(carry: Any, batches: Any) -> tuple[Any, Any]:
        carry, _ = jax.lax.scan(step, carry, batches)
        return carry, seen(carry)

    def seen(carry: Any) -> Any:
        evaluated = gx.eval_params(carry[1], carry[0])
        # Only the parameters in the plane are drawn.
        drawn = (carry[0], evaluated) if problem.every == PATH_EVERY else (0, 0)
        return problem.total(evaluated), *drawn

    carry = problem.params, tx.init(problem.params)
    rest = jax.lax.scan(measured, carry, problem.batches)[1]
    return jax.tree.map(
        lambda x, xs: jnp.concatenate([jnp.asarray(x)[None], xs]), seen(carry), rest
    )


def make_steps(tx: Any) -> bool:
    """Whether an update needs to be told its step."""
    return isinstance(tx, gx.external_step)


def per_example(tx: Any) -> bool:
    """Whether an update takes the gradients of each example."""
    parts = tx.transforms if isinstance(tx, gx.chain) else ()
    return any(isinstance(part, gx.differentially_private_aggregate) for part in parts)


def _best(losses: np.ndarray, wild: float = np.inf) -> int:
    """Return the number of the run that ends lowest, first of those that never became wild."""
    losses = np.where(np.isfinite(losses), losses, np.inf)
    ends = np.mean(losses[:, -max(1, losses.shape[1] // 10) :], axis=1)
    return int(np.lexsort((ends, np.max(losses, axis=1) > wild * losses[:, 0]))[0])


def paths(make: Make, takes_rate: bool) -> dict[str, Any]:
    """Return the paths of an optimizer on the surfaces, each at its best learning rate."""
    rates = jnp.asarray(PATH_RATES if takes_rate else (1.0,), jnp.float32)
    batches = jnp.zeros((PATH_STEPS // PATH_EVERY, PATH_EVERY))

    def run(index: Any, start: Any, rate: Any) -> Any:
        def total(params: Any) -> Any:
            return loss_of(index, params["w"][0])

        problem = Problem({"w": start}, batches, lambda p, b: total(p), total, PATH_EVERY)
        return _scan(make, problem, rate)

    over_rates = jax.vmap(run, in_axes=(None, None, 0))
    over_all = jax.jit(jax.vmap(over_rates, in_axes=(0, 0, None)))
    starts = jnp.asarray([[surface.start] for surface in SURFACES.values()], jnp.float32)
    losses, points, evaluated = (
        np.asarray(jax.tree.leaves(x)[0]) for x in over_all(jnp.arange(2), starts, rates)
    )
    found = {}
    for i, name in enumerate(SURFACES):
        best = _best(losses[i], WILD)
        path, other = points[i, best, :, 0], evaluated[i, best, :, 0]
        found[name] = {
            "rate": _rounded(rates[best]) if takes_rate else None,
            "path": _listed(path),
            "evaluated": None if np.allclose(path, other, atol=1e-4) else _listed(other),
        }
    return found


def _rounded(x: Any) -> float:
    return float(f"{float(x):.3g}")


def _listed(x: np.ndarray) -> list[Any]:
    kept = x[np.isfinite(x).all(axis=-1)] if x.ndim > 1 else x
    # A picture has 60 points a unit.
    return np.round(np.clip(np.asarray(kept, float), -9, 9), 3).tolist()


@functools.cache
def digits() -> Problem:
    """Return a network with one hidden layer on the handwritten digits, in batches of 64."""
    from examples.digits import load_data

    training, _ = load_data()
    random = np.random.default_rng(0)

    def dense(n: int, m: int) -> dict[str, Any]:
        w = random.normal(size=(n, m)) * math.sqrt(2 / n)
        return {"w": jnp.asarray(w, jnp.float32), "b": jnp.zeros(m)}

    images, labels = jnp.asarray(training.images.reshape(-1, 64)), jnp.asarray(training.labels)

    def loss(params: Any, batch: Any) -> Any:
        hidden = jax.nn.relu(images[batch] @ params["w"] + params["b"])
        logits = hidden @ params["out"]["w"] + params["out"]["b"]
        chosen = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(chosen, labels[batch][:, None], axis=1))

    rounds = DIGITS_STEPS // DIGITS_EVERY
    batches = jnp.asarray(random.integers(len(labels), size=(rounds, DIGITS_EVERY, 64)))
    every = jnp.arange(len(labels))
    params = {**dense(64, 32), "out": dense(32, 10)}
    return Problem(params, batches, loss, lambda p: loss(p, every), DIGITS_EVERY)


def on_all_examples(problem: Problem) -> Problem:
    """Return the problem with the loss of all examples at every step."""

    def loss(params: Any, _: Any) -> Any:
        return problem.total(params)

    return problem._replace(batches=problem.batches[..., :0], loss=loss)


def race(make: Make, takes_rate: bool, all_examples: bool = False) -> dict[str, Any]:
    """Return the losses of an optimizer on the digits, at its best learning rate and at others."""
    rates = jnp.asarray(DIGITS_RATES if takes_rate else (1.0,), jnp.float32)
    problem = digits()  # made here, not while the run is traced
    problem = on_all_examples(problem) if all_examples else problem
    run = jax.jit(jax.vmap(lambda rate: _scan(make, problem, rate)[0]))
    losses = np.asarray(run(rates))
    best = _best(losses)
    if not np.isfinite(losses[best, -1]):
        raise ValueError("its loss is infinite at every learning rate; change its sample.")
    means = np.mean(losses[:, -3:], axis=1)
    good = [r for r, x in zip(rates, means, strict=True) if x <= means[best] + GOOD]
    ends = [round(float(x), 4) if np.isfinite(x) and x < 9 else None for x in means]
    return {
        "rate": _rounded(rates[best]) if takes_rate else None,
        "good": [_rounded(good[0]), _rounded(good[-1])] if takes_rate and good else None,
        "loss": [round(float(x), 4) if np.isfinite(x) else None for x in losses[best]],
        "rates": [_rounded(r) for r in rates] if takes_rate else [],
        "ends": ends if takes_rate else [],
    }


def both(make: Make, takes_rate: bool, all_examples: bool = False) -> dict[str, Any]:
    """Return the paths and the race of an optimizer."""
    return {"paths": paths(make, takes_rate), "race": race(make, takes_rate, all_examples)}
