"""Configs: every value of the library is plain data, and plain data can do nothing but describe."""

import builtins
import copy
import importlib
import json
import math
import os
import pickle
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import gradxform as gx
from gradxform.compat.keras.keras3 import step_by_schedule_free_adam
from gradxform.experimental import averages, moments, process
from gradxform.values import call_name
from gradxform.values.registry import REGISTRY
from tests.catalogue import CASES
from tests.catalogue.distributed import alone, first_cut
from tests.catalogue.spikes import length_as_loss
from tests.public import names_of

# ---------------------------------------------------------------------- what others may register


@gx.transform(name="their:shout")
class shout(gx.ArrayRule):
    """A transform of another package."""

    loudness: float = 2.0

    def rule(self, g, p):
        return self.loudness * g


@gx.value(name="their:only_scalars")
class only_scalars(gx.Mask):
    def test(self, path, leaf):
        return jnp.ndim(leaf) == 0


@gx.value(name="their:sawtooth")
class sawtooth(gx.Schedule):
    period: int

    def __call__(self, count):
        return (count % self.period) / self.period


def quiet(learning_rate: gx.ScalarOrSchedule, loudness: float = 0.5) -> gx.chain:
    return gx.chain(shout(loudness), gx.scale_by_learning_rate(learning_rate))


def halved(count):
    return 0.5**count


gx.register("their:quiet", quiet)
gx.register("their:halved", halved)


@gx.transform
class unregistered(gx.ArrayRule):
    def rule(self, g, p):
        return g


@gx.value
class unregistered_mask(gx.Mask):
    def test(self, path, leaf):
        return True


THEIRS = names_of(gx) | {"shout": shout, "only_scalars": only_scalars, "sawtooth": sawtooth}
THEIRS |= {
    "halved": halved,
    "quiet": quiet,
    "alone": alone,
    "first_cut": first_cut,
    "length_as_loss": length_as_loss,
}
THEIRS |= names_of(gx.distributed)
THEIRS |= names_of(gx.projections)
THEIRS |= names_of(gx.curvature)
THEIRS |= vars(averages) | vars(moments) | vars(process)
THEIRS |= {"step_by_schedule_free_adam": step_by_schedule_free_adam}

# --------------------------------------------------------------------------------- round trips

ADAMW = gx.adamw(1e-3)
MATRICES, KERNELS = gx.ndim_at_least(2), gx.path_matches("kernel$")
VALUES = {
    "mask": (MATRICES & KERNELS) | ~gx.path_matches("^head/"),
    "labels": gx.label_by(("a", MATRICES), (3, KERNELS), ("rest", True)),
    "mask: prefix": gx.masked(ADAMW, {"encoder": True, "head": {"kernel": True, "bias": False}}),
    "mask: a key called name": gx.masked(ADAMW, {"name": True, "b": {"dict": False}}),
    "mask: int keys": gx.masked(ADAMW, {0: True, 1: {"w": False}}),
    "mask: tuple keys": gx.masked(ADAMW, {(0, "a"): True, (1, "b"): False}),
    "mask: sequences": gx.masked(ADAMW, (True, [False, None, {"a": (True,)}])),
    "mask: theirs": gx.masked(shout(3.0), only_scalars() | MATRICES),
    "chain: empty": gx.chain(),
    "chain in chain": gx.chain(gx.clip(1.0), gx.chain(ADAMW, gx.chain()), gx.zero_nans()),
    "infinite": gx.clip(math.inf),
    "minus zero": gx.scale(-0.0),
    "dtype": gx.trace(0.9, accumulator_dtype=jnp.bfloat16),
    "key": gx.add_noise(0.1, 0.5, np.uint32([1, 2])),
    "named": gx.named_chain(("clip", gx.clip(1.0)), ("name", ADAMW)),
    "partition": gx.partition({"a": ADAMW, "name": gx.sgd(0.1)}, {"x": "a", "y": ["name", "a"]}),
    "MultiSteps": gx.MultiSteps(ADAMW, 4, should_skip_update_fn=gx.skip_not_finite),
    "MultiSteps: scheduled": gx.MultiSteps(ADAMW, gx.piecewise_constant_schedule(2, {100: 2.0})),
    "lookahead": gx.lookahead(gx.apply_if_finite(ADAMW, 5), 6, 0.5, reset_state=True),
    "injected": gx.inject_hyperparams(gx.adamw)(1e-3, mask={"w": True}),
    "injected: static": gx.inject_hyperparams(gx.adamw, ("b1", "b2"), jnp.float32)(
        gx.cosine_decay_schedule(1e-3, 100), weight_decay=gx.linear_schedule(0.1, 0.0, 10)
    ),
    "injected: class": gx.inject_hyperparams(gx.clip)(1.0),
    "injector": gx.inject_hyperparams(gx.lion, "b1"),
    "schedule": gx.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100),
    "schedule: joined": gx.join_schedules((gx.constant_schedule(1e-3), halved, 0.5), (10, 20)),
    "schedule: pieces": gx.piecewise_interpolate_schedule("linear", 1.0, {10: 0.5, 30: 0.1}),
    "schedule: theirs": gx.sgd(sawtooth(10)),
    "function: theirs": gx.scale_by_schedule(halved),
    "recipe: theirs": quiet(0.1),
}


def registered(x: Any) -> bool:
    try:
        gx.to_config(x)
    except TypeError:
        return False
    return True


FROM_CATALOGUE = {name: case.tx for name, case in CASES.items() if registered(case.tx)}


def check_round_trips(tx):
    """Check everything that holds for each value that a config can describe."""
    config = gx.to_config(tx)
    assert config["version"] == gx.__version__
    assert gx.from_config(config) == tx
    text = gx.to_json(tx)
    assert json.loads(text, parse_constant=pytest.fail) == config  # no NaN or Infinity in it
    for again in (
        gx.from_json(text),
        gx.from_json(gx.to_json(tx, indent=None)),
        pickle.loads(pickle.dumps(tx)),
        copy.deepcopy(tx),
        copy.copy(tx),
        eval(repr(tx), dict(THEIRS)),
    ):
        assert again == tx and type(again) is type(tx) and hash(again) == hash(tx)
        assert repr(again) == repr(tx) and gx.to_json(again) == text


@pytest.mark.parametrize("name", [*VALUES, *FROM_CATALOGUE])
def test_every_value_round_trips_through_json(name):
    check_round_trips(VALUES.get(name, FROM_CATALOGUE.get(name)))


def test_most_of_the_catalogue_round_trips():
    functions = {name for name in CASES if name not in FROM_CATALOGUE}
    assert len(functions) < len(CASES) / 4, functions  # what holds lambdas, or Optax's


def test_a_config_holds_every_field():
    assert gx.to_config(gx.chain(gx.scale_by_adam(b1=0.8), gx.clip(math.inf))) == {
        "version": gx.__version__,
        "name": "chain",
        "transforms": [
            {
                "name": "scale_by_adam",
                "b1": 0.8,
                "b2": 0.999,
                "eps": 1e-8,
                "eps_root": 0.0,
                "mu_dtype": None,
                "nesterov": False,
            },
            {"name": "clip", "max_delta": {"number": "inf"}},
        ],
    }
    for tx in [*VALUES.values(), *FROM_CATALOGUE.values()]:
        if isinstance(tx, gx.Value) and "arguments" not in tx.__dataclass_fields__:
            assert set(gx.to_config(tx)) == {"version", "name", *tx.__dataclass_fields__}


# ------------------------------------------------------------------------------- by hypothesis

unit = st.floats(0, 1, exclude_max=True)
size = st.floats(0, 1e6, allow_subnormal=False)
positive = st.floats(1e-6, 1e6) | st.integers(1, 10)
dtypes = st.sampled_from([None, "float32", jnp.bfloat16, np.float16])
keys = st.sampled_from(["name", "dict", "tuple", "number", "kernel", "ä b", "", "0"])
masks = st.recursive(
    st.builds(gx.ndim_at_least, st.integers(0, 4))
    | st.builds(gx.path_matches, st.sampled_from(["kernel$", "^a/", "[0-9]+", "é"])),
    lambda m: (
        st.tuples(m, m).map(lambda ab: ab[0] & ab[1])
        | st.tuples(m, m).map(lambda ab: ab[0] | ab[1])
        | m.map(lambda a: ~a)
    ),
    max_leaves=4,
)


def trees(leaves):
    return st.recursive(
        leaves,
        lambda t: (
            st.dictionaries(keys, t, max_size=3)
            | st.dictionaries(st.integers(0, 20), t, max_size=3)
            | st.lists(t, max_size=3)
            | st.lists(t, max_size=3).map(tuple)
        ),
        max_leaves=5,
    )


schedules = (
    st.builds(gx.constant_schedule, size)
    | st.builds(gx.linear_schedule, size, size, st.integers(1, 100), st.integers(0, 9))
    | st.builds(gx.cosine_decay_schedule, size, st.integers(1, 100), unit)
    | st.builds(
        gx.piecewise_constant_schedule,
        size,
        st.dictionaries(st.integers(1, 99), st.floats(0.1, 2), min_size=1, max_size=3),
    )
    | st.just(halved)
)
rates = size | schedules
rules = st.one_of(
    st.builds(gx.scale, st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1, True.__int__()])),
    st.builds(gx.scale_by_learning_rate, rates, flip_sign=st.booleans()),
    st.builds(gx.scale_by_schedule, schedules),
    st.builds(gx.add_decayed_weights, rates, st.none() | masks | trees(st.booleans())),
    st.builds(gx.clip, positive | st.just(math.inf)),
    st.builds(gx.clip_by_global_norm, positive),
    st.builds(gx.adaptive_grad_clip, positive, size, st.none() | st.just((0, 1)) | st.just(-1)),
    st.builds(gx.trace, unit, st.booleans(), dtypes),
    st.builds(gx.scale_by_adam, unit, unit, size, size, dtypes, nesterov=st.booleans()),
    st.builds(gx.scale_by_lion, unit, unit, mode=st.sampled_from(["hard", "smooth", "refined"])),
    st.builds(gx.add_noise, size, unit, st.integers(-(2**31), 2**31 - 1)),
    st.sampled_from([gx.identity(), gx.set_to_zero(), gx.zero_nans(), shout(), gx.centralize()]),
    st.builds(gx.adamw, rates, mask=st.none() | masks),
    st.builds(gx.inject_hyperparams(gx.sgd), rates, momentum=st.none() | unit),
    st.builds(gx.inject_hyperparams(gx.lamb, "b1"), rates, unit, mask=st.none() | masks),
)
transforms = st.recursive(
    rules,
    lambda tx: st.one_of(
        st.lists(tx, max_size=3).map(lambda parts: gx.chain(*parts)),
        st.dictionaries(keys, tx, max_size=3).map(lambda d: gx.named_chain(*d.items())),
        st.builds(gx.masked, tx, masks | trees(st.booleans())),
        st.builds(
            gx.partition,
            st.fixed_dictionaries({"name": tx, "b": tx}),
            trees(st.sampled_from(["name", "b"]))
            | masks.map(lambda m: gx.label_by(("name", m), ("b", True))),
        ),
        st.builds(
            gx.MultiSteps,
            tx,
            st.integers(1, 9),
            st.booleans(),
            st.none() | st.just(gx.skip_not_finite),
        ),
        st.builds(gx.lookahead, tx, st.integers(1, 9), unit),
        st.builds(gx.apply_if_finite, tx, st.integers(0, 9)),
    ),
    max_leaves=4,
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(transforms | schedules.filter(lambda s: s is not halved) | masks)
def test_any_composition_round_trips(tx):
    check_round_trips(tx)


# -------------------------------------------------------------------------- equal and not equal


@pytest.mark.parametrize(
    "one, other",
    [
        (gx.scale(0.0), gx.scale(-0.0)),
        (gx.masked(ADAMW, {"a": True}), gx.masked(ADAMW, {"a": False})),
        (gx.masked(ADAMW, [True]), gx.masked(ADAMW, (True,))),
        (gx.label_by((1, MATRICES)), gx.label_by((True, MATRICES))),
        (gx.label_by((1, MATRICES)), gx.label_by((1.0, MATRICES))),
        (gx.chain(gx.clip(1.0)), gx.named_chain(("0", gx.clip(1.0)))),
        (gx.trace(0.9), gx.ema(0.9)),
        (gx.sgd(0.1), gx.sgd(gx.constant_schedule(0.1))),
    ],
)
def test_different_values_have_different_configs(one, other):
    assert one != other and gx.to_json(one) != gx.to_json(other)
    assert gx.from_config(gx.to_config(one)) != gx.from_config(gx.to_config(other))


@pytest.mark.parametrize(
    "one, other",
    [
        (gx.scale(1), gx.scale(1.0)),
        (gx.scale(np.float32(0.5)), gx.scale(0.5)),
        (gx.scale(jnp.asarray(2)), gx.scale(2.0)),
        (gx.trace(0.9, accumulator_dtype="float32"), gx.trace(0.9, accumulator_dtype=jnp.float32)),
        (gx.MultiSteps(ADAMW, np.int64(2)), gx.MultiSteps(ADAMW, 2)),
        (gx.add_noise(1, 1, np.int64(3)), gx.add_noise(1, 1, 3)),
        (gx.masked(ADAMW, {"b": True, "a": False}), gx.masked(ADAMW, {"a": False, "b": np.True_})),
    ],
)
def test_spellings_of_one_value_have_one_config(one, other):
    assert one == other and hash(one) == hash(other) and gx.to_json(one) == gx.to_json(other)


# ----------------------------------------------------------------------------- written by hand


@pytest.mark.parametrize(
    "config, tx",
    [
        ({"name": "adamw", "learning_rate": 1e-3}, ADAMW),
        ({"name": "adamw", "learning_rate": 1, "b1": 0}, gx.adamw(1.0, b1=0.0)),
        ({"name": "scale_by_adam"}, gx.scale_by_adam()),
        ({"name": "chain"}, gx.chain()),
        ({"name": "their:quiet", "learning_rate": 0.1}, quiet(0.1)),
        ({"name": "sgd", "learning_rate": {"function": "their:halved"}}, gx.sgd(halved)),
        (
            {"name": "sgd", "learning_rate": {"name": "constant_schedule", "value": 0.1}},
            gx.sgd(gx.constant_schedule(0.1)),
        ),
        (
            {"name": "named_chain", "transforms": [["a", {"name": "clip", "max_delta": 1}]]},
            gx.named_chain(("a", gx.clip(1.0))),
        ),
        (
            {"name": "add_noise", "eta": 0.1, "gamma": 0.5, "key": [1, 2]},
            gx.add_noise(0.1, 0.5, (1, 2)),
        ),
        (
            {
                "name": "partition",
                "transforms": {"a": {"name": "sgd", "learning_rate": 0.1}},
                "param_labels": {
                    "name": "label_by",
                    "pairs": [["a", {"name": "ndim_at_least", "n": 2}], ["a", True]],
                },
            },
            gx.partition({"a": gx.sgd(0.1)}, gx.label_by(("a", MATRICES), ("a", True))),
        ),
        (
            {
                "name": "inject_hyperparams",
                "inner_factory": {"function": "sgd"},
                "arguments": {"learning_rate": 0.1},
            },
            gx.inject_hyperparams(gx.sgd)(0.1),
        ),
    ],
)
def test_a_config_written_by_hand_is_read(config, tx):
    before = copy.deepcopy(config)
    assert gx.from_config(config) == tx
    assert gx.from_json(json.dumps(config)) == tx
    assert config == before


def test_the_version_of_a_config_is_ignored():
    assert gx.from_config({"version": "99.0", "name": "identity"}) == gx.identity()


# ------------------------------------------------------------------------------ what is refused


class Foreign(NamedTuple):
    init: Any
    update: Any


def chain_of(*parts):
    return {"name": "chain", "transforms": list(parts)}


FUNCTION = "'skip_not_finite' is a function, not a transform, schedule or mask; where a field takes"
READING = [
    (3, TypeError, "config: must be a dict with a 'name', got int."),
    ('{"name": "sgd"}', TypeError, "For JSON text there is from_json."),
    ({}, ValueError, "config: no 'name'; it says which transform this is."),
    ({"name": None}, TypeError, "config: the name of a transform must be a string, got None."),
    ({"name": "sgd", "version": 1}, TypeError, "config.version: must be a string, got 1."),
    (
        chain_of({"name": "clip", "max_delta": 1}, {"name": "scale_by_adm"}),
        ValueError,
        "config.transforms[1]: no transform named 'scale_by_adm'. Did you mean 'scale_by_adam'",
    ),
    (
        {"name": "adamw", "learning_rte": 1},
        ValueError,
        "config: adamw does not have a field 'learning_rte'",
    ),
    ({"name": "adamw", "learning_rte": 1}, ValueError, "Did you mean 'learning_rate'?"),
    ({"name": "adamw"}, ValueError, "config: adamw needs the field 'learning_rate'."),
    (chain_of({"name": "scale"}), ValueError, "config.transforms[0]: scale needs the field 'step_"),
    ({"name": "scale_by_adam", "b1": 2}, ValueError, "config: scale_by_adam: b1 must be in [0, 1)"),
    (
        {"name": "sgd", "learning_rate": "0.1"},
        TypeError,
        "config: scale_by_learning_rate: learning",
    ),
    ({"name": "chain", "transforms": 3}, TypeError, "config.transforms: must be a list, got 3."),
    (chain_of(3), TypeError, "config: chain: argument 0 must have init and update"),
    (chain_of({"b": 1}), TypeError, "config: chain: argument 0 must have init and update"),
    (
        {"name": "chain", "parts": []},
        ValueError,
        "chain does not have a field 'parts', only transforms.",
    ),
    (
        {"name": "scale", "step_size": {"number": "nan"}},
        ValueError,
        "config.step_size: a number is",
    ),
    ({"name": "scale", "step_size": {"number": []}}, ValueError, "config.step_size: a number is"),
    ({"name": "scale", "step_size": jnp.ones(3)}, TypeError, "must be plain data, got an array"),
    ({"name": "masked", "mask": {"dict": 1}}, TypeError, "config.mask: must be a list, got 1."),
    ({"name": "masked", "mask": {"dict": [1]}}, TypeError, "config.mask[0]: must be a pair"),
    ({"name": "masked", "mask": {"dict": [[[1], 1]]}}, TypeError, "a list cannot be a key"),
    (
        {"name": "masked", "mask": {"dict": [[1, 1], [1, 2]]}},
        ValueError,
        "the key 1 is given twice",
    ),
    ({"name": "masked", "mask": {"tuple": 1}}, TypeError, "config.mask: must be a list"),
    ({"name": "their:shuot"}, ValueError, "Did you mean 'their:shout'"),
    ({"name": "acme:zoom"}, ValueError, "Import the package that registers 'acme:zoom' first."),
    ({"name": "skip_not_finite"}, TypeError, f"config: {FUNCTION}"),
    (chain_of({"name": "skip_not_finite", "updates": [1]}), TypeError, "config.transforms[0]: 'sk"),
    (
        {"name": "their:halved", "count": 1},
        TypeError,
        "'their:halved' does not return a transform, sch",
    ),
    (
        {"name": "inject_hyperparams", "inner_factory": {"function": "sgd"}, "arguments": [1]},
        TypeError,
        "config.arguments: must be a dict, got [1].",
    ),
    (
        {
            "name": "inject_hyperparams",
            "inner_factory": {"function": "sgd"},
            "arguments": {"lr": 1},
        },
        TypeError,
        "config.arguments: inject_hyperparams: sgd has no argument 'lr'",
    ),
]
TEXTS = [
    (None, TypeError, "config: must be JSON text, got None."),
    ("{'name': 'sgd'}", ValueError, "config: not JSON: "),
    ('{"name": "sgd",}', ValueError, "at line 1, column "),
    ('{"name": "sgd", "name": "adam"}', ValueError, "config: 'name' is given twice."),
    ('{"name": "clip", "max_delta": NaN}', ValueError, "config: NaN is not JSON"),
    ('{"name": "clip", "max_delta": Infinity}', ValueError, "{'number': 'inf'}"),
    ("[]", TypeError, "config: must be a dict with a 'name', got list."),
]
WRITING = [
    (
        gx.chain(gx.clip(1.0), gx.sgd(lambda n: 0.1)),
        "chain.transforms[1].transforms[1].learning_rate: a lambda cannot be written. Use a sch",
    ),
    (gx.masked(ADAMW, lambda p: p), "masked.mask: a lambda cannot be written."),
    (gx.sgd(math.sqrt), "learning_rate: the function sqrt cannot be written."),
    (
        gx.chain(gx.clip(1.0), unregistered()),
        "chain.transforms[1]: the class unregistered is not re",
    ),
    (unregistered(), "@transform(name='package:unregistered')."),
    (unregistered_mask(), "@value(name='package:unregistered_mask')."),
    (
        gx.chain(optax.scale(1.0)),
        "chain.transforms[0]: GradientTransformation is not a registered tr",
    ),
    (gx.chain(Foreign(len, len)), "chain.transforms[0]: Foreign is not a registered transform"),
    (gx.GradientTransformation(lambda p: (), halved), "GradientTransformation.init_fn: a lambda"),
    (gx.inject_hyperparams(unregistered)(), "inner_factory: the class unregistered cannot be"),
    (gx.partition({"a": optax.sgd(0.1)}, "a"), "partition.transforms['a']: "),
    (gx.adamw, "to_config: needs a transform, schedule or mask, got the function adamw."),
    (3, "to_config: needs a transform, schedule or mask, got 3."),
]


def check_message(caught, words):
    message = str(caught.value)
    assert words in message, message
    assert "\n" not in message and " at 0x" not in message
    assert message.endswith((".", "?")) and len(message) < 400


@pytest.mark.parametrize("config, error, words", READING)
def test_a_wrong_config_is_refused_with_the_mistake_and_its_place(config, error, words):
    with pytest.raises(error) as caught:
        gx.from_config(config)
    check_message(caught, words)


@pytest.mark.parametrize("text, error, words", TEXTS)
def test_text_that_is_not_a_config_is_refused(text, error, words):
    with pytest.raises(error) as caught:
        gx.from_json(text)
    check_message(caught, words)


@pytest.mark.parametrize("tx, words", WRITING)
def test_a_value_that_cannot_be_written_is_refused_with_the_remedy(tx, words):
    with pytest.raises(TypeError) as caught:
        gx.to_config(tx)
    check_message(caught, words)


# ---------------------------------------------------------------- deep, endless, huge and long


def within(n, x=None, wrap=lambda x: chain_of(x)):
    x = {"name": "clip", "max_delta": 1.0} if x is None else x
    for _ in range(n):
        x = wrap(x)
    return x


def masked_by(mask):
    return {"name": "masked", "inner": {"name": "identity"}, "mask": mask}


def endless(kind):
    """A list or dict that holds itself, after a while."""
    inner = [] if kind is list else {}
    x = within(3, inner, lambda x: [x] if kind is list else {"a": x})
    inner.append(x) if kind is list else inner.update(b=x)
    return x


BOMB = chain_of()
BOMB["transforms"].append(BOMB)
HUGE = 10**400
LONG = "lengthy " * 20_000
RECORD = np.dtype([("a", "f4"), ("b", "i4")])
BEYOND = "must be in the range of a float, got an integer of 1329 bits."
DEEP = [
    (within(200), "config.transforms[0].transforms[0]", "nested more than 200 deep."),
    (within(5000), "config.transforms[0].transforms[0]", "nested more than 200 deep."),
    (masked_by(within(201, True, lambda x: [x, True])), "config.mask[0][0]", ": nested more"),
    (masked_by(within(200, True, lambda x: {"k": x})), "config.mask.k.k.k", ": nested more"),
    (masked_by(within(999, True, lambda x: {"tuple": [x]})), "config.mask.tuple[0].tuple", "deep."),
    (BOMB, "config.transforms[0]: contains itself.", ""),
    (masked_by(endless(list)), "config.mask[0][0][0][0]: contains itself.", ""),
    (masked_by(endless(dict)), "config.mask.a.a.a.b: contains itself.", ""),
    ({"name": "sgd", "learning_rate": 0.1, "version": endless(list)}, "config.version[0]", ""),
    ({"name": endless(dict)}, "config.name.a.a.a.b: contains itself.", ""),
    (chain_of({"name": "clip", "max_delta": HUGE}), "config.transforms[0].max_delta:", BEYOND),
    (chain_of({"name": "clip", "max_delta": -HUGE}), "config.transforms[0].max_delta:", BEYOND),
    ({"name": "MultiSteps", "opt": {}, "every_k_schedule": HUGE}, "config.every_k_sch", BEYOND),
    (masked_by({"dict": [[HUGE, True]]}), "config.mask.dict[0][0]:", BEYOND),
    ({"name": "clip", "max_delta": 10**5000}, "config.max_delta:", "integer of 16610 bits."),
]


@pytest.mark.parametrize("config, place, words", DEEP, ids=range(len(DEEP)))
def test_a_config_too_deep_or_too_large_is_refused_with_its_place(config, place, words):
    with pytest.raises(ValueError) as caught:
        gx.from_config(config)
    check_message(caught, words)
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            '{"name":"chain","transforms":[' * 250 + "]}" * 250,
            "transforms[0]: nested more than 200",
        ),
        ('{"name":"chain","transforms":[' * 10**5, "config: nested more than 200 deep."),
        ("[" * 10**6, "config: nested more than 200 deep."),
        ('{"name": "clip", "max_delta": 1' + "0" * 400 + "}", "config.max_delta: must be in the r"),
        ('{"name": "clip", "max_delta": -1' + "0" * 9000 + "}", "config.max_delta: must be in the"),
        ('{"name": "clip", "max_delta": 1e400}', "config.max_delta: must be in the range of a f"),
        (f'{{"name": "{LONG}"}}', "config: no transform named 'lengthy lengthy"),
        (f'{{"{LONG}": 1, "{LONG}": 2}}', "lengthy ... is given twice."),
    ],
    ids=range(8),
)
def test_json_that_is_deep_huge_or_long_is_refused_in_one_line(text, words):
    with pytest.raises(ValueError) as caught:
        gx.from_json(text)
    check_message(caught, words)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"name": LONG}, "config: no transform named 'lengthy lengthy"),
        ({"name": f"their:{LONG}"}, "Import the package that registers 'their:lengthy"),
        ({"name": "clip", LONG: 1}, "config: clip does not have a field 'lengthy lengthy"),
        ({"name": "clip", "max_delta": LONG}, "config: clip: max_delta must be a number, got 'l"),
        ({"name": "sgd", "learning_rate": {"function": LONG}}, "no function named 'lengthy"),
        ({"name": "clip", "version": [LONG]}, "config.version: must be a string, got ['lengthy"),
        ({"name": [LONG]}, "config: the name of a transform must be a string, got ['lengthy"),
        ({"name": "scale", "step_size": {"number": LONG}}, "a number is one of 'inf', '-inf', got"),
        (masked_by({LONG: {"name": "no such"}}), "config.mask.lengthy lengthy"),
        (masked_by({"a\nb": {"name": "no such"}}), "config.mask.a b: no transform named 'no such'"),
        (masked_by({"dict": LONG}), "config.mask: must be a list, got 'lengthy"),
        (masked_by({"dict": [LONG]}), "config.mask[0]: must be a pair [key, value], got 'leng"),
        (masked_by({"dict": [[[LONG], 1]]}), "a list cannot be a key, got ['lengthy"),
        (masked_by({"dict": [[LONG, 1], [LONG, 1]]}), "lengthy ... is given twice."),
        (masked_by({"dict": [[LONG, {"name": "no"}]]}), "config.mask['lengthy lengthy"),
        ({"name": "chain", "transforms": LONG}, "config.transforms: must be a list, got 'leng"),
        (within(150, {"name": LONG}), "0].transforms[0]: no transform named 'lengthy"),
        ({"name": "trace", "decay": 0.9, "accumulator_dtype": LONG}, "must be a dtype or None"),
    ],
    ids=range(18),
)
def test_long_names_and_places_are_cut(config, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        gx.from_config(config)
    check_message(caught, words)


@pytest.mark.parametrize(
    "dtype, words",
    [
        (RECORD, "\"[('a', '<f4'), ('b', '<i4')]\"."),
        ("f4,i4", "must be a floating dtype, got \"[('f0', '<f4'), ('f1', '<i4')]\"."),
        ({"names": ["a"], "formats": ["f4"]}, "must be a floating dtype, got \"[('a', '<f4')]\"."),
        ("V8", "must be a floating dtype, got '|V8'."),
        ("U5", "must be a floating dtype, got '<U5'."),
        (",", "must be a dtype or None, got ','."),
        ([["a", "f4"]], "must be a dtype or None, got [['a', 'f4']]."),
    ],
    ids=str,
)
def test_dtypes_of_records_are_refused_by_the_name_of_the_field(dtype, words):
    for made in (
        lambda: gx.trace(0.9, accumulator_dtype=dtype),
        lambda: gx.from_config({"name": "trace", "decay": 0.9, "accumulator_dtype": dtype}),
    ):
        with pytest.raises((TypeError, ValueError), match="accumulator_dtype") as caught:
            made()
        if dtype is not RECORD:
            check_message(caught, words)


def test_a_config_of_200_levels_is_read_and_written():
    config = within(199)
    tx = gx.from_config(config)
    assert gx.to_config(tx) == {"version": gx.__version__, **config}
    assert gx.to_config(gx.from_json(gx.to_json(tx))) == gx.to_config(tx)
    for write in (gx.to_config, gx.to_json):
        with pytest.raises(ValueError) as caught:
            write(gx.chain(tx))
        check_message(caught, "transforms[0]: nested more than 200 deep.")
    deep = masked_by(within(200, True, lambda x: [x]))
    assert gx.to_config(gx.from_config(deep))["mask"] == deep["mask"]


@gx.value(name="their:holder")
class holder(gx.Value):
    held: Any


def test_writing_refuses_an_endless_or_huge_value_with_its_place():
    for kind in (list, dict):
        x = endless(kind)
        with pytest.raises(TypeError) as caught:
            holder((x,))
        check_message(caught, f"holder: held must be a value, got a {kind.__name__}, which can")
        for write in (gx.to_config, gx.to_json):
            with pytest.raises(TypeError) as caught:
                write(x)
            check_message(caught, f"schedule or mask, got a {kind.__name__}.")
    for write in (gx.to_config, gx.to_json):
        with pytest.raises(ValueError) as caught:
            write(gx.chain(gx.partition({HUGE: gx.sgd(0.1)}, gx.label_by((HUGE, True)))))
        place = "chain.transforms[0].param_labels.pairs[0][0]"
        check_message(caught, f"{place}: {BEYOND}")


def test_a_number_beyond_floats_is_refused_by_name():
    with pytest.raises(ValueError) as caught:
        gx.clip(HUGE)
    check_message(caught, f"clip: max_delta {BEYOND}")


DOTTED = ["os.system", "builtins.eval", "__import__", "gradxform.chain", "chain.__init__", "eval"]


@pytest.mark.parametrize("name", [*DOTTED, "optax:adam", "os:system", "", "adamw ", "../adamw"])
def test_a_name_is_looked_up_and_never_imported_or_run(name, monkeypatch):
    called = []
    configs = (
        {"name": name, "command": "true"},
        chain_of({"name": name}),
        {"name": "scale_by_schedule", "step_size_fn": {"function": name}},
        {"name": "sgd", "learning_rate": {"name": name}},
    )
    modules, messages = set(sys.modules), []
    with monkeypatch.context() as patched:
        for module, function in [
            (builtins, "eval"),
            (builtins, "exec"),
            (importlib, "import_module"),
            (os, "system"),
        ]:
            patched.setattr(module, function, lambda *args, **kwargs: called.append(args))
        for config in configs:
            try:
                gx.from_config(config)
            except ValueError as error:
                messages.append(str(error))
    assert not called and set(sys.modules) == modules
    assert len(messages) == len(configs)
    assert all(f"named {name!r}." in message for message in messages)


def test_a_function_is_not_called_by_a_config(monkeypatch):
    def never(count: Any) -> tuple[Any, Any]:
        pytest.fail("a config called a function")

    monkeypatch.setitem(REGISTRY, "their:never", never)
    with pytest.raises(TypeError, match="is a function, not a transform"):
        gx.from_config(chain_of({"name": "their:never", "count": 1}))
    for text in ("lambda n: 1", "their:never"):
        with pytest.raises(TypeError, match="step_size_fn must be a function, got '"):
            gx.from_config({"name": "scale_by_schedule", "step_size_fn": text})


def test_every_registered_class_has_its_name_and_no_dots():
    for name, made in REGISTRY.items():
        assert "." not in name
        if isinstance(made, type) and made.__module__.startswith("gradxform"):
            assert name == call_name(made) == made.registered_name
