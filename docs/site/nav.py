"""The order of the pages that stand in the folder docs."""

from collections.abc import Iterable
from typing import Any

GUIDES = [
    "first_training",
    "choosing",
    "compositions",
    "schedules",
    "from_optax",
    "from_pytorch",
    "from_pytorch_optimizer",
    "from_keras",
    "from_tensorflow",
    "from_bitsandbytes",
    "from_deepspeed",
    "your_own_optimizer",
    "groups_and_masks",
    "embeddings",
    "low_precision",
    "update_in_backward",
    "through_steps",
    "accumulation_and_guards",
    "hyperparameters",
    "logging",
    "checkpoints",
    "flax_sharding",
    "replicas",
    "keras_model",
    "reading_errors",
]
TOPICS = [
    "sparse",
    "matrices",
    "distributed",
    "pod",
    "center",
    "doors",
    "differences",
    "changing_a_run",
    "line_search",
    "curvature",
    "metrics",
    "tools",
    "speed",
    "tpu",
    "race",
    "traits",
    "architecture",
]


def require_places(pages: Iterable[str]) -> None:
    """Raise a ValueError that names the pages of the folder docs that have no place."""
    guides = (f"guides/{name}.md" for name in GUIDES)
    topics = (f"{name}.md" for name in TOPICS)
    without = set(pages).difference(("index.md", "optimizers.md", "wrappers.md"), guides, topics)
    if without:
        raise ValueError(
            f"{', '.join(sorted(without))}: no place in the navigation; "
            "add the name to GUIDES or TOPICS in docs/site/nav.py."
        )


def nav(
    pages: Iterable[str],
    optimizers: list[str],
    wrappers: list[str],
    reference: list[dict[str, str]],
) -> list[Any]:
    """Return the navigation.

    Args:
      pages: the paths of all pages of the folder docs.
      optimizers: the paths of the generated pages of optimizers.
      wrappers: those of wrappers.
      reference: the titles and paths of those of the reference.
    """
    there = set(pages)
    guides = [f"guides/{name}.md" for name in GUIDES if f"guides/{name}.md" in there]
    topics = [f"{name}.md" for name in TOPICS if f"{name}.md" in there]
    return [
        {"Home": "index.md"},
        {"Gallery": "gallery.md"},
        {"Guides": guides},
        {"Topics": topics},
        {"Optimizers": ["optimizers.md", *optimizers]},
        {"Wrappers": ["wrappers.md", *wrappers]},
        {"Reference": ["reference/index.md", *reference]},
    ]
