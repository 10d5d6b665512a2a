"""Layers that a loss scans over, and that a step may update within the backward pass."""
