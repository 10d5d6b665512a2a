"""Transforms: each changes updates by a rule of its own. One family a file."""
