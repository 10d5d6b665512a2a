"""Rows."""

from tests.catalogue.base import Case

TRANSFORMS: dict[str, Case] = {}
OPTIMIZERS: dict[str, Case] = {}
