"""One call after another that Optax and gradxform both understand, in the order of Optax's modules.

A row names a function and, for each of its arguments, the values to try: the first one together
with the first ones of all others, then every other by itself. Wrappers are given as functions of
the library.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import optax.transforms

import gradxform as gx


class _Optax:
    """All of Optax's names in one place, as all of ours are."""

    def __getattr__(self, name: str) -> Any:
        for module in (optax, optax.contrib, optax.transforms):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


OPTAX = _Optax()


class Call(NamedTuple):
    """One call of a function that both libraries have.

    Attributes:
      name: the function's.
      said: its arguments, as the name of a test says them.
      made: a function of a library that returns the transform.
      arrays: what the parameters must be; see `PARAMS`.
      extra: what `update` gets besides.
      reason: why the state is another than Optax's; None where it is the same.
      usual: whether it stands for others, where a test takes its time.
    """

    name: str
    said: str
    made: Callable[[Any], Any]
    arrays: str = "all"
    extra: Mapping[str, Any] = {}
    reason: str | None = None
    usual: bool = True

    def ours(self) -> Any:
        """Return our transform."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.made(gx)

    def theirs(self) -> Any:
        """Return Optax's."""
        with warnings.catch_warnings(), as_optax_wants():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.made(OPTAX)

    def __str__(self) -> str:
        return f"{self.name}({self.said})"


class as_optax_wants:
    """Where Optax runs: it is not written for strict promotion."""

    def __enter__(self):
        self.both = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
        for each in self.both:
            each.__enter__()

    def __exit__(self, *error: Any):
        for each in self.both:
            each.__exit__(*error)


# -------------------------------------------------------------------------------------- parameters

SHAPES = {
    "all": {"dense": {"bias": (3,), "kernel": (4, 3)}, "scale": ()},
    "no scalar": {"dense": {"bias": (3,), "kernel": (4, 3)}, "scale": (2,)},
    "three axes": {"dense": {"bias": (3,), "kernel": (4, 3)}, "cube": (2, 3, 4), "scale": (2,)},
    "matrix": (4, 3),
    "examples": {"dense": {"bias": (3,), "kernel": (4, 3)}, "scale": ()},
    "pair": {"dense": {"bias": (3,), "kernel": (4, 3)}, "scale": ()},
}
EXAMPLES = 3  # gradients of one example each, where they have an axis of examples


def drawn(arrays: str, seed: int, *lead: int) -> Any:
    """Return arrays of those shapes, with axes before them."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32),
        SHAPES[arrays],
        is_leaf=lambda x: isinstance(x, tuple),
    )


def params_of(call: Call, library: Any = gx) -> Any:
    """Return the parameters of a call."""
    params = drawn(call.arrays, 0)
    return library.LookaheadParams.init_synced(params) if call.arrays == "pair" else params


def gradients_of(call: Call, step: int) -> Any:
    """Return the gradients of a step: a drift, which lasts, and noise."""
    lead = (EXAMPLES,) if call.arrays == "examples" else ()
    drift, noise = drawn(call.arrays, 1, *lead), drawn(call.arrays, 2 + step, *lead)
    return jax.tree.map(lambda a, b: 0.5 * a + 0.5 * b, drift, noise)


def curved(params: Any) -> Any:
    """Return a loss with curvature in every direction."""
    return sum(jnp.sum(jnp.square(p) + jnp.cos(p)) for p in jax.tree.leaves(params))


VALUE = {"value": jnp.asarray(3.0)}
SEARCH = VALUE | {"grad": drawn("all", 1), "value_fn": curved}
OBJECTIVE = {"obj_fn": curved}


# ------------------------------------------------------------------------- the values of arguments


class of(NamedTuple):
    """A value that each library makes itself."""

    library: Callable[[Any], Any]
    said: str


def arrays(x: float) -> list[Any]:
    """Return a number, and the number as an array."""
    return [x, jnp.asarray(x, jnp.float32)]


def numbers(x: float) -> list[Any]:
    """Return what stands for a number, also for none at all."""
    return [*arrays(x), 0.0]


def all_numbers(x: float) -> list[Any]:
    """Return a number in all forms in which NumPy and JAX have it."""
    return [*numbers(x), np.float32(x), np.asarray(x, np.float32), 1, 0]


def falling(n: Any) -> Any:
    """Return a rate that falls."""
    return 0.1 / (1.0 + jnp.asarray(n, jnp.float32))


SCHEDULES = [
    falling,
    of(lambda lib: lib.constant_schedule(0.1), "constant_schedule(0.1)"),
    of(lambda lib: lib.constant_schedule(0.0), "constant_schedule(0.0)"),
]
RATES = [*all_numbers(0.1), *SCHEDULES]
DECAYS = [*numbers(0.01), *SCHEDULES]
BOOLS = [False, True]
DTYPES = [None, "bfloat16", jnp.float32]


def matrices(params: Any) -> Any:
    """A mask by a function."""
    return jax.tree.map(lambda p: jnp.ndim(p) >= 2, params)


MASKS = [
    None,
    {"dense": {"bias": False, "kernel": True}, "scale": False},
    {"dense": True, "scale": False},
    {"dense": False, "scale": True},
    matrices,
    True,
    False,
]


def _said(x: Any) -> str:
    if isinstance(x, of):
        return x.said
    if isinstance(x, jax.Array | np.ndarray):
        return f"{'jnp' if isinstance(x, jax.Array) else 'np'}.asarray({float(x):g})"
    if isinstance(x, np.generic):
        return f"np.{x.dtype}({float(x):g})"
    return getattr(x, "__name__", None) or repr(x)


def _made(name: str, arguments: dict[str, Any]) -> Callable[[Any], Any]:
    def made(lib: Any) -> Any:
        given = {k: x.library(lib) if isinstance(x, of) else x for k, x in arguments.items()}
        return getattr(lib, name)(**given)

    return made


def row(
    name: str,
    *together: dict[str, Any],
    arrays: str = "all",
    extra: Mapping[str, Any] | None = None,
    reason: str | None = None,
    unlike: Callable[[dict[str, Any]], bool] = lambda arguments: True,
    **choices: list[Any],
) -> Iterator[Call]:
    """Yield the calls of a function: each choice by itself, and some choices together.

    Args:
      name: the function's name.
      *together: arguments to give together, in the place of the first choices.
      arrays: what the parameters must be; see `SHAPES`.
      extra: what `update` gets besides.
      reason: why the state is another than Optax's.
      unlike: whether it is, with these arguments.
      **choices: for each argument the values to try; the first is the usual one.
    """
    first = {k: xs[0] for k, xs in choices.items()}
    tried = [first]
    tried += [first | {k: x} for k, xs in choices.items() for x in xs[1:]]
    tried += [first | more for more in together]
    usual = [0, *range(len(tried) - len(together), len(tried))]
    for i, arguments in enumerate(tried):
        said = ", ".join(
            f"{k}={_said(x)}" for k, x in arguments.items() if x is not first.get(k) or x is falling
        )
        why = reason if reason and unlike(arguments) else None
        made = _made(name, arguments)
        yield Call(name, said, made, arrays, extra or {}, why, i in usual)


def wrapped(
    name: str,
    said: str,
    made: Callable[[Any], Any],
    arrays: str = "all",
    extra: Mapping[str, Any] | None = None,
    reason: str | None = None,
    usual: bool = True,
) -> Call:
    """Return the call of a function whose arguments are transforms."""
    return Call(name, said, made, arrays, extra or {}, reason, usual)


# ---------------------------------------------------------------------------------------- the rows

MOMENTUM = [None, *numbers(0.9)]
LABELS = {"dense": {"bias": "b", "kernel": "a"}, "scale": "b"}
LISTS = "lists of vectors there, one vector here"
MISTAKEN = "Optax takes every callable for a schedule, dtypes too"
INTEGER = "an integer in the place of a real number is a real number here"
SEED = "Optax takes a seed for a number that may be scheduled"
ONES = "sums of shape (1,) there, scalars here"
EMPTY = "a projector of shape (0, 0), which Orbax refuses, is a scalar here"
SLOW = "the slow weights of plain parameters, which Optax does not take, lie in the state"


def labels_of(params: Any) -> Any:
    """Labels by a function."""
    return jax.tree.map(lambda p: "a" if jnp.ndim(p) >= 2 else "b", params)


def halved(updates: Any, params: Any) -> Any:
    """Return half of the updates."""
    return jax.tree.map(lambda u: 0.5 * u, updates)


def half(u: Any, p: Any) -> Any:
    """Return half of an update."""
    return 0.5 * u


def _moments(name: str, *decay: dict[str, list[Any]], **more: list[Any]) -> Iterator[Call]:
    choices = {"learning_rate": RATES, "b1": numbers(0.9)} | more
    for others in decay:
        choices |= others
    return row(name, **choices)


def searches() -> Iterator[Call]:
    """Yield the calls of line searches, whose numbers test_line_search.py compares."""
    calls: dict[str, list[Callable[[Any], Any]]] = {
        "lbfgs": [
            lambda lib: lib.lbfgs(),
            lambda lib: lib.lbfgs(0.1, 3, False),
            lambda lib: lib.lbfgs(falling, linesearch=None),
        ],
        "scale_by_lbfgs": [lambda lib: lib.scale_by_lbfgs(), lambda lib: lib.scale_by_lbfgs(2)],
        "scale_by_backtracking_linesearch": [
            lambda lib: lib.scale_by_backtracking_linesearch(5),
            lambda lib: lib.scale_by_backtracking_linesearch(5, store_grad=True),
        ],
        "scale_by_zoom_linesearch": [lambda lib: lib.scale_by_zoom_linesearch(5)],
    }
    for name, made in calls.items():
        for i, make in enumerate(made):
            yield wrapped(name, str(i), make, extra=SEARCH, usual=False)


DECAY = {"weight_decay": DECAYS, "mask": MASKS}


def optimizers() -> Iterator[Call]:
    """Yield the calls of the optimizers of `optax`."""
    yield from _moments("adabelief", nesterov=BOOLS)
    yield from row("adadelta", learning_rate=RATES, weight_decay=DECAYS, weight_decay_mask=MASKS)
    yield from row(
        "adafactor",
        {"min_dim_size_to_factor": 2, "learning_rate": falling, "momentum": 0.9},
        {"weight_decay_rate": 0.1, "weight_decay_mask": True},
        {"weight_decay_rate": falling, "weight_decay_mask": False},
        {"multiply_by_parameter_scale": False, "clipping_threshold": None, "momentum": 0.9},
        {"momentum": 0.9, "dtype_momentum": jnp.bfloat16},
        arrays="three axes",
        learning_rate=[None, *RATES],
        min_dim_size_to_factor=[128, 0, 2, 3, 4],
        decay_rate=numbers(0.8),
        decay_offset=[0, 2],
        multiply_by_parameter_scale=[True, False],
        clipping_threshold=[1.0, None, *arrays(2.0)[1:]],
        momentum=MOMENTUM,
        weight_decay_rate=[None, *DECAYS],
        factored=[True, False],
    )
    yield from row("adagrad", learning_rate=RATES, initial_accumulator_value=numbers(0.1))
    yield from _moments("adam", eps_root=numbers(0.0), mu_dtype=DTYPES, nesterov=BOOLS)
    yield from _moments("adamw", DECAY, mu_dtype=DTYPES, nesterov=BOOLS)
    yield from row(
        "adamw",
        {"weight_decay": falling, "mask": matrices, "learning_rate": falling},
        {"weight_decay": 0.0, "mask": True},
        {"weight_decay": 0.0, "mask": False, "learning_rate": 0.0},
        learning_rate=[0.1],
    )
    yield from row("adan", learning_rate=RATES, b1=numbers(0.98), **DECAY)
    yield from row(
        "lion", learning_rate=RATES, b1=numbers(0.9), b2=numbers(0.99), mu_dtype=DTYPES, **DECAY
    )
    yield from _moments("amsgrad", mu_dtype=DTYPES, bias_correction_mu=[True, False])
    yield from row("amsgrad", learning_rate=[0.1], bias_correction_nu=[True, False])
    yield from row("fromage", learning_rate=RATES, min_norm=numbers(1e-6))
    yield from row(
        "lars",
        {"weight_decay": falling, "weight_decay_mask": matrices, "trust_ratio_mask": matrices},
        learning_rate=RATES,
        weight_decay=[0.0, *DECAYS],
        weight_decay_mask=[True, False, *MASKS[1:5], None],
        trust_coefficient=arrays(0.1),
        trust_ratio_mask=[True, False, *MASKS[1:5]],
        momentum=numbers(0.9),
        nesterov=BOOLS,
    )
    yield from _moments("lamb", DECAY)
    yield from row(
        "noisy_sgd", learning_rate=RATES, eta=numbers(0.1), gamma=numbers(0.55), key=KEYS
    )
    yield from row("sign_sgd", learning_rate=RATES)
    yield from row("signum", learning_rate=RATES, beta=numbers(0.9), accumulator_dtype=DTYPES)
    yield from row(
        "novograd",
        learning_rate=RATES,
        b1=numbers(0.9),
        b2=numbers(0.25),
        weight_decay=numbers(0.1),
    )
    yield from row(
        "optimistic_gradient_descent",
        learning_rate=RATES,
        alpha=numbers(1.0),
        beta=numbers(1.0),
    )
    yield from row("optimistic_adam", learning_rate=numbers(0.1), optimism=[None, *numbers(0.3)])
    yield from row(
        "optimistic_adam_v2",
        learning_rate=RATES,
        alpha=numbers(1.0),
        beta=numbers(1.0),
        mu_dtype=DTYPES,
        nesterov=BOOLS,
    )
    yield from _moments("radam", threshold=arrays(5.0), nesterov=BOOLS)
    yield from row(
        "rmsprop",
        {"centered": True, "bias_correction": True},
        {"centered": True, "momentum": 0.9, "nesterov": True},
        {"bias_correction": True, "momentum": 0.0},
        learning_rate=RATES,
        decay=numbers(0.9),
        initial_scale=numbers(0.0),
        eps_in_sqrt=BOOLS,
        centered=BOOLS,
        momentum=MOMENTUM,
        bias_correction=BOOLS,
    )
    yield from row(
        "sgd",
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.0, "nesterov": True},
        {"momentum": 0.9, "accumulator_dtype": "bfloat16"},
        {"momentum": 0.9, "learning_rate": falling},
        learning_rate=RATES,
        momentum=MOMENTUM,
    )
    yield from row(
        "sm3",
        arrays="no scalar",
        reason=LISTS,
        learning_rate=numbers(0.1),
        momentum=numbers(0.9),
    )
    yield from _moments("yogi")
    yield from _moments("adamax")
    yield from _moments("adamaxw", DECAY)
    yield from row("rprop", learning_rate=arrays(0.1), eta_minus=arrays(0.5))
    yield from row(
        "polyak_sgd",
        extra=VALUE,
        max_learning_rate=arrays(0.1),
        scaling=RATES,
        f_min=numbers(0.0),
        eps=numbers(0.0),
        variant=["sps", "sps+"],
    )
    yield from _moments("nadam", mu_dtype=DTYPES)
    yield from _moments("nadamw", DECAY, mu_dtype=DTYPES)


KEYS = [
    1,
    of(lambda lib: jax.random.key(1), "key(1)"),
]


def transforms() -> Iterator[Call]:
    """Yield the calls of the transforms of `optax` and `optax.transforms`."""
    yield from row("identity")
    yield from row("set_to_zero")
    yield wrapped("stateless", "halved", lambda lib: lib.stateless(halved))
    yield wrapped("stateless_with_tree_map", "half", lambda lib: lib.stateless_with_tree_map(half))
    yield wrapped(
        "with_extra_args_support",
        "adam",
        lambda lib: lib.with_extra_args_support(lib.adam(0.1)),
    )
    yield from row("scale_by_rss", initial_accumulator_value=numbers(0.1))
    for name in ("scale_by_rms", "scale_by_stddev"):
        yield from row(
            name,
            decay=numbers(0.9),
            initial_scale=numbers(0.0),
            eps_in_sqrt=BOOLS,
            bias_correction=BOOLS,
        )
    yield from row(
        "scale_by_adam", b1=numbers(0.9), mu_dtype=DTYPES, eps_root=[0.0], nesterov=BOOLS
    )
    yield from row(
        "scale_by_amsgrad",
        b1=numbers(0.9),
        mu_dtype=DTYPES,
        bias_correction_mu=BOOLS,
        bias_correction_nu=BOOLS,
    )
    yield from row("scale_by_adamax", b1=numbers(0.9))
    yield from row(
        "scale_by_lion", b1=numbers(0.9), mu_dtype=DTYPES, mode=["hard", "smooth", "refined"]
    )
    yield from row("scale", step_size=numbers(-0.1))
    yield from row("scale_by_param_block_norm", min_scale=numbers(1e-3))
    yield from row("scale_by_param_block_rms", min_scale=numbers(1e-3))
    yield from row("scale_by_adadelta", rho=numbers(0.9))
    yield from row("scale_by_adan", b1=numbers(0.98))
    yield from row("scale_by_belief", b1=numbers(0.9), nesterov=BOOLS)
    yield from row("scale_by_yogi", b1=numbers(0.9), initial_accumulator_value=numbers(1e-6))
    yield from row("scale_by_radam", b1=numbers(0.9), nesterov=BOOLS)
    yield from row("scale_by_rprop", learning_rate=arrays(0.1))
    yield from row("scale_by_sign")
    yield from row("scale_by_learning_rate", learning_rate=RATES, flip_sign=[True, False])
    yield from row("scale_by_schedule", step_size_fn=SCHEDULES)
    yield from row("scale_by_trust_ratio", min_norm=numbers(0.0), trust_coefficient=numbers(1.0))
    yield from row("apply_every", k=[1, 2])
    yield from row("centralize")
    yield from row("scale_by_sm3", arrays="no scalar", reason=LISTS, b1=numbers(0.9), b2=[1.0, 0.9])
    yield from row("scale_by_novograd", b1=numbers(0.9), weight_decay=numbers(0.0), mu_dtype=DTYPES)
    yield from row(
        "scale_by_optimistic_gradient",
        alpha=numbers(1.0),
        beta=numbers(1.0),
    )
    yield from row(
        "scale_by_distance_over_gradients",
        arrays="no scalar",
        reason=ONES,
        reps_rel=arrays(1e-6),
        global_scale=numbers(1.0),
    )
    yield from row(
        "scale_by_polyak", extra=VALUE, max_learning_rate=arrays(0.1), variant=["sps", "sps+"]
    )
    yield from row("normalize_by_update_norm", scale_factor=numbers(1.0))
    yield from row(
        "scale_by_factored_rms",
        arrays="three axes",
        factored=[True, False],
        decay_rate=numbers(0.8),
        min_dim_size_to_factor=[128, 0, 2, 3, 4],
    )
    # optax.transforms
    yield from row("trace", decay=numbers(0.9), nesterov=BOOLS, accumulator_dtype=DTYPES)
    yield from row("ema", decay=numbers(0.9), debias=[True, False], accumulator_dtype=DTYPES)
    yield from row("add_decayed_weights", weight_decay=[*DECAYS, 0, 1], mask=MASKS)
    yield from row(
        "add_decayed_weights",
        {"weight_decay": falling, "mask": matrices},
        {"weight_decay": falling, "mask": True},
        {"weight_decay": 0.0, "mask": False},
    )
    yield from row("add_noise", eta=numbers(0.1), gamma=numbers(0.55), key=KEYS)
    yield from row("clip", max_delta=arrays(0.5))
    yield from row("clip_by_block_rms", threshold=arrays(0.5))
    yield from row("clip_by_global_norm", max_norm=arrays(0.5))
    yield from row("adaptive_grad_clip", clipping=arrays(0.1))
    yield from row("keep_params_nonnegative")
    yield from row("zero_nans")


def wrappers() -> Iterator[Call]:
    """Yield the calls of what takes transforms."""
    yield wrapped("chain", "one", lambda lib: lib.chain(lib.adam(0.1)))
    yield wrapped(
        "chain",
        "nested",
        lambda lib: lib.chain(
            lib.clip_by_global_norm(0.5), lib.chain(lib.trace(0.9), lib.adamw(falling))
        ),
    )
    yield wrapped(
        "named_chain",
        "two",
        lambda lib: lib.named_chain(("clip", lib.clip(1.0)), ("adam", lib.adam(0.1))),
    )
    for labels in (LABELS, labels_of, {"dense": "a", "scale": "b"}):
        for name in ("partition", "multi_transform"):
            yield wrapped(
                name,
                f"{_said(labels)}",
                lambda lib, name=name, labels=labels: getattr(lib, name)(
                    {"a": lib.adamw(falling), "b": lib.sgd(0.1, 0.9)}, labels
                ),
            )
    yield wrapped(
        "partition",
        "a label without parameters",
        lambda lib: lib.partition(
            {"a": lib.adam(0.1), "b": lib.sgd(0.1), "c": lib.adam(falling)}, labels_of
        ),
    )
    yield wrapped(
        "partition",
        "numbers as labels",
        lambda lib: lib.partition(
            {0: lib.adam(0.1), 1: lib.set_to_zero()},
            {"dense": {"bias": 1, "kernel": 0}, "scale": 1},
        ),
    )
    for mask in MASKS[1:]:
        yield wrapped(
            "masked",
            f"adamw, {_said(mask)}",
            lambda lib, mask=mask: lib.masked(lib.adamw(0.1), mask),
        )
    yield wrapped(
        "masked",
        "in masked",
        lambda lib: lib.masked(lib.adamw(falling, mask=matrices), MASKS[2]),
    )
    yield wrapped("freeze", "mask", lambda lib: lib.freeze(MASKS[1]))
    yield wrapped(
        "selective_transform",
        "mask",
        lambda lib: lib.selective_transform(lib.adam(0.1), freeze_mask=MASKS[1]),
    )
    inner = {
        "adam": lambda lib: lib.adam(0.1),
        "sgd": lambda lib: lib.sgd(0.1),
        "adamw, falling": lambda lib: lib.adamw(falling, mask=matrices),
    }
    for said, make in inner.items():
        yield wrapped(
            "apply_if_finite", said, lambda lib, make=make: lib.apply_if_finite(make(lib), 3)
        )
        for name in ("conditionally_mask", "conditionally_transform"):
            yield wrapped(
                name, said, lambda lib, make=make, name=name: getattr(lib, name)(make(lib), is_even)
            )
        for k in (1, 2):
            yield wrapped(
                "MultiSteps",
                f"{said}, {k}",
                lambda lib, make=make, k=k: lib.MultiSteps(make(lib), k),
            )
    yield wrapped("MultiSteps", "schedule", lambda lib: lib.MultiSteps(lib.adam(0.1), ever_more))
    yield wrapped(
        "MultiSteps", "sum", lambda lib: lib.MultiSteps(lib.adam(0.1), 2, use_grad_mean=False)
    )
    yield wrapped(
        "MultiSteps",
        "skip_not_finite",
        lambda lib: lib.MultiSteps(lib.adam(0.1), 2, should_skip_update_fn=lib.skip_not_finite),
    )
    yield wrapped(
        "MultiSteps",
        "skip_large_updates",
        lambda lib: lib.MultiSteps(lib.adam(0.1), 2, should_skip_update_fn=skip_large(lib)),
    )
    yield wrapped(
        "MultiSteps",
        "bfloat16",
        lambda lib: lib.MultiSteps(lib.adam(0.1), 2, accumulator_dtype=jnp.bfloat16),
    )
    yield wrapped("snapshot", "norm", lambda lib: lib.snapshot("norm", optax.tree.norm))
    yield wrapped("measure_with_ema", "the whole", lambda lib: lib.measure_with_ema(whole, 0.9))
    for reset in BOOLS:
        for said, make in inner.items():
            yield wrapped(
                "lookahead",
                f"pair, {said}, reset_state={reset}",
                lambda lib, make=make, reset=reset: lib.lookahead(make(lib), 2, 0.5, reset),
                arrays="pair",
            )
    yield from _modified()
    yield from _injected()


def whole(updates: Any) -> Any:
    """Return the updates as a measurement."""
    return updates


def is_even(n: Any) -> Any:
    """Return whether a step is the first, third, ...: a condition."""
    return n % 2 == 0


def _modified() -> Iterator[Call]:
    """Yield what changes an optimizer's steps or its view of the parameters."""
    for said, make in {
        "adam": lambda lib: lib.adam(0.1),
        "sgd, falling": lambda lib: lib.sgd(falling, momentum=0.9),
    }.items():
        yield wrapped("flatten", said, lambda lib, make=make: lib.flatten(make(lib)))
        yield wrapped(
            "mechanize", said, lambda lib, make=make: lib.mechanize(make(lib), s_init=0.1)
        )
        yield wrapped(
            "split_real_and_imaginary",
            said,
            lambda lib, make=make: lib.split_real_and_imaginary(make(lib)),
        )
        for options in ({}, {"sync_period": 3, "reset_state": False}):
            yield wrapped(
                "sam",
                f"{said}, {_said(options)}",
                lambda lib, make=make, options=options: lib.sam(
                    make(lib), lib.chain(lib.normalize(), lib.sgd(0.1)), **options
                ),
            )
    yield wrapped(
        "mechanize", "num_betas", lambda lib: lib.mechanize(lib.sgd(1.0), s_init=0.1, num_betas=2)
    )
    yield wrapped(
        "sam",
        "opaque",
        lambda lib: lib.sam(lib.sgd(0.1), lib.adam(0.1), opaque_mode=True),
        extra={"grad_fn": lambda params, i: jax.grad(curved)(params)},
    )


def ever_more(n: Any) -> Any:
    """Return how many gradients make a step: a schedule."""
    return jnp.where(jnp.asarray(n) < 1, 1, 2)


def skip_large(lib: Any) -> Any:
    """Return the test that skips large updates."""
    return functools.partial(lib.skip_large_updates, max_squared_norm=100.0)


def _injected() -> Iterator[Call]:
    """Yield hyperparameters in the state: numbers, schedules and what is neither."""
    sizes = ("min_dim_size_to_factor", "decay_offset", "dtype_momentum", "factored")
    given: dict[str, dict[str, Any]] = {
        "sgd": {"learning_rate": 0.1},
        "adam": {"learning_rate": 0.1},
        "adamw": {"learning_rate": 0.1, "weight_decay": 0.01},
        "lion": {"learning_rate": 0.1},
        "rmsprop": {"learning_rate": 0.1, "momentum": 0.9},
        "lamb": {"learning_rate": 0.1},
        "adagrad": {"learning_rate": 0.1},
        "trace": {"decay": 0.9},
        "scale": {"step_size": -0.1},
        "clip_by_global_norm": {"max_norm": 0.5},
        "add_decayed_weights": {"weight_decay": 0.1},
        "ema": {"decay": 0.9},
    }
    for name, arguments in given.items():
        first, value = next(iter(arguments.items()))
        for x in (value, np.asarray(value, np.float32), falling):
            yield wrapped(
                "inject_hyperparams",
                f"{name}, {first}={_said(x)}",
                lambda lib, name=name, a=arguments | {first: x}: lib.inject_hyperparams(
                    getattr(lib, name)
                )(**a),
                usual=x is falling,
            )
    yield wrapped(
        "inject_hyperparams",
        "sgd, learning_rate=1",
        lambda lib: lib.inject_hyperparams(lib.sgd)(1),
        reason=INTEGER,
    )
    yield wrapped(
        "inject_hyperparams",
        "constant_schedule",
        lambda lib: lib.inject_hyperparams(lib.adamw)(
            lib.constant_schedule(0.1), weight_decay=lib.constant_schedule(0.0), b1=falling
        ),
    )
    yield wrapped(
        "inject_hyperparams",
        "static_args",
        lambda lib: lib.inject_hyperparams(lib.adamw, static_args=("b1", "eps", "mask"))(
            0.1, mask=matrices
        ),
    )
    yield wrapped(
        "inject_hyperparams",
        "a tree as a mask",
        lambda lib: lib.inject_hyperparams(lib.adamw)(0.1, mask=MASKS[1]),
    )
    yield wrapped(
        "inject_stateful_hyperparams",
        "a wrapped schedule",
        lambda lib: lib.inject_stateful_hyperparams(lib.adam)(lib.WrappedSchedule(falling)),
    )
    yield wrapped(
        "inject_hyperparams",
        "hyperparam_dtype",
        lambda lib: lib.inject_hyperparams(lib.adam, hyperparam_dtype=jnp.float32)(0.1),
    )
    yield wrapped(
        "inject_hyperparams",
        "a schedule, static",
        lambda lib: lib.inject_hyperparams(lib.sgd, static_args="learning_rate")(falling),
    )
    yield wrapped(
        "inject_hyperparams",
        "a function as a mask",
        lambda lib: lib.inject_hyperparams(lib.adamw, static_args="mask")(0.1, mask=matrices),
    )
    yield wrapped(
        "inject_hyperparams",
        "a dtype, taken for a schedule",
        lambda lib: lib.inject_hyperparams(lib.adafactor, static_args=sizes[:2])(0.1),
        reason=MISTAKEN,
    )
    yield wrapped(
        "inject_hyperparams",
        "a seed",
        lambda lib: lib.inject_hyperparams(lib.noisy_sgd)(0.1, key=1),
        reason=SEED,
    )
    yield wrapped(
        "inject_hyperparams",
        "adafactor",
        lambda lib: lib.inject_hyperparams(lib.adafactor, static_args=sizes)(0.1),
    )
    yield wrapped(
        "inject_hyperparams",
        "inside",
        lambda lib: lib.chain(
            lib.clip(1.0), lib.MultiSteps(lib.inject_hyperparams(lib.sgd)(falling, momentum=0.9), 2)
        ),
    )


def contributed() -> Iterator[Call]:
    """Yield the calls of what is in `optax.contrib`."""
    yield from row("scale_by_acprop", b1=numbers(0.9))
    yield from _moments("acprop", DECAY)
    yield from row("scale_by_ademamix", b1=numbers(0.9), b3=[0.9999, falling], alpha=[5.0, falling])
    yield from _moments("ademamix", DECAY, b3=[0.9999, falling], alpha=[5.0, 0.0, falling])
    yield from row("scale_by_simplified_ademamix", b1=numbers(0.99), alpha=[0.0, 5.0, falling])
    yield from _moments("simplified_ademamix", DECAY, alpha=[0.0, 5.0, falling])
    yield from row(
        "scale_by_adopt", b1=numbers(0.9), mu_dtype=DTYPES, nesterov=BOOLS, use_clipping=BOOLS
    )
    yield from _moments("adopt", mu_dtype=DTYPES, nesterov=BOOLS, use_clipping=BOOLS)
    yield from row("scale_by_cocob", alpha=arrays(100.0))
    yield from row("cocob", learning_rate=RATES, **DECAY)
    yield from row(
        "dadapt_adamw", learning_rate=RATES, estim_lr0=arrays(1e-6), weight_decay=numbers(0.1)
    )
    yield from row(
        "dog",
        {"weight_decay": 0.1, "mask": matrices},
        {"weight_decay": falling, "mask": matrices},
        {"weight_decay": 0.0, "mask": True},
        learning_rate=RATES,
        init_step=[("heuristic", 1e-6), ("distance", 0.1), ("learning_rate", 0.1)],
        weight_decay=[None, *DECAYS],
    )
    yield from row(
        "dowg",
        {"weight_decay": 0.1, "mask": matrices},
        {"weight_decay": falling, "mask": matrices},
        {"weight_decay": 0.0, "mask": True},
        learning_rate=RATES,
        init_estim_sq_dist=[None, 0.1],
        weight_decay=[None, *DECAYS],
    )
    gaps = {"rank": 2, "update_proj_gap": 3}
    yield from row(
        "scale_by_galore",
        {"base_optimizer": of(lambda lib: lib.scale_by_rms(), "scale_by_rms()"), **gaps},
        {"base_optimizer": of(lambda lib: lib.sgd(0.1, 0.9), "sgd(0.1, 0.9)"), **gaps},
        {"base_optimizer": of(lambda lib: lib.sgd(0.1), "sgd(0.1)"), **gaps},
        {"rank": 2, "weight_dimension_numbers": GALORE_NUMBERS},
        reason=EMPTY,
        rank=[2, 128],
        update_proj_gap=[3],
    )
    yield from row("scale_by_galore", arrays="matrix", rank=[2, 128])
    yield from row(
        "galore",
        {"base_optimizer": of(lambda lib: lib.scale_by_rms(), "scale_by_rms()")},
        {"weight_dimension_numbers": GALORE_NUMBERS},
        reason=EMPTY,
        learning_rate=RATES,
        rank=[2, 128],
        **DECAY,
    )
    yield from row("galore", arrays="matrix", learning_rate=RATES, rank=[2, 128])
    yield from row(
        "schedule_free_sgd",
        {"warmup_steps": 2, "weight_decay": 0.1},
        learning_rate=RATES,
        b1=[0.9, 0.5],
        weight_lr_power=[2.0, 0.0],
    )
    yield from row(
        "schedule_free_adamw", {"warmup_steps": 2}, learning_rate=RATES, weight_decay=[0.0, 0.1]
    )
    yield wrapped("schedule_free", "adam", lambda lib: lib.schedule_free(lib.adam(0.1), 0.1, 0.8))
    yield from row("scale_by_madgrad", learning_rate=RATES, momentum=numbers(0.9))
    yield from row("madgrad", learning_rate=RATES, weight_decay=DECAYS)
    yield from row("normalize")
    yield from row(
        "reduce_on_plateau",
        {"factor": 0.5, "patience": 2, "cooldown": 1, "accumulation_size": 3},
        extra=VALUE,
    )
    yield from row(
        "momo",
        extra=VALUE,
        learning_rate=RATES,
        beta=numbers(0.9),
        weight_decay=numbers(0.0),
        adapt_lower_bound=BOOLS,
    )
    yield from row(
        "momo_adam",
        extra=VALUE,
        learning_rate=RATES,
        b1=numbers(0.9),
        weight_decay=numbers(0.0),
        adapt_lower_bound=BOOLS,
    )
    yield from row(
        "scale_by_muon",
        arrays="matrix",
        ns_coeffs=[(3.4445, -4.775, 2.0315), ((3.4, -4.7, 2.0),) * 5],
        mu_dtype=DTYPES,
        nesterov=[True, False],
        adaptive=BOOLS,
        preconditioning=["frobenius", "spectral", "aol", "schatten"],
    )
    yield from row(
        "scale_by_muon",
        arrays="matrix",
        weight_dimension_numbers=[of(lambda lib: lib.MuonDimensionNumbers(1, 0), "numbers")],
    )
    yield from row(
        "muon",
        {"weight_decay": 0.0, "weight_decay_mask": matrices},
        {"adam_weight_decay": falling},
        {"adam_learning_rate": falling},
        {"adam_learning_rate": 0.0},
        {"muon_weight_dimension_numbers": MUON_NUMBERS},
        {"consistent_rms": 0.2},
        learning_rate=RATES,
        ns_coeffs=[(3.4445, -4.775, 2.0315), ((3.4, -4.7, 2.0),) * 5],
        weight_decay=DECAYS,
        weight_decay_mask=MASKS,
        mu_dtype=DTYPES,
        nesterov=[True, False],
        adaptive=BOOLS,
    )
    yield from row(
        "differentially_private_aggregate",
        arrays="examples",
        l2_norm_clip=arrays(1.0),
        noise_multiplier=numbers(0.1),
        key=KEYS,
    )
    yield from row(
        "dpsgd",
        arrays="examples",
        learning_rate=RATES,
        l2_norm_clip=arrays(1.0),
        noise_multiplier=numbers(0.1),
        seed=[1],
        momentum=MOMENTUM,
    )
    yield from row(
        "prodigy",
        learning_rate=RATES,
        beta3=[None, 0.9],
        weight_decay=numbers(0.1),
        safeguard_warmup=BOOLS,
    )
    yield from row("hutchinson_estimator_diag_hessian", extra=OBJECTIVE)
    yield from row(
        "sophia",
        {"weight_decay": falling, "weight_decay_mask": matrices},
        extra=OBJECTIVE,
        learning_rate=RATES,
        weight_decay=DECAYS,
        weight_decay_mask=MASKS,
        clip_threshold=[1.0, None],
        update_interval=[2],
        mu_dtype=DTYPES,
    )


GALORE_NUMBERS = of(
    lambda lib: {
        "dense": {"bias": None, "kernel": lib.GaLoreDimensionNumbers(1, 0)},
        "scale": None,
    },
    "numbers",
)
MUON_NUMBERS = of(
    lambda lib: {"dense": {"bias": None, "kernel": lib.MuonDimensionNumbers(1, 0)}, "scale": None},
    "numbers",
)

CALLS = [*optimizers(), *searches(), *transforms(), *wrappers(), *contributed()]
