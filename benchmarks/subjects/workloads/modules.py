"""The text of two workloads: the beginnings of 256 modules of this library, as they once were.

It is a file that does not change, so that every Python and every checkout has the same data: the
first 2,000 characters of the largest modules, in ASCII, in the order of their paths.
"""

import functools
import lzma
from pathlib import Path

TEXT = Path(__file__).with_name("modules.txt.xz")


@functools.cache
def modules() -> tuple[str, ...]:
    """Return the text of each module."""
    return tuple(lzma.decompress(TEXT.read_bytes()).decode("ascii").split("\f"))
