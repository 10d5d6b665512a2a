"""The families of optimizers and wrappers, by which the gallery is ordered."""

import re

from docs.site.cache import ROOT

# Wrappers by what they do; every wrapper is in one family.
WRAPPERS = {
    "composition": ("chain", "named_chain", "sum_of", "partition", "masked", "flatten"),
    "averages": (
        "lookahead",
        "moving_average",
        "overwriting_average",
        "power_moving_average",
        "schedule_free",
        "stochastic_weight_average",
    ),
    "accumulation": ("MultiSteps", "accumulate", "accumulate_rows"),
    "guards and conditions": (
        "apply_if_finite",
        "conditionally_mask",
        "conditionally_transform",
        "loss_scale",
        "skip_loss_spikes",
    ),
    "groups and hyperparameters": (
        "external_step",
        "inject_hyperparams",
        "param_group",
        "param_groups",
        "variable_names",
    ),
    "modifiers": (
        "cautious",
        "decoupled_weight_decay",
        "mechanize",
        "project",
        "qk_clip",
        "query_key",
        "sam",
        "scale_by_galore",
        "split_real_and_imaginary",
        "variable_clipping",
    ),
    "storage": (
        "factor_state",
        "kahan",
        "master_weights",
        "offload_state",
        "quantize_state",
        "state_dtype",
        "stochastic_rounding",
    ),
    "metrics": ("monitor", "on_measurement", "raw_gradient_norms", "snapshot", "with_metrics"),
    "row-sparse gradients": ("only_dense", "only_rows", "sparse_semantics"),
}


def optimizer_families() -> dict[str, str]:
    """Return the family of every optimizer, as the README's table has it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Optimizers\n")[2]
    found = {}
    for family, names in re.findall(r"^\| ([^|]+) \| \d+ \| ([^|]+) \|$", text, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), family.strip())
    return found


def family_of(name: str) -> str:
    """Return the family of an optimizer or wrapper.

    Raises:
      ValueError: if none has it.
    """
    families = {part: family for family, parts in WRAPPERS.items() for part in parts}
    families |= optimizer_families()
    if name not in families:
        raise ValueError(
            f"{name} is in no family: add it to docs/site/families.py, or an optimizer to the "
            "table of families in README.md."
        )
    return families[name]
