"""Measurements of gradxform beside Optax. Run `python -m benchmarks --help`."""
