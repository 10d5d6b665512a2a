"""Signatures and annotations of functions and classes that others have written.

Python 3.14 evaluates an annotation when somebody reads it, so that a name which only a type checker
imports raises here and not where the function is defined. Such a name is read as a `ForwardRef`.
"""

import inspect
import sys
from typing import Any

_SIGNATURE: dict[str, Any] = {}
_ANNOTATIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _SIGNATURE = {"annotation_format": annotationlib.Format.FORWARDREF}
    _ANNOTATIONS = {"format": annotationlib.Format.FORWARDREF}


def signature_of(function: Any) -> inspect.Signature:
    """Return `inspect.signature` of a function or a class, whatever its annotations name.

    Raises:
      TypeError, ValueError: as `inspect.signature` does.
    """
    return inspect.signature(function, **_SIGNATURE)


def annotations_of(x: Any) -> dict[str, Any]:
    """Return the annotations of a function or a class of its own, whatever they name."""
    return inspect.get_annotations(x, **_ANNOTATIONS)
