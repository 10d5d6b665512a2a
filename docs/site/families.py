"""The families of optimizers and wrappers, by which the gallery is ordered.

`python -m docs.site.families` writes the table of the README.
"""

import functools

import gradxform as gx
from docs.site.cache import ROOT
from gradxform.commands.catalog import registered_parts

# Wrappers by what they do; every wrapper is in one family.
WRAPPERS = {
    "composition": ("chain", "named_chain", "sum_of", "partition", "masked", "flatten", "stacked"),
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
        "magma",
        "mechanize",
        "project",
        "qk_clip",
        "reset_state",
        "query_key",
        "remove_radial",
        "sam",
        "scale_by_galore",
        "split_real_and_imaginary",
        "trac",
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


# Optimizers by the file of their recipe under gradxform/optimizers/, or by name where the others of
# that file are of another family. What is not here is among the others.
OPTIMIZERS = {
    "gradient descent": (
        "momentum",
        "normalization",
        "noise",
        "privacy",
        "sgdp",
        "pnm",
        "adai",
        "tam",
        "optimistic_gradient_descent",
        "qhm",
    ),
    "Adam and its relatives": (
        "adam",
        "adam_kin",
        "gradient_change",
        "ademamix",
        "adopt",
        "laprop",
        "grams",
        "cautious_adamw",
        "mars",
        "stable_adam",
        "qhadam",
        "toward_sgd",
        "adamp",
        "grokfast",
        "adapnm",
        "adanorm",
        "ranger",
        "adatam",
        "amos",
        "spam",
    ),
    "Adagrad, RMSProp and their relatives": ("adaptive", "madgrad"),
    "regularized leaders and proximal steps": ("proximal",),
    "signs": ("sign", "cautious_lion", "rprop", "agreement"),
    "steps relative to each array": ("layerwise",),
    "matrices and curvature": (
        "shampoo",
        "distributed_shampoo",
        "soap",
        "kl_shampoo",
        "splus",
        "psgd",
        "muon",
        "normuon",
        "adago",
        "spectral_sphere",
        "spectrum",
        "aurora",
        "muown",
        "spel",
        "newton_muon",
        "dion",
        "scion",
        "muonclip",
        "ggt",
        "sophia",
        "adahessian",
        "lbfgs",
        "lbfgs_steps",
        "lbfgsb",
        "newton_cg",
    ),
    "little memory": ("factored", "galore", "apollo", "adam_mini", "came", "racs", "adalite"),
    "without a learning rate to tune": ("dadapt", "dog", "cocob", "step_size", "momo"),
    "without a schedule": ("schedule_free", "schedule_free_plus"),
    "embedding tables": ("embeddings", "sparse_adagrad"),
}
OTHERS = "others"
README = ROOT / "README.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"


@functools.cache
def optimizer_families() -> dict[str, str]:
    """Return the family of every optimizer, by family and then in alphabetical order."""
    family_of_place = {place: family for family, places in OPTIMIZERS.items() for place in places}
    found = {}
    for name in (entry.name for entry in registered_parts("optimizers") if ":" not in entry.name):
        file = getattr(gx, name).__module__.rpartition(".")[2]
        found[name] = family_of_place.get(name) or family_of_place.get(file, OTHERS)
    order = [*OPTIMIZERS, OTHERS]
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1]), item[0])))


def readme() -> str:
    """Return the README with its table of families as the optimizers are now."""
    families: dict[str, list[str]] = {}
    for name, family in optimizer_families().items():
        families.setdefault(family, []).append(f"`{name}`")
    rows = [f"| {family} | {', '.join(names)} |" for family, names in families.items()]
    table = "\n".join(["| family | |", "| --- | --- |", *rows])
    head, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def family_of(name: str) -> str:
    """Return the family of an optimizer or wrapper.

    Raises:
      ValueError: if none has it.
    """
    families = {part: family for family, parts in WRAPPERS.items() for part in parts}
    families |= optimizer_families()
    if name not in families:
        raise ValueError(f"{name} is in no family: add it to docs/site/families.py.")
    return families[name]


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
