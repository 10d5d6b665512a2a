"""Replicas that exchange parameters or gradients: all at once, at intervals, or elastically.

Below is `wire`, which says how an array travels.
"""
