"""The rows of the section `tpu`: what is compiled for TPUs, and why a step moves or holds more."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

import gradxform as gx
import gradxform.distributed as gd
from benchmarks.subjects.cases import LIBRARIES, OURS
from benchmarks.subjects.pairs import EXTRA, PAIRS
from docs.site import samples
from gradxform.commands.catalog import registered_parts

RATE = 1e-3
LARGE, SMALL = ((8192, 8192),) * 2, ((1024, 1024),) * 4
# Rules for whole matrices, and those that keep so many arrays that large ones do not fit.
ON_SMALL = {
    "adago",
    "adamuon",
    "apollo",
    "apollo_mini",
    "aurora",
    "contra_muon",
    "dion",
    "dion2",
    "distributed_shampoo",
    "galore",
    "ggt",
    "kl_shampoo",
    "lbfgs",
    "lbfgs_steps",
    "lbfgsb",
    "muon",
    "muon_eq",
    "muonclip",
    "muown",
    "newton_muon",
    "normuon",
    "polar_grad",
    "psgd_kron",
    "scion",
    "shampoo",
    "soap",
    "soft_muon",
    "spectral_sphere",
    "spel",
    "splus",
}

_LOSS = EXTRA["sophia"]["obj_fn"]
_VALUE = {"value": jnp.float32(1.0)}
_EXTRA: dict[str, Mapping[str, Any]] = {
    "adahessian": {"obj_fn": _LOSS},
    "lbfgs_steps": _VALUE,
    "lbfgsb": _VALUE,
    "newton_cg": {**_VALUE, "value_fn": _LOSS},
    "schedule_free_plus": _VALUE,
    **EXTRA,
}


class Row(NamedTuple):
    """A step to compile.

    Attributes:
      make: returns the transform, of a library.
      both: whether Optax has it, too.
      shapes: of the parameters.
      dtype: of parameters and gradients.
      extra: extra arguments of the update.
      examples: how many gradients an update takes, if it takes several.
      topology: the devices, along whose axes the step is a replica's; "" for one device.
    """

    make: Callable[[Any], Any]
    both: bool = False
    shapes: tuple[tuple[int, ...], ...] = LARGE
    dtype: Any = jnp.float32
    extra: Mapping[str, Any] = {}
    examples: int | None = None
    topology: str = ""


def _optimizers() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for entry in registered_parts("optimizers"):
        name, pair = entry.name, PAIRS.get(entry.name)
        shapes = SMALL if name in ON_SMALL else LARGE
        if pair:
            rows[name] = Row(pair.make, True, shapes, extra=pair.extra, examples=pair.examples)
        elif ":" not in name:
            make = _alone(samples.make_of(entry))
            rows[name] = Row(make, False, shapes, extra=_EXTRA.get(name, {}))
    return rows


def _alone(make: Any) -> Callable[[Any], Any]:
    return lambda lib: make(RATE)


def _of_adamw(wrap: Callable[[Any], Any], dtype: Any = jnp.float32) -> Row:
    return Row(lambda lib: wrap(gx.adamw(RATE)), dtype=dtype)


def _muon_and_adamw(lib: Any) -> Any:
    muon = PAIRS["muon"].make(lib)
    return lib.partition(
        {"matrix": muon, "rest": lib.adamw(RATE)},
        lambda params: {k: "matrix" if p.ndim == 2 else "rest" for k, p in params.items()},
    )


def _schedule_free(lib: Any) -> Any:
    home = gx if lib is LIBRARIES[OURS] else lib.contrib
    return home.schedule_free(lib.adamw(RATE, b1=0.0), RATE)


HALF = jnp.bfloat16
WRAPPERS = {
    "chain(clip_by_global_norm, adamw)": Row(
        lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(RATE)), True
    ),
    "MultiSteps(adamw, 4)": Row(lambda lib: lib.MultiSteps(lib.adamw(RATE), 4), True),
    "apply_if_finite(adamw)": Row(lambda lib: lib.apply_if_finite(lib.adamw(RATE), 5), True),
    "schedule_free(adamw)": Row(_schedule_free, True),
    "partition(muon, adamw)": Row(_muon_and_adamw, True, (*SMALL, (8192,))),
    "lookahead(adamw)": _of_adamw(lambda tx: gx.lookahead(tx, 6, 0.5)),
    "moving_average(adamw)": _of_adamw(gx.moving_average),
    "factor_state(adamw)": _of_adamw(gx.factor_state),
    "state_dtype(adamw)": _of_adamw(gx.state_dtype),
    "quantize_state(adamw)": _of_adamw(gx.quantize_state),
    "quantize_state(adamw, 4)": _of_adamw(lambda tx: gx.quantize_state(tx, 4)),
    "master_weights(adamw), bfloat16": _of_adamw(gx.master_weights, HALF),
    "master_weights(adamw, 16), bfloat16": _of_adamw(lambda tx: gx.master_weights(tx, 16), HALF),
    "master_weights(adamw, 8), bfloat16": _of_adamw(lambda tx: gx.master_weights(tx, 8), HALF),
    "kahan(adamw), bfloat16": _of_adamw(gx.kahan, HALF),
    "stochastic_rounding(adamw), bfloat16": _of_adamw(
        lambda tx: gx.stochastic_rounding(tx, 0), HALF
    ),
}


def _sharded(topology: str, wrap: Callable[[Any], Any] = lambda tx: tx) -> Row:
    return Row(lambda lib: gd.zero1(wrap(gx.adamw(RATE)), ("x", "y", "z")), topology=topology)


SHARDED = {
    f"zero1({name}), {topology}": _sharded(topology, wrap)
    for topology in ("v5e:2x2", "v5p:4x4x8")
    for name, wrap in (("adamw", lambda tx: tx), ("quantize_state(adamw)", gx.quantize_state))
}
GROUPS: dict[str, dict[str, Row]] = {
    "optimizers": _optimizers(),
    "wrappers": WRAPPERS,
    "several devices": SHARDED,
}
ROWS = {name: row for rows in GROUPS.values() for name, row in rows.items()}

# Why steps move or hold more than the bounds, or are not compiled in time: what happens, and where.
NOT_UNDERSTOOD = "not understood"
REASONS: dict[str, tuple[str, list[str]]] = {
    "norms": (
        "a norm or mean is known only after a pass; what it scales is read, or made, in another",
        [
            *("adafactor", "adai", "amos", "came", "cautious_adamw", "cautious_lion", "fromage"),
            *("lamb", "lars", "mars_adamw", "momo", "momo_adam", "normalized_sgd", "polyak_sgd"),
            *("rowwise_adagrad", "schedule_free_plus", "stable_adamw"),
        ],
    ),
    "largest entries": (
        "a norm that cannot overflow: passes for the largest entry, for the sum, and for the step",
        [
            *("adago", "adalite", "adamp", "adanorm", "adatam", "sgd_sai", "sgdp", "stable_spam"),
            "tam",
        ],
    ),
    "chained norms": ("several norms, each of what the last one scales", ["racs", "ranger21"]),
    "examples": (
        "gradients of examples are clipped before they are added, and noise is made beside them",
        ["dpsgd"],
    ),
    "second derivatives": (
        "products with a matrix of second derivatives, or random numbers for them, are held",
        ["newton_cg", "sophia"],
    ),
    "products": (
        "products or factors of matrices are held",
        [
            *("apollo", "contra_muon", "dion2", "ggt", "muown", "polar_grad", "soft_muon"),
            *("spectral_sphere", "spel"),
        ],
    ),
    "pairs": (
        "the pairs in memory are read, or held, for their inner products, and read for the step",
        ["lbfgs", "lbfgs_steps", "lbfgsb"],
    ),
    "decompositions": (
        "decompositions take long to compile, or go over what they change several times",
        ["distributed_shampoo", "galore", "kl_shampoo", "psgd_kron", "soap", "splus"],
    ),
    "branches": (
        "the step is in a branch or a loop, from which the update comes by way of the memory",
        ["MultiSteps(adamw, 4)"],
    ),
    "collectives": (
        "what is sent passes through the memory, once an axis; what comes is copied to its place",
        [*SHARDED],
    ),
}


def reason(name: str) -> str:
    """Return why the step of a row moves or holds more, in one of few words."""
    return next((why for why, (_, names) in REASONS.items() if name in names), NOT_UNDERSTOOD)
