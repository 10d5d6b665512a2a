"""The rows of the part that counts updates."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS = {
    "count_updates": Case(gx.count_updates(), ref.scale(1.0)),
}
