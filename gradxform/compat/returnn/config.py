"""Configs of RETURNN: the optimizer and what its Updater does to gradients before."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from gradxform._names.deferred import signature_of
from gradxform.compat.arguments import call_factory, with_semantics
from gradxform.compat.returnn.names import get_optimizer_class
from gradxform.compat.returnn.rates import cyclic_exponential_decay, returnn_rate
from gradxform.compat.returnn.raw_gradients import (
    add_truncated_noise,
    clip_by_mean_norm,
    clip_by_raw_norm,
    raw_gradient_norms,
    zero_above_raw_norm,
    zero_non_finite,
)
from gradxform.errors import did_you_mean, shown
from gradxform.leaves import masks
from gradxform.schedules.product import product_schedule
from gradxform.transforms.clipping import clip, clip_by_block_norm
from gradxform.transforms.tree_rules import live_key
from gradxform.values.field_kinds import static_key
from gradxform.wrappers.compose import chain
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.select import partition

_DEFAULTS = ("adam", "nadam", "adadelta", "adagrad", "rmsprop")
_GRADIENTS = (
    "accum_grad_multiple_step",
    "gradient_noise",
    "gradient_clip",
    "gradient_clip_norm",
    "gradient_clip_avg_norm",
    "gradient_clip_global_norm",
    "gradient_clip_global_norm_tag",
    "global_norm_tag",
    "gradient_nan_inf_filter",
    "grad_norm_to_clip_to_zero",
)
_CONFIG = (
    "optimizer",
    "learning_rate",
    "learning_rate_multiplier",
    "optimizer_epsilon",
    "momentum",
    "dynamic_learning_rate",
    *_DEFAULTS,
    *_GRADIENTS,
)
_GROUP = ("optimizer", "tags", *_GRADIENTS)
_REFUSED = {
    "maximize_grad_norm": "it needs second derivatives of the loss",
    "decouple_constraints": "constraints are losses of layers; use decoupled_weight_decay",
    "extra_updates": "they are assignments to variables; do them in the training loop",
}
_REST = "others"


def from_config(
    config: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    key: Any = 0,
) -> chain:
    """Return the optimizer of a config of RETURNN.

    In every step, as in RETURNN's `Updater`: `accum_grad_multiple_step` adds gradients up
    (`MultiSteps`, a sum); then come `gradient_noise`, `gradient_clip`, `gradient_clip_norm`,
    `gradient_clip_avg_norm`, `gradient_clip_global_norm` with the norm of the raw gradients of the
    call (`raw_gradient_norms`), `gradient_nan_inf_filter`, `grad_norm_to_clip_to_zero`; then the
    optimizer, in a `partition` if there are groups. A learning rate that changes follows the extra
    argument `step` of `update`, or counts the calls.

    Args:
      config: `learning_rate`, the optimizer's options (`optimizer`, a name or a dict with `class`;
        or one of `adam`, `nadam`, `adadelta`, `adagrad`, `rmsprop`; else `momentum`),
        `optimizer_epsilon` (1e-16), `learning_rate_multiplier`, `dynamic_learning_rate`, and those
        above.
      groups: the `updater_opts` of parameters, by a pattern of their paths as in `path_matches`;
        the first that matches counts. They may hold the options above, an `optimizer`, and `tags`,
        a list of names that `global_norm_tag` and `gradient_clip_global_norm_tag` refer to.
      key: the seed of the noise. Keyword-only.

    Raises:
      ValueError: for unknown or refused keys, and wrong numbers, with the key.
      KeyError: for an unknown optimizer.
      TypeError: for values of another type.

    Reference: the `Updater` of RETURNN.
    """
    _check_keys("config", config, _CONFIG)
    key = static_key("from_config", "key", key)
    groups = {} if groups is None else groups
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups: must be a dict from patterns to options, got {shown(groups)}.")
    for pattern, options in groups.items():
        if not isinstance(pattern, str) or pattern == _REST:
            raise ValueError(
                f"groups: a pattern must be a string other than {_REST!r}, got {shown(pattern)}."
            )
        _check_keys(f"groups[{pattern!r}]", options, _GROUP)
    tags = _tags_of_groups(config, groups)
    if not groups:
        tx, reads_norms = _updater(config, {}, key)
    else:
        labels, transforms, reads_norms = [], {}, False
        for i, (pattern, options) in enumerate(groups.items()):
            # Every group draws noise of its own.
            transforms[pattern], reads = _updater(config, options, _key_of_group(key, i))
            reads_norms |= reads
            labels.append((pattern, masks.path_matches(pattern)))
        transforms[_REST], reads = _updater(config, {}, key)
        tx = partition(transforms, masks.label_by(*labels, (_REST, True)))
        reads_norms |= reads
    if reads_norms:
        tx = raw_gradient_norms(tx, tags, by_slice=True)
    return tx if isinstance(tx, chain) else chain(tx)


def _check_keys(where: str, options: Any, keys: tuple[str, ...]) -> None:
    """Require a dict with these keys only."""
    if not isinstance(options, Mapping):
        raise TypeError(f"{where}: must be a dict of options, got {shown(options)}.")
    for name in options:
        if name in _REFUSED:
            raise ValueError(f"{where}: {name} is not supported: {_REFUSED[name]}.")
        if name not in keys:
            raise ValueError(
                f"{where}: unknown key {shown(name)}, only {', '.join(keys)}."
                f"{did_you_mean(name, keys)}"
            )


def _tags_of_groups(
    config: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    """Return the tags of groups, each with the mask of its parameters."""
    by_tag: dict[str, Any] = {}
    earlier: Any = None
    for pattern, options in groups.items():
        mask = masks.path_matches(pattern)
        first_match = mask if earlier is None else mask & ~earlier
        earlier = mask if earlier is None else earlier | mask
        tags = options.get("tags", ())
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise TypeError(f"groups[{pattern!r}].tags: must be a list of names, got {tags!r}.")
        for tag in tags:
            by_tag[tag] = by_tag[tag] | first_match if tag in by_tag else first_match
    for where, options in (("config", config), *((f"groups[{k!r}]", v) for k, v in groups.items())):
        for name in ("global_norm_tag", "gradient_clip_global_norm_tag"):
            tag = options.get(name)
            if tag is not None and tag not in by_tag:
                raise ValueError(
                    f"{where}: {name} must be one of the tags of groups, "
                    f"{', '.join(by_tag) or 'but there are none'}, got {shown(tag)}."
                )
    return tuple(by_tag.items())


def _key_of_group(key: Any, i: int) -> Any:
    """Return the key of a group's noise, another for each: of a seed one of the next seeds."""
    return key + i + 1 if isinstance(key, int) else jax.random.fold_in(live_key(key), i + 1)


def _updater(
    config: Mapping[str, Any], group_options: Mapping[str, Any], key: int
) -> tuple[Any, bool]:
    """Return the optimizer of a group, and whether it needs `raw_gradient_norms` around it."""
    options = {k: group_options.get(k, config.get(k)) for k in _GRADIENTS}
    k = options["accum_grad_multiple_step"] or 1
    if type(k) is not int or k < 1:
        raise ValueError(f"config: accum_grad_multiple_step must be at least 1, got {shown(k)}.")
    tag = options["global_norm_tag"]
    bound_tag = options["gradient_clip_global_norm_tag"] or tag
    makers: dict[str, Callable[[Any], Any]] = {  # in this order
        "gradient_noise": lambda x: add_truncated_noise(x, key),
        "gradient_clip": clip,
        "gradient_clip_norm": clip_by_block_norm,
        "gradient_clip_avg_norm": clip_by_mean_norm,
        "gradient_clip_global_norm": lambda x: clip_by_raw_norm(x, bound_tag),
        "gradient_nan_inf_filter": lambda _: zero_non_finite(),
        "grad_norm_to_clip_to_zero": lambda x: zero_above_raw_norm(x, tag),
    }
    parts = [
        _part_of_key(name, part, options[name]) for name, part in makers.items() if options[name]
    ]
    reads_norms = bool(options["gradient_clip_global_norm"] or options["grad_norm_to_clip_to_zero"])
    if parts:  # before the slices of one row are summed
        parts = list(with_semantics("raw", *parts).transforms)
    optimizer = _optimizer(config, group_options)
    tx: Any = chain(*parts, *getattr(optimizer, "transforms", (optimizer,)))
    if k > 1:
        tx = MultiSteps(tx, k, use_grad_mean=False)
    return tx, reads_norms or k > 1


def _part_of_key(name: str, part: Callable[[Any], Any], x: Any) -> Any:
    """Return the part that a key of the config asks for."""
    return call_factory(lambda x: part(x), {"x": x}, f"config: {name}")


def _optimizer(config: Mapping[str, Any], group_options: Mapping[str, Any]) -> chain:
    """Return the optimizer itself, of a group's own options or else of the config."""
    momentum = config.get("momentum") or 0.0
    default, arguments = _default_optimizer(config, momentum)
    identifier = group_options.get("optimizer", config.get("optimizer"))
    if isinstance(identifier, Mapping):
        options = dict(identifier)
        if "class" in options:
            default, arguments = options.pop("class"), {}
        arguments = arguments | options
    elif identifier is not None:
        default, arguments = identifier, {}
    factory = get_optimizer_class(default)
    parameters = signature_of(factory).parameters
    if "learning_rate" in arguments:
        raise ValueError(
            "config: learning_rate stands beside the optimizer, not in its dict; for a factor use "
            "learning_rate_multiplier."
        )
    times = arguments.pop("learning_rate_multiplier", config.get("learning_rate_multiplier", 1.0))
    for name in arguments:
        if name not in parameters:
            raise ValueError(
                f"config: optimizer {default!r} does not take {name!r}, only "
                f"{', '.join(parameters)}.{did_you_mean(name, parameters)}"
            )
    if "epsilon" in parameters:
        arguments.setdefault("epsilon", config.get("optimizer_epsilon", 1e-16))
    if "momentum" in parameters and momentum:
        arguments.setdefault("momentum", momentum)
    arguments["learning_rate"] = _rate(config, times)
    return call_factory(factory, arguments, f"config: optimizer {default!r}")


def _default_optimizer(config: Mapping[str, Any], momentum: float) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the optimizer that the config's own keys ask for."""
    for name in _DEFAULTS:
        if config.get(name):
            if momentum and name != "rmsprop":
                raise ValueError(f"config: {name} and momentum={momentum!r} do not go together.")
            x = config[name]
            decay = name == "rmsprop" and isinstance(x, float)
            return name, {"decay": x} if decay else {}
    return ("momentum", {"momentum": momentum}) if momentum else ("gradientdescent", {})


def _rate(config: Mapping[str, Any], times: Any) -> Any:
    """Return the learning rate: a number, or a function of the number of calls."""
    if "learning_rate" not in config:
        raise ValueError("config: learning_rate is required.")
    rate, dynamic = config["learning_rate"], config.get("dynamic_learning_rate")
    for name, x in (("learning_rate", rate), ("learning_rate_multiplier", times)):
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise TypeError(f"config: {name} must be a number, got {shown(x)}.")
    if not dynamic:
        return rate * times
    if isinstance(dynamic, Mapping):
        if dynamic.keys() != {"interval", "decay"}:
            raise ValueError(
                "config: dynamic_learning_rate must have interval and decay, got "
                f"{', '.join(map(str, dynamic))}."
            )
        arguments = {"init_value": rate, **dynamic}
        schedule = call_factory(
            cyclic_exponential_decay, arguments, "config: dynamic_learning_rate"
        )
    elif callable(dynamic):
        kinds = [p.kind for p in signature_of(dynamic).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            raise TypeError(
                "config: dynamic_learning_rate must take any arguments by name, **kwargs, got "
                f"{shown(dynamic)}."
            )
        schedule = returnn_rate(dynamic, rate)
    else:
        raise TypeError(
            "config: dynamic_learning_rate must be a dict with interval and decay, or a function, "
            f"got {shown(dynamic)}."
        )
    return schedule if times == 1 else product_schedule(schedule, times)
