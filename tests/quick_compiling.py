"""The switches with which programs that run once compile soonest. Nothing here imports JAX."""

import importlib.metadata
import importlib.util


def xla_flags() -> str:
    """Return the switches of XLA:CPU for `XLA_FLAGS`."""
    # The compiler for TPUs reads the same switches, and an unknown one ends the process.
    if importlib.util.find_spec("libtpu") is not None:
        return ""
    # A program that runs once is compiled in one piece sooner than in 32 that threads could share.
    flags = "--xla_cpu_parallel_codegen_split_count=1"
    # Where XLA:CPU compiles fusions by way of MLIR, it takes half as long again for programs that
    # run once. Only this version has the switch.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags += " --xla_cpu_use_fusion_emitters=false"
    return flags
