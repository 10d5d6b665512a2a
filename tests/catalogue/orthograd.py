"""A row for `gradxform/transforms/orthograd.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS: dict[str, Case] = {
    "orthograd": Case(
        gx.orthograd(),
        ref.orthograd,
        rows=False,
        huge_ok=1 / 8,  # entries may grow where others shrink
    ),
}
