"""Arguments of TensorFlow that concern its graphs: they are checked, and then ignored."""

from typing import Any

from gradxform.errors import require_bool, shown

GATES = {"GATE_NONE": 0, "GATE_OP": 1, "GATE_GRAPH": 2}
# ADD_N (the default), EXPERIMENTAL_TREE and EXPERIMENTAL_ACCUMULATE_N of tf.AggregationMethod.
AGGREGATIONS = (0, 1, 2)


def check_name(name: Any) -> None:
    """Require a name that is not empty, or None."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"Optimizer: name must be a string, got {shown(name)}.")
    if name == "":
        raise ValueError("Optimizer: name must not be empty; leave it out for the transform's.")


def check_graph_arguments(gate: Any, aggregation: Any, colocate: Any, name: Any) -> None:
    """Check the arguments that TensorFlow 1 has for its graphs."""
    if isinstance(gate, bool) or gate not in GATES.values():
        listed = ", ".join(f"{k} ({v})" for k, v in GATES.items())
        raise ValueError(f"Optimizer: gate_gradients must be one of {listed}, got {shown(gate)}.")
    if isinstance(aggregation, bool) or aggregation not in (None, *AGGREGATIONS):
        raise ValueError(
            "Optimizer: aggregation_method must be None, 0 (ADD_N), 1 (EXPERIMENTAL_TREE) or 2 "
            f"(EXPERIMENTAL_ACCUMULATE_N), got {shown(aggregation)}."
        )
    require_bool("Optimizer", "colocate_gradients_with_ops", colocate)
    check_name(name)
