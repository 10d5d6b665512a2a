"""Every argument of every public factory is checked, whether the factory keeps it or not.

Each is called with one argument replaced at a time. What it accepts must be what the argument's
annotation allows; what it refuses, it refuses in one line that names the part and the argument.
"""

import inspect
import math
import re
import typing
import warnings
from types import NoneType
from typing import Any

import jax
import pytest

import gradxform as gx
import gradxform.distributed as distributed
from gradxform import types
from gradxform.compat import keras3
from gradxform.values import fields_of
from gradxform.values.config import is_plain_function
from gradxform.values.fields import annotation_kinds
from gradxform.values.registry import REGISTRY
from tests.catalogue import CASES
from tests.project.names import DOORS
from tests.public import names_of

SGD = gx.sgd(0.1)
WRONG = {
    "a string": "x",
    "a boolean": True,
    "a list": [1.0],
    "None": None,
    "a huge integer": 2**70,
    "NaN": math.nan,
}
# What a factory needs that has no default and is not in the catalogue.
NEEDED: dict[str, Any] = {
    "learning_rate": 0.1,
    "init_value": 1.0,
    "peak_value": 1.0,
    "decay_steps": 10,
    "total_steps": 20,
    "start": 5,
    "schedule": 0.1,
    "steps": 4,
    "first_decay_steps": 10,
    "transition_steps": 10,
    "warmup_steps": 2,
    "decay_rate": 0.5,
    "end_value": 0.1,
    "power": 1.0,
    "value": 0.1,
    "inner": SGD,
    "optimizer": SGD,
    "inner_optimizer": SGD,
    "axis": "i",
    "momentum": 0.9,
    "weight_decay": 0.1,
    "tx": SGD,
    "opt": SGD,
    "axis_name": "i",
    "mask": True,
    "freeze_mask": True,
}
OWN: dict[str, dict[str, Any]] = {
    "GradientTransformation": {"init": SGD.init, "update": SGD.update},
    "GradientTransformationExtraArgs": {"init": SGD.init, "update": SGD.update},
    "WrappedSchedule": {"schedule_fn": gx.linear_schedule(1.0, 0.0, 9)},
    "differentially_private_aggregate": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1, "key": 0},
    "drop_stale": {"staleness": 1},
    "ema": {"decay": 0.9},
    "measure_with_ema": {"measure": gx.global_norm, "decay": 0.9},
    "inject_hyperparams": {"inner_factory": gx.adamw},
    "inject_stateful_hyperparams": {"inner_factory": gx.adamw},
    "join_schedules": {"schedules": (0.1, 0.2), "boundaries": (3,)},
    "matrix_split": {"axis": 0, "sizes": 2},
    "muonclip": {"layers": {"a": gx.query_key("q", "k", 2)}},
    "piecewise_interpolate_schedule": {"interpolate_type": "linear"},
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1, "seed": 0},
    "powersgd": {"rank": 2},
    "qk_clip": {"layers": {"a": gx.query_key("q", "k", 2)}},
    "sgdr_schedule": {
        "cosine_kwargs": [
            {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 9}
        ]
    },
    "keras3:MultiOptimizer": {"optimizer_map": keras3.OptimizerMap(SGD)},
    "keras:LossScaleOptimizerV1": {"loss_scale": 8.0},
    "tf_contrib:AGN": {"optimizer": SGD},
    "tf_contrib:Tower": {"optimizer_or_optimizer_fn": SGD},
    "tf_contrib:DropStaleGradient": {"staleness": 1},
    "tf1:SyncReplicas": {"replicas_to_aggregate": 4},
    "tf_contrib:AdamW": {"weight_decay": 0.1},
    "tf_contrib:MomentumW": {"weight_decay": 0.1},
    "tf_contrib:VariableClipping": {"vars_to_clip_dims": {"w": [0]}, "max_norm": 1.0},
}
# Arguments whose annotation allows less than the factory takes, or says another thing, each with
# the reason.
EXCEPTIONS: dict[str, str] = {
    f"{name}.{argument}": "the message has the name of the field, init_fn or update_fn"
    for name in ("GradientTransformation", "GradientTransformationExtraArgs")
    for argument in ("init", "update")
}


def values_in(x: Any):
    """The values of the library that `x` is made of, `x` first."""
    if isinstance(x, gx.Value):
        yield x
        for field in fields_of(x).values():
            yield from values_in(field)
    elif isinstance(x, tuple) and not hasattr(x, "_fields"):
        for item in x:
            yield from values_in(item)


SAMPLES = {type(v): v for case in CASES.values() for v in values_in(case.tx)}


def is_factory(part: Any) -> bool:
    if isinstance(part, type):
        return issubclass(part, gx.Value) and not inspect.isabstract(part)
    if not inspect.isfunction(part):
        return False
    returned = inspect.signature(part).return_annotation
    returned = typing.get_origin(returned) or returned
    is_value = isinstance(returned, type) and issubclass(returned, gx.Value)
    return is_value or returned is types.Schedule


def factories() -> dict[str, Any]:
    """Every public factory, by name."""
    public = {*names_of(gx), *names_of(distributed)}
    found = {
        name: part
        for name, part in REGISTRY.items()
        if name.rpartition(":")[0] in DOORS or name in public
        if not is_plain_function(part) and getattr(part, "variadic", None) is None
    }
    for module in (gx, distributed):
        for name, part in names_of(module).items():
            is_new = part not in found.values() and getattr(part, "variadic", None) is None
            if is_new and is_factory(part):
                found[name] = part
    return found


FACTORIES = factories()


def annotations_of(part: Any) -> dict[str, Any]:
    target = part.__init__ if isinstance(part, type) and "__init__" in vars(part) else part
    if not isinstance(part, type):
        return {p.name: p.annotation for p in inspect.signature(part).parameters.values()}
    hints = typing.get_type_hints(part, include_extras=True)
    try:
        return hints | typing.get_type_hints(target, include_extras=True)
    except TypeError:
        return hints


def arguments_of(name: str) -> dict[str, Any] | None:
    """A valid call of a factory by keywords; None where it takes only positional arguments."""
    part = FACTORIES[name]
    given: dict[str, Any] = {}
    if isinstance(part, type) and part in SAMPLES:
        given = fields_of(SAMPLES[part])
    own = OWN.get(name, {})
    for p in inspect.signature(part).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.name in own:
            given[p.name] = own[p.name]
        elif p.name not in given:
            given[p.name] = NEEDED.get(p.name) if p.default is p.empty else p.default
    parameters = inspect.signature(part).parameters
    return {k: x for k, x in given.items() if k in parameters}


def is_legal(annotation: Any, default: Any, x: Any) -> bool:
    """Whether an annotation allows a value."""
    kinds = annotation_kinds(annotation)
    marks = [type(m) for kind in kinds for m in getattr(kind, "__metadata__", ())]
    if any(kind in (Any, types.StaticTree, types.Fixed) for kind in kinds):
        return True
    if types.AliasOf in marks:  # the argument in whose place it stands is checked
        return not isinstance(x, str | bool | list)
    if x is None and types.DType in kinds:
        return True
    if x is None:
        return NoneType in kinds or default is None
    if isinstance(x, bool):
        return bool in kinds or types.StaticMask in kinds
    if isinstance(x, str):
        return str in kinds
    if isinstance(x, list):
        return any((typing.get_origin(k) or k) in (tuple, list) for k in kinds)
    return x == 2**70 and (float in kinds or jax.Array in kinds)


@pytest.mark.parametrize("name", list(FACTORIES))
def test_a_wrong_argument_is_refused_by_name(name):
    part, arguments = FACTORIES[name], arguments_of(name)
    annotations, parameters = annotations_of(part), inspect.signature(part).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part(**arguments)  # else nothing below would mean anything
        for argument, (words, x) in [(a, w) for a in arguments for w in WRONG.items()]:
            if f"{name}.{argument}" in EXCEPTIONS:
                continue
            where = f"{name}({argument}={words})"
            try:
                part(**arguments | {argument: x})
            except (TypeError, ValueError) as error:
                message = str(error)
                assert re.match(r"[\w:.]+: ", message), f"{where}: {message}"
                assert re.search(rf"\b{argument}\b", message), f"{where}: {message}"
                assert "\n" not in message and len(message) < 400, f"{where}: {message}"
            else:
                annotation = annotations.get(argument, Any)
                default = parameters[argument].default
                assert is_legal(annotation, default, x), f"{where} is accepted"
