"""The promises that a part keeps, as badges. A badge is given by a promise that was just tried.

The rows of tests/catalogue say how to try them, as they do for the tests of the contract.
"""

import dataclasses
import warnings
from typing import NamedTuple

from gradxform.testing import PROMISES, Broken, Case, Skipped, example_params
from gradxform.types import Params
from tests.catalogue import CASES


class Badge(NamedTuple):
    """What a kept promise is called on the site."""

    label: str
    page: str  # that explains it


ROWS = "touches_rows_or_refuses"
BADGES = {
    ROWS: Badge("row-sparse gradients", "sparse.md"),
    "narrow_parameters_have_wide_slots": Badge("bfloat16", "guides/low_precision.md"),
    "sharded_equals_unsharded": Badge("sharded state", "guides/flax_sharding.md"),
    "runs_inside_optax_and_optax_inside": Badge("inside Optax", "guides/from_optax.md"),
    "owns_its_buffers": Badge("donated buffers", "guides/first_training.md"),
    "goes_to_json_and_back": Badge("JSON config", "guides/checkpoints.md"),
}


def row_of(name: str) -> str | None:
    """Return the first row of the catalogue for a part."""
    return next((row for row in CASES if row.split("/")[0] == name), None)


def _small() -> Params:
    return {name: x for name, x in example_params().items() if name in ("w", "b")}


def _keep(name: str, small: Case, whole: Case) -> None:
    """Require a promise on a part of the parameters, or else on all, as the contract's tests do."""
    try:
        PROMISES[name](small)
    except Broken:  # few parameters may be an unlucky choice
        if small is whole:
            raise
        PROMISES[name](whole)


def kept(row: str) -> list[str]:
    """Try the promises on a row of the catalogue, and return the names of those that it keeps.

    What breaks one here does not get the badge; the tests of the contract say what is wrong.
    """
    whole = small = CASES[row]
    if whole.tree is None and "deep" not in repr(whole.tx):
        small = dataclasses.replace(whole, tree=_small())  # it compiles in half of the time
    found = []
    for name in BADGES:
        if name == ROWS and not whole.rows:
            continue  # it keeps the promise by refusing
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _keep(name, whole if name == ROWS else small, whole)
        except (Skipped, Broken):
            continue
        found.append(name)
    return found
