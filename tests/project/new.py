"""New rules, wrappers and schedules: `python -m tests.project.new rule adax` writes their files.

What is written runs, and keeps every promise: a rule is an average of gradients, a wrapper takes
half of each step, a schedule falls like 1 / n. The author puts the formula of the paper in their
place, in the code and in its reference, and fills in what stands in [brackets].
"""

import keyword
import sys

from tests.environment import ROOT

CHANGELOG, ADDED = ROOT / "CHANGELOG.md", "### Added\n"

RULE = {
    "gradxform/transforms/{name}.py": '''\
"""{Title}: [what it does, in a few words]."""

from typing import NamedTuple

from gradxform.base import ArrayRule, transform
from gradxform.types import Decay, Slot


class ScaleBy{Title}State(NamedTuple):
    """State of `scale_by_{name}`."""

    mu: Slot  # the average m


@transform
class scale_by_{name}(ArrayRule):
    """Rescale updates by [what the rule does, in a line].

    Update rule, from m = 0:

        m <- b1 m + (1 - b1) g
        u = m

    Args:
      b1: the decay of the average, in [0, 1).

    Reference: [authors, title, year, algorithm or equation].
    """

    b1: Decay = 0.9

    State = ScaleBy{Title}State
    locality = "entry"
    averages_of = (("mu", "g"),)
    handles_complex = True

    def rule(self, g, m, p):
        """Return the update and the average."""
        m = self.b1 * m + (1 - self.b1) * g
        return m, m
''',
    "gradxform/optimizers/{name}.py": '''\
"""{Title}: [what it does, in a few words]."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.{name} import scale_by_{name}
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def {name}(learning_rate: ScalarOrSchedule, b1: float = 0.9) -> chain:
    """{Title}: [the same in a sentence, and which rate to begin with].

    See `scale_by_{name}` and `scale_by_learning_rate` for the arguments.
    """
    return chain(scale_by_{name}(b1), scale_by_learning_rate(learning_rate))
''',
    "tests/references/{name}.py": '''\
"""The rule of `gradxform/transforms/{name}.py` in NumPy float64."""

from tests.references.base import Reference, zeros


def {name}(b1):
    """[Authors, algorithm or equation], from the paper and not from the code."""

    def step(g, slots, p, t):
        m = b1 * slots[0] + (1 - b1) * g
        return m, (m,)

    return Reference(zeros(1), step)
''',
    "tests/catalogue/{name}.py": '''\
"""Rows for `gradxform/transforms/{name}.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {{
    "scale_by_{name}": Case(gx.scale_by_{name}(0.8), ref.{name}(0.8)),
}}


OPTIMIZERS: dict[str, Case] = {{
    "{name}": Case(gx.{name}(0.1, 0.7), with_lr(0.1, ref.{name}(0.7))),
}}
''',
}

WRAPPER = {
    "gradxform/wrappers/{name}.py": '''\
"""[What the wrapper does to the steps of what it holds]."""

from typing import Any

from gradxform.base import transform
from gradxform.types import UnitInterval
from gradxform.wrappers.after_step import AfterStep


@transform
class {name}(AfterStep):
    """[Change each step, in a line].

    Update rule, with u' the update of the inner transform:

        u = share u'

    Args:
      inner: the optimizer.
      share: the share of each step that is taken, in [0, 1].

    Reference: [authors, title, year, algorithm or equation].
    """

    inner: Any
    share: UnitInterval = 0.5

    reads_params = False
    why_no_rows = "changes whole arrays"

    def after(self, u, g, p, leaf):
        """Return the share of the inner update."""
        return self.share * u
''',
    "tests/references/{name}.py": '''\
"""The wrapper of `gradxform/wrappers/{name}.py` in NumPy float64."""

from tests.references.base import TreeReference, as_tree


def {name}(inner, share):
    """[Authors, algorithm or equation], from the paper and not from the code."""
    rule = as_tree(inner)

    def step(gs, state, ps, t):
        us, state = rule.step(gs, state, ps, t)
        return [share * u for u in us], state

    return TreeReference(rule.start, step)
''',
    "tests/catalogue/{name}.py": '''\
"""Rows for `gradxform/wrappers/{name}.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {{
    "{name}": Case(
        gx.{name}(gx.adam(0.1), 0.25),
        ref.{name}(with_lr(0.1, ADAM), 0.25),
        rows=False,
    ),
}}
''',
}

SCHEDULE = {
    "gradxform/schedules/{name}.py": '''\
"""[What falls or rises, and why]."""

from typing import Any

from gradxform.numerics import scalar
from gradxform.schedules.schedule import Schedule, as_count, number_of_field
from gradxform.types import Array, NonNegative
from gradxform.values.fields import value


@value
class {name}(Schedule):
    """[What the value does, in a line].

    Value, with n the number of earlier steps:

        y(n) = init_value / (1 + n)

    Args:
      init_value: the value at the first step, at least 0.

    Reference: [authors, title, year, section].
    """

    init_value: NonNegative

    def __call__(self, count: Any) -> Array:
        """Return the value after `count` steps."""
        return number_of_field(self.init_value) / (1 + scalar(as_count(count)))
''',
}

KINDS = {"rule": RULE, "wrapper": WRAPPER, "schedule": SCHEDULE}
# What cannot be written for the author, by kind.
REST = {
    "rule": "Write the formula into the rule and its reference.",
    "wrapper": "Write the formula into `after` and its reference.",
    "schedule": "Write the formula into `__call__`, and lines with values into the lists of "
    "tests/schedules/test_schedules.py (a test says which).",
}


def texts(kind: str, name: str) -> dict[str, str]:
    """Return the files of a new part, each with its text."""
    title = "".join(word.capitalize() for word in name.split("_"))
    return {
        path.format(name=name): with_sorted_imports(text.format(name=name, Title=title))
        for path, text in KINDS[kind].items()
    }


def with_sorted_imports(text: str) -> str:
    """Return a text with its imports from the library in order, which the new name decides."""
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if line.startswith("from gradxform.")]
    for i, line in zip(places, sorted(lines[i] for i in places), strict=True):
        lines[i] = line
    return "\n".join([*lines, ""])


def write(kind: str, name: str) -> list[str]:
    """Write the files of a new part, and its line of the changelog; return what was written.

    Raises:
      SystemExit: if the name cannot be one of Python, or a file is there already.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise SystemExit(f"{name!r} must be a lower-case name of Python, such as adax.")
    files = texts(kind, name)
    for path in files:
        if (ROOT / path).exists():
            raise SystemExit(f"{path} is there already: choose another name, or edit it.")
    for path, text in files.items():
        (ROOT / path).write_text(text, "utf-8")
    log = CHANGELOG.read_text("utf-8")
    line = f"\n- `{name}`: [what users can do with it].\n"
    CHANGELOG.write_text(log.replace(ADDED, ADDED + line, 1), "utf-8")
    return [*files, CHANGELOG.name]


if __name__ == "__main__":
    _kind, _name = sys.argv[1:]
    print("Written:", *write(_kind, _name), sep="\n  ")
    print(REST[_kind], f"Then run `make tables` and `make check NAME={_name}`.")
