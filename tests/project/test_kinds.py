"""Every wrapper is of one of the four kinds in CONTRIBUTING.md, or says why it is not."""

import importlib

from gradxform.base import Transform
from gradxform.wrappers.after_step import AfterStep
from gradxform.wrappers.average import Averager
from gradxform.wrappers.checks import Guard
from gradxform.wrappers.parts import StatelessWrapper
from tests.project.names import modules

KINDS = AfterStep, Averager, Guard, StatelessWrapper


def below(base):
    for cls in base.__subclasses__():
        yield cls
        yield from below(cls)


def holds_one(cls):
    return cls.holds or "inner" in getattr(cls, "__dataclass_fields__", {})


def test_a_wrapper_of_no_kind_says_why():
    for module in modules():
        importlib.import_module(module)
    others = {
        cls
        for cls in below(Transform)
        if cls.__module__.startswith("gradxform.") and not cls.__name__.startswith("_")
        if holds_one(cls) and not issubclass(cls, KINDS)
    }
    assert len(others) > 15
    silent = [
        f"{cls.__module__}.{cls.__name__}"
        for cls in others
        if not any("Of its own kind:" in (base.__doc__ or "") for base in cls.__mro__)
    ]
    assert sorted(silent) == []
