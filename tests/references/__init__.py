"""Every rule in NumPy float64, each in the file named as the library's file of the rule.

`from tests import references as ref` gives them all, as `ref.adam`. Of two files the functions have
another form, so they are imported by name: `distributed` (replicas), `row_sparse` (tables).
"""

import importlib
import pathlib

OF_ANOTHER_FORM = {"__init__", "distributed", "row_sparse"}
FAMILIES = [
    importlib.import_module(f"tests.references.{path.stem}")
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))
    if path.stem not in OF_ANOTHER_FORM
]
# After all imports, because a file such as `adam` has the name of a function in it.
_HOMES: dict[str, str] = {}
for _family in FAMILIES:
    _public = {k: v for k, v in vars(_family).items() if not k.startswith("_")}
    for _name, _thing in _public.items():
        if getattr(_thing, "__module__", None) == _family.__name__:
            _other = _HOMES.setdefault(_name, _family.__name__)
            if _other != _family.__name__:
                raise ImportError(
                    f"`ref.{_name}` would be that of {_other} or of {_family.__name__}, which both "
                    "have one. Give one of them another name."
                )
    globals().update(_public)
