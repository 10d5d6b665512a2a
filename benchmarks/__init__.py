"""Comparisons of gradxform with Optax. Run `python -m benchmarks --help`."""

import os

# Its threads and those of XLA wait for each other on CPUs. It reads this when JAX loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
