"""The table of all parts, one family a file: adding an optimizer is adding a row.

Every promise of tests/test_contract.py is tested for every row, and every public transform, wrapper
and optimizer must have one.
"""

from tests.catalogue import contrib, core, lazy, matrix, optax_rules, replicas, rows, seeds
from tests.catalogue.base import Case as Case, gradients as gradients, params as params

FAMILIES = (core, seeds, optax_rules, contrib, matrix, rows, lazy, replicas)


def _all(kind: str) -> dict[str, Case]:
    """The rows of one kind from every family; no name may occur twice."""
    found: dict[str, Case] = {}
    for family in FAMILIES:
        rows = getattr(family, kind, {})
        assert not set(rows) & set(found), set(rows) & set(found)
        found |= rows
    return found


TRANSFORMS, WRAPPERS, OPTIMIZERS = _all("TRANSFORMS"), _all("WRAPPERS"), _all("OPTIMIZERS")
CASES = TRANSFORMS | WRAPPERS | OPTIMIZERS
# Calls that must be refused: (call, error, words of the message).
REFUSED = [row for family in FAMILIES for row in getattr(family, "REFUSED", [])]
