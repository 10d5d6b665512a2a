"""What the guides for users of other libraries have: `elsewhere.json`."""

import functools
import json
import pathlib
from typing import Any

DATA = pathlib.Path(__file__).with_suffix(".json")


@functools.cache
def elsewhere() -> tuple[dict[str, Any], ...]:
    """Return the rows of the guides for users of other libraries."""
    return tuple(json.loads(DATA.read_text("utf-8")))
