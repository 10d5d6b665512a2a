"""The table of all parts: adding an optimizer is adding a row.

The rows of a rule and of its recipes stand in the file named as the rule's file in
`gradxform/transforms/`; those of wrappers, of `distributed` and of schedules in one file each.
A new file is found by itself.

Every promise of tests/test_contract.py is tested for every row, and every public transform, wrapper
and optimizer must have one.
"""

import importlib
import pathlib

from tests.catalogue.case import Case as Case, gradients as gradients, params as params

FAMILIES = {
    path.stem: importlib.import_module(f"tests.catalogue.{path.stem}")
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))
    if path.stem not in ("__init__", "case")
}


def _all(kind: str) -> dict[str, Case]:
    """The rows of one kind from every family; no name may occur twice."""
    cases: dict[str, Case] = {}
    for family in FAMILIES.values():
        rows = getattr(family, kind, {})
        assert not set(rows) & set(cases), set(rows) & set(cases)
        cases |= rows
    return cases


TRANSFORMS, WRAPPERS, OPTIMIZERS = _all("TRANSFORMS"), _all("WRAPPERS"), _all("OPTIMIZERS")
CASES = TRANSFORMS | WRAPPERS | OPTIMIZERS
# Calls that must be refused: rows (text of the call, error, *words of its message) of each family,
# and the names of its file, which the text may use.
REFUSED = [(getattr(family, "REFUSED", []), vars(family)) for family in FAMILIES.values()]
