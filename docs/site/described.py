"""An extension of griffe: docstrings and signatures as they are at run time.

Docstrings of recipes are completed while they are imported, and the signature of a transform is
made from its fields. Both are what `help` prints.
"""

import importlib
import inspect
from typing import Any

import griffe

from docs.site import papers


class Described(griffe.Extension):
    """Takes docstrings and signatures from the imported library."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Take the docstring of a public function."""
        found = _imported(func)
        if found is not None:
            _take_docstring(func, found)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Take the docstring of a public class, and its signature as that of `__init__`."""
        found = _imported(cls)
        if not isinstance(found, type):
            return
        _take_docstring(cls, found)
        try:
            signature = inspect.signature(found)
        except (TypeError, ValueError):
            return
        cls.labels.discard("dataclass")
        init = griffe.Function("__init__", parameters=griffe.Parameters(*_parameters(signature)))
        cls.set_member("__init__", init)


def _imported(obj: griffe.Object) -> Any:
    """Return the object, if it is at the top of a module."""
    if obj.parent is None or not obj.parent.is_module or obj.name.startswith("_"):
        return None
    return getattr(importlib.import_module(obj.parent.path), obj.name, None)


def _take_docstring(obj: griffe.Object, found: Any) -> None:
    own = not isinstance(found, type) or "__doc__" in vars(found)
    text = inspect.getdoc(found) if own else None
    if text and not (isinstance(found, type) and text.startswith(f"{found.__name__}(")):
        obj.docstring = griffe.Docstring(papers.linked(text), parent=obj)


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


def _parameters(signature: inspect.Signature) -> list[griffe.Parameter]:
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    found = [itself]
    for p in signature.parameters.values():
        default = None if p.default is p.empty else " ".join(repr(p.default).split())
        annotation = None if p.annotation is p.empty else _annotation(p.annotation)
        parameter = griffe.Parameter(p.name, kind=_KINDS[p.kind], default=default)
        parameter.annotation = annotation
        found.append(parameter)
    return found


def _annotation(x: Any) -> str | None:
    text = inspect.formatannotation(x)
    return text.replace("typing.", "") if len(text) <= 60 and "<" not in text else None
