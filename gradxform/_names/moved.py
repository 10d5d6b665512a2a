"""Modules that were elsewhere: programs and pickles find them under their old paths, too.

A path of before is another name of the same module, which is loaded when somebody imports it.
"""

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_ROOT = "gradxform."

# The old path of each, and the new one, below `gradxform`.
MOVED = {
    "_compat": "_jax.versions",
    "_lazy": "_names.lazy",
    "_version": "_names.version",
    "compat.keras_common": "compat.keras.keywords",
    "compat.keras_import": "compat.keras.imports",
    "compat.keras_schedules": "compat.keras.decays",
    "engine.pieces": "engine.cuts",
    "forwards": "_names.optax",
    "gradients": "training.derivatives",
    "matrix_products": "linalg.products",
    "optax_states": "run_states.optax",
    "optimizers.base": "optimizers.optimizer",
    "port": "commands.optax_uses",
    "schedules.base": "schedules.schedule",
    "transforms.piece_norms": "transforms.matrices.array_norms",
    "transforms.shampoo_pieces": "transforms.shampoo.divided_step",
    "wrappers.accumulate_rows": "wrappers.accumulation.rows",
    "wrappers.factory_arguments": "wrappers.hyperparams.arguments",
    "wrappers.galore_pieces": "wrappers.low_rank.placement",
    "wrappers.group_rules": "wrappers.param_groups.rules",
    "wrappers.narrow_steps": "wrappers.narrow.assigned_params",
    "wrappers.storage_wrapper": "wrappers.stored.wrapper",
}
# What their old paths began with, what the new ones begin with, and what follows in both.
_FOLDERS = (
    ("", "_jax.", "jaxprs"),
    ("", "_names.", "signatures"),
    ("", "base.", "explicit_axes methods transformation"),
    ("", "commands.", "catalog"),
    ("", "leaves.", "masks no_gradient row_sparse states storage"),
    ("", "linalg.", "curvature iterations norms polar"),
    ("", "numerics.", "overflow roots"),
    ("", "projections.", "polytopes simplex"),
    ("", "run_states.", "learning_rate metrics migration optax_closures slot_names"),
    ("", "tables.", "describe group_table part_table placed_bytes text_table"),
    ("", "training.", "distributions"),
    ("", "tree.", "apply by_value tree_utils"),
    (
        "",
        "values.",
        "arguments called config content docstrings extra_args field_kinds fields flax_bytes"
        " registry",
    ),
    ("compat.", "compat.keras.", "keras3 keras3_options keras3_slots"),
    ("compat.", "compat.tf1.", "door_names replicas"),
    (
        "compat.keras_",
        "compat.keras.",
        "configs files loss_scale objects optimizer pairs rates saved transform weights",
    ),
    ("compat.returnn_", "compat.returnn.", "classes config names rates"),
    ("compat.tf1_", "compat.tf1.", "checkpoints names"),
    ("compat.tf_contrib_", "compat.tf_contrib.", "decay sign wrappers"),
    (
        "distributed.",
        "distributed.averaging.",
        "elastic eval_params exchange model_average outer outer_recipes stale synchronous tower",
    ),
    ("distributed.", "distributed.matrices.", "shard_matrices"),
    ("distributed.", "distributed.programs.", "collectives measures"),
    ("distributed.", "distributed.replicas.", "resize"),
    (
        "distributed.",
        "distributed.shares.",
        "division fragments param_places reach shared_leaves sources",
    ),
    ("distributed.", "distributed.specs.", "slot_dims state_sharding state_specs"),
    (
        "distributed.",
        "distributed.wire.",
        "axis bits compression decisions feedback order powersgd traps",
    ),
    ("distributed.", "testing.", "hlo hlo_schedule hlo_text"),
    ("distributed.matrix_", "distributed.matrices.", "exchange sections state"),
    ("distributed.replica_", "distributed.replicas.", "arguments layout mesh programs restore"),
    ("distributed.zero_", "distributed.zero.", "gather wire"),
    ("migration.", "run_states.migration.", "layout match migrate pairs report sources"),
    (
        "port.",
        "commands.optax_uses.",
        "calls differences files imports magics names notebooks report syntax uses",
    ),
    ("slot_names.", "run_states.slot_names.", "access entries owners words"),
    (
        "storage.",
        "leaves.storage.",
        "blocks codes crossed factored memory parameters rounded stored",
    ),
    ("transforms.", "compat.returnn.", "raw_gradients"),
    (
        "transforms.",
        "transforms.lbfgs.",
        "bounds cauchy compact lbfgs_steps lbfgsb line_search more_thuente subspace zoom",
    ),
    ("transforms.", "transforms.matrices.", "dimensions shape_factor"),
    ("transforms.", "transforms.shampoo.", "distributed_shampoo"),
    ("transforms.lbfgs_", "transforms.lbfgs.", "machine units"),
    ("transforms.matrix_", "transforms.matrices.", "axes leaf rule"),
    ("transforms.shampoo_", "transforms.shampoo.", "axes"),
    ("wrappers.", "compat.returnn.", "raw_gradients"),
    ("wrappers.", "wrappers.accumulation.", "accumulate"),
    ("wrappers.", "wrappers.hyperparams.", "inject schedule_states"),
    ("wrappers.", "wrappers.low_rank.", "galore"),
    ("wrappers.", "wrappers.narrow.", "narrow_params"),
    ("wrappers.", "wrappers.param_groups.", "groups param_group"),
    ("wrappers.", "wrappers.stored.", "storage"),
)
MOVED |= {old + name: new + name for old, new, names in _FOLDERS for name in names.split()}


class _MovedModuleFinder:
    """Finds a module of `MOVED` under its old path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to load a module that has moved; None for any other."""
        if not fullname.startswith(_ROOT) or fullname.removeprefix(_ROOT) not in MOVED:
            return None
        loader: Any = self
        return importlib.machinery.ModuleSpec(fullname, loader)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module at its new path."""
        module = importlib.import_module(_ROOT + MOVED[spec.name.removeprefix(_ROOT)])
        # The import gives it the spec of the old path next.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is, under the spec of its new path."""
        spec: Any = module.__spec__
        module.__spec__ = spec.loader_state


def install() -> None:
    """Let imports find modules under their old paths.

    This comes first: the usual way would load a second copy of a module in a package that moved.
    """
    if not any(isinstance(finder, _MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedModuleFinder())
