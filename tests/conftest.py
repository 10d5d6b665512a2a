"""Strictness is set once, for every test: eight devices, no implicit promotion, no warnings."""

import os

# Before JAX looks at its devices.
os.environ["JAX_PLATFORMS"] = "cpu"
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the time goes to compiling programs that run once. What is left out are LLVM's costly
# passes; what XLA does to a program stays.
jax.config.update("jax_disable_most_optimizations", True)

# A compilation in the middle of an example is no sign of a slow test.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.load_profile("project")
