"""Section `wrappers`: wrappers around AdamW beside the bare AdamW, and beside Optax's wrappers."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from rich.console import Console

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import LIBRARIES, OURS
from benchmarks.subjects.pairs import Pair
from benchmarks.tables import paired

RATE = 1e-3
# Extra arguments of the wrappers that look at the loss.
VALUE = {"value": jnp.float32(1.0)}
LOOK_AT_THE_LOSS = {"reduce_on_plateau", "skip_loss_spikes"}


def _is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def _is_not_matrix(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim < 2, params)


def _always(step: Any) -> Any:
    return step >= 0


def _norm(updates: Any) -> Any:
    return gx.global_norm(updates)


# Wrappers of both libraries, as functions of the library and of its `contrib`.
BOTH: dict[str, Callable[[Any, Any], Any]] = {
    "MultiSteps(4)": lambda lib, _: lib.MultiSteps(lib.adamw(RATE), 4),
    "apply_if_finite": lambda lib, _: lib.apply_if_finite(lib.adamw(RATE), 5),
    "conditionally_mask": lambda lib, _: lib.conditionally_mask(lib.adamw(RATE), _always),
    "conditionally_transform": lambda lib, _: lib.conditionally_transform(lib.adamw(RATE), _always),
    "flatten": lambda lib, _: lib.flatten(lib.adamw(RATE)),
    "inject_hyperparams": lambda lib, _: lib.inject_hyperparams(lib.adamw)(learning_rate=RATE),
    "masked": lambda lib, _: lib.masked(lib.adamw(RATE), _is_matrix),
    "mechanize": lambda lib, contrib: contrib.mechanize(lib.adamw(RATE)),
    "partition": lambda lib, _: lib.partition(
        {True: lib.adamw(RATE), False: lib.sgd(RATE)}, _is_matrix
    ),
    "reduce_on_plateau": lambda lib, contrib: lib.chain(
        lib.adamw(RATE), contrib.reduce_on_plateau()
    ),
    "sam": lambda lib, contrib: contrib.sam(
        lib.adamw(RATE), lib.chain(contrib.normalize(), lib.sgd(0.05))
    ),
    "schedule_free": lambda lib, contrib: contrib.schedule_free(lib.adamw(RATE, b1=0.0), RATE),
    "split_real_and_imaginary": lambda lib, contrib: contrib.split_real_and_imaginary(
        lib.adamw(RATE)
    ),
}
# Wrappers that only gradxform has, as functions of the bare AdamW. (Optax's `monitor` is not among
# those to compare with, because the structure of its state changes in the first step.)
OURS_ALONE: dict[str, Callable[[Any], Any]] = {
    "accumulate(1)": lambda inner: gx.accumulate(inner, 1),
    "accumulate(4)": lambda inner: gx.accumulate(inner, 4),
    "cautious": gx.cautious,
    "decoupled_weight_decay": lambda inner: gx.decoupled_weight_decay(inner, 1e-4),
    "monitor": lambda inner: gx.chain(inner, gx.monitor({"norm": _norm})),
    "moving_average": gx.moving_average,
    "param_groups": lambda inner: gx.param_groups(
        inner, (gx.param_group("norm", learning_rate=0.5, optional=True),)
    ),
    "power_moving_average": gx.power_moving_average,
    "project": lambda inner: gx.project(inner, gx.projections.projection_non_negative),
    "selective_transform": lambda inner: gx.selective_transform(inner, freeze_mask=_is_not_matrix),
    "skip_loss_spikes": gx.skip_loss_spikes,
    "stochastic_weight_average": gx.stochastic_weight_average,
    "with_metrics": gx.with_metrics,
    "with_metrics(leaf)": lambda inner: gx.with_metrics(inner, per="leaf"),
    "zclip": lambda inner: gx.chain(gx.zclip(), inner),
}


def _contrib(lib: Any) -> Any:
    return gx.contrib if lib is gx else optax.contrib


def _pairs() -> dict[str, Pair]:
    """Return every wrapper beside Optax's, then every wrapper beside the bare AdamW."""
    ours = LIBRARIES[OURS]

    def extra(name: str) -> dict[str, Any]:
        return VALUE if name in LOOK_AT_THE_LOSS else {}

    def beside_optax(name: str) -> Pair:
        return Pair(lambda lib: BOTH[name](lib, _contrib(lib)), extra(name))

    def beside_bare(name: str, make: Callable[[], Any]) -> Pair:
        bare = gx.adamw(RATE)
        return Pair(lambda lib: make() if lib is ours else bare, extra(name), same=False)

    pairs = {f"{name}, Optax": beside_optax(name) for name in BOTH}
    for name, make in BOTH.items():
        both = functools.partial(make, gx, gx.contrib)
        pairs[f"{name}, AdamW"] = beside_bare(name, both)
    for name, wrap in OURS_ALONE.items():
        alone = functools.partial(wrap, gx.adamw(RATE))
        pairs[f"{name}, AdamW"] = beside_bare(name, alone)
    return pairs


def run(options: Options, job: Job) -> Results:
    """Measure every wrapper on every tree."""
    return paired.run("wrappers", _pairs(), options, job)


def show(results: Results, console: Console) -> None:
    """Print one table per tree, with two rows for a wrapper that Optax has, too."""
    explanation = (
        "Ratio of gradxform's wrapper around AdamW to Optax's wrapper, or to the bare AdamW of "
        "gradxform; beside it the medians of both; less is better."
    )
    paired.show(results, console, "wrapper, and what it is compared with", explanation)


def draw(results: Results, path: Path) -> None:
    """Write one panel per figure, one bar per comparison."""
    headline = "Wrappers around AdamW, relative to Optax's wrappers and to the bare AdamW"
    paired.draw(results, path, headline, "wrapper / what it is compared with")


SECTION = Section(
    about="wrappers around AdamW beside the bare AdamW and beside Optax's wrappers",
    run=run,
    show=show,
    draw=draw,
)
