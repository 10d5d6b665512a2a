"""Wrappers: each takes a transformation and changes when, where or on what it runs."""
