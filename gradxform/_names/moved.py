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
    "transforms.raw_gradients": "compat.returnn.raw_gradients",
    "wrappers.raw_gradients": "compat.returnn.raw_gradients",
    "schedules.base": "schedules.schedule",
    "engine.pieces": "engine.cuts",
    "_compat": "_jax.versions",
    "_lazy": "_names.lazy",
    "_version": "_names.version",
    "apply": "tree.apply",
    "arguments": "values.arguments",
    "by_value": "tree.by_value",
    "called": "values.called",
    "catalog": "commands.catalog",
    "compat.door_names": "compat.tf1.door_names",
    "compat.keras3": "compat.keras.keras3",
    "compat.keras3_options": "compat.keras.keras3_options",
    "compat.keras3_slots": "compat.keras.keras3_slots",
    "compat.keras_common": "compat.keras.keywords",
    "compat.keras_configs": "compat.keras.configs",
    "compat.keras_files": "compat.keras.files",
    "compat.keras_import": "compat.keras.imports",
    "compat.keras_loss_scale": "compat.keras.loss_scale",
    "compat.keras_objects": "compat.keras.objects",
    "compat.keras_optimizer": "compat.keras.optimizer",
    "compat.keras_pairs": "compat.keras.pairs",
    "compat.keras_rates": "compat.keras.rates",
    "compat.keras_saved": "compat.keras.saved",
    "compat.keras_schedules": "compat.keras.decays",
    "compat.keras_transform": "compat.keras.transform",
    "compat.keras_weights": "compat.keras.weights",
    "compat.replicas": "compat.tf1.replicas",
    "compat.returnn_classes": "compat.returnn.classes",
    "compat.returnn_config": "compat.returnn.config",
    "compat.returnn_names": "compat.returnn.names",
    "compat.returnn_rates": "compat.returnn.rates",
    "compat.tf1_checkpoints": "compat.tf1.checkpoints",
    "compat.tf1_names": "compat.tf1.names",
    "compat.tf_contrib_decay": "compat.tf_contrib.decay",
    "compat.tf_contrib_sign": "compat.tf_contrib.sign",
    "compat.tf_contrib_wrappers": "compat.tf_contrib.wrappers",
    "config": "values.config",
    "content": "values.content",
    "describe": "tables.describe",
    "distributed.axis": "distributed.wire.axis",
    "distributed.bits": "distributed.wire.bits",
    "distributed.collectives": "distributed.programs.collectives",
    "distributed.compression": "distributed.wire.compression",
    "distributed.decisions": "distributed.wire.decisions",
    "distributed.division": "distributed.shares.division",
    "distributed.elastic": "distributed.averaging.elastic",
    "distributed.eval_params": "distributed.averaging.eval_params",
    "distributed.exchange": "distributed.averaging.exchange",
    "distributed.feedback": "distributed.wire.feedback",
    "distributed.fragments": "distributed.shares.fragments",
    "distributed.hlo": "testing.hlo",
    "distributed.hlo_schedule": "testing.hlo_schedule",
    "distributed.hlo_text": "testing.hlo_text",
    "distributed.matrix_exchange": "distributed.matrices.exchange",
    "distributed.matrix_sections": "distributed.matrices.sections",
    "distributed.matrix_state": "distributed.matrices.state",
    "distributed.measures": "distributed.programs.measures",
    "distributed.model_average": "distributed.averaging.model_average",
    "distributed.order": "distributed.wire.order",
    "distributed.outer": "distributed.averaging.outer",
    "distributed.outer_recipes": "distributed.averaging.outer_recipes",
    "distributed.param_places": "distributed.shares.param_places",
    "distributed.powersgd": "distributed.wire.powersgd",
    "distributed.reach": "distributed.shares.reach",
    "distributed.replica_arguments": "distributed.replicas.arguments",
    "distributed.replica_layout": "distributed.replicas.layout",
    "distributed.replica_mesh": "distributed.replicas.mesh",
    "distributed.replica_programs": "distributed.replicas.programs",
    "distributed.replica_restore": "distributed.replicas.restore",
    "distributed.resize": "distributed.replicas.resize",
    "distributed.shard_matrices": "distributed.matrices.shard_matrices",
    "distributed.shared_leaves": "distributed.shares.shared_leaves",
    "distributed.slot_dims": "distributed.specs.slot_dims",
    "distributed.sources": "distributed.shares.sources",
    "distributed.stale": "distributed.averaging.stale",
    "distributed.state_sharding": "distributed.specs.state_sharding",
    "distributed.state_specs": "distributed.specs.state_specs",
    "distributed.synchronous": "distributed.averaging.synchronous",
    "distributed.tower": "distributed.averaging.tower",
    "distributed.traps": "distributed.wire.traps",
    "distributed.zero_gather": "distributed.zero.gather",
    "distributed.zero_wire": "distributed.zero.wire",
    "distributions": "training.distributions",
    "docstrings": "values.docstrings",
    "explicit_axes": "base.explicit_axes",
    "extra_args": "values.extra_args",
    "field_kinds": "values.field_kinds",
    "fields": "values.fields",
    "flax_bytes": "values.flax_bytes",
    "forwards": "_names.optax",
    "gradients": "training.derivatives",
    "group_table": "tables.group_table",
    "iterations": "linalg.iterations",
    "jaxprs": "_jax.jaxprs",
    "learning_rate": "run_states.learning_rate",
    "masks": "leaves.masks",
    "matrix_products": "linalg.products",
    "methods": "base.methods",
    "metrics": "run_states.metrics",
    "migration": "run_states.migration",
    "migration.layout": "run_states.migration.layout",
    "migration.match": "run_states.migration.match",
    "migration.migrate": "run_states.migration.migrate",
    "migration.pairs": "run_states.migration.pairs",
    "migration.report": "run_states.migration.report",
    "migration.sources": "run_states.migration.sources",
    "no_gradient": "leaves.no_gradient",
    "norms": "linalg.norms",
    "optax_closures": "run_states.optax_closures",
    "optax_states": "run_states.optax",
    "optimizers.base": "optimizers.optimizer",
    "overflow": "numerics.overflow",
    "part_table": "tables.part_table",
    "placed_bytes": "tables.placed_bytes",
    "polar": "linalg.polar",
    "polytopes": "projections.polytopes",
    "port": "commands.optax_uses",
    "port.calls": "commands.optax_uses.calls",
    "port.differences": "commands.optax_uses.differences",
    "port.files": "commands.optax_uses.files",
    "port.imports": "commands.optax_uses.imports",
    "port.magics": "commands.optax_uses.magics",
    "port.names": "commands.optax_uses.names",
    "port.notebooks": "commands.optax_uses.notebooks",
    "port.report": "commands.optax_uses.report",
    "port.syntax": "commands.optax_uses.syntax",
    "port.uses": "commands.optax_uses.uses",
    "registry": "values.registry",
    "roots": "numerics.roots",
    "row_sparse": "leaves.row_sparse",
    "signatures": "_names.signatures",
    "simplex": "projections.simplex",
    "slot_names": "run_states.slot_names",
    "slot_names.access": "run_states.slot_names.access",
    "slot_names.entries": "run_states.slot_names.entries",
    "slot_names.owners": "run_states.slot_names.owners",
    "slot_names.words": "run_states.slot_names.words",
    "states": "leaves.states",
    "storage": "leaves.storage",
    "storage.blocks": "leaves.storage.blocks",
    "storage.codes": "leaves.storage.codes",
    "storage.crossed": "leaves.storage.crossed",
    "storage.factored": "leaves.storage.factored",
    "storage.memory": "leaves.storage.memory",
    "storage.parameters": "leaves.storage.parameters",
    "storage.rounded": "leaves.storage.rounded",
    "storage.stored": "leaves.storage.stored",
    "text_table": "tables.text_table",
    "transformation": "base.transformation",
    "transforms.bounds": "transforms.lbfgs.bounds",
    "transforms.cauchy": "transforms.lbfgs.cauchy",
    "transforms.compact": "transforms.lbfgs.compact",
    "transforms.dimensions": "transforms.matrices.dimensions",
    "transforms.distributed_shampoo": "transforms.shampoo.distributed_shampoo",
    "transforms.lbfgs_machine": "transforms.lbfgs.machine",
    "transforms.lbfgs_steps": "transforms.lbfgs.lbfgs_steps",
    "transforms.lbfgs_units": "transforms.lbfgs.units",
    "transforms.lbfgsb": "transforms.lbfgs.lbfgsb",
    "transforms.line_search": "transforms.lbfgs.line_search",
    "transforms.matrix_axes": "transforms.matrices.axes",
    "transforms.matrix_leaf": "transforms.matrices.leaf",
    "transforms.matrix_rule": "transforms.matrices.rule",
    "transforms.more_thuente": "transforms.lbfgs.more_thuente",
    "transforms.piece_norms": "transforms.matrices.array_norms",
    "transforms.shampoo_axes": "transforms.shampoo.axes",
    "transforms.shampoo_pieces": "transforms.shampoo.divided_step",
    "transforms.shape_factor": "transforms.matrices.shape_factor",
    "transforms.subspace": "transforms.lbfgs.subspace",
    "transforms.zoom": "transforms.lbfgs.zoom",
    "tree_utils": "tree.tree_utils",
    "wrappers.accumulate": "wrappers.accumulation.accumulate",
    "wrappers.accumulate_rows": "wrappers.accumulation.rows",
    "wrappers.factory_arguments": "wrappers.hyperparams.arguments",
    "wrappers.galore": "wrappers.low_rank.galore",
    "wrappers.galore_pieces": "wrappers.low_rank.placement",
    "wrappers.group_rules": "wrappers.param_groups.rules",
    "wrappers.groups": "wrappers.param_groups.groups",
    "wrappers.inject": "wrappers.hyperparams.inject",
    "wrappers.narrow_params": "wrappers.narrow.narrow_params",
    "wrappers.narrow_steps": "wrappers.narrow.assigned_params",
    "wrappers.param_group": "wrappers.param_groups.param_group",
    "wrappers.schedule_states": "wrappers.hyperparams.schedule_states",
    "wrappers.storage": "wrappers.stored.storage",
    "wrappers.storage_wrapper": "wrappers.stored.wrapper",
}


class _Finder:
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
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
