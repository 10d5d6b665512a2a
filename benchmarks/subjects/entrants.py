"""The optimizers of the section `race`: all of the library, and ten of Optax beside them."""

import functools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import optax
import optax.contrib

from benchmarks.options import Refused
from benchmarks.tables.race import THEIRS
from docs.site import samples
from gradxform.commands.catalog import Entry, registered_parts

# The runs that the site shows of every part: among them each optimizer's best rate on the digits.
PARTS = Path(samples.__file__).parent / "data" / "parts.jsonl"

# Learning rates to try, as multiples of the usual one.
MULTIPLES = tuple(10 ** (k / 2) for k in range(-4, 4))

LEFT_OUT = {
    "dpsgd": "takes one gradient for each example, and its noise is for privacy",
    "muonclip": "needs the logits of attention layers",
    "newton_muon": "needs the moments of the inputs of layers",
    "optimistic_adam": "is the deprecated form of optimistic_adam_v2",
    "spel": "keeps matrices orthogonal, which makes the problem another one",
}
# Optax's own, which must take the steps that ours take.
CONTROL = (
    "adabelief",
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "lion",
    "muon",
    "rmsprop",
    "sgd",
    "yogi",
)


class Entrant(NamedTuple):
    """An optimizer that races.

    Attributes:
      name: its name; those of Optax begin with `optax.`.
      make: makes it with a learning rate.
      usual: its usual learning rate; None if it does not take one.
      config: what tells it from other versions of itself.
      same_examples: whether it compares losses of different steps, of the same examples therefore.
      takes_rows: whether row-sparse gradients are worth trying.
    """

    name: str
    make: Callable[[Any], Any]
    usual: float | None
    config: str
    same_examples: bool = False
    takes_rows: bool = True

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates to try; none for an optimizer that does not take one."""
        return tuple(rounded(self.usual * m) for m in MULTIPLES) if self.usual else ()


def rounded(x: float) -> float:
    """Return a number to three digits, as files have them."""
    return float(f"{x:.3g}")


def names() -> tuple[str, ...]:
    """Return the names of all that race: the optimizers of the library, then the control."""
    ours = [e.name for e in _optimizers() if e.name not in LEFT_OUT]
    return (*ours, *(THEIRS + name for name in CONTROL))


def entrant(name: str) -> Entrant:
    """Return the entrant of a name.

    Raises:
      Refused: if the site does not know the optimizer's usual learning rate.
    """
    own = name.removeprefix(THEIRS)
    entry = next(e for e in _optimizers() if e.name == own)
    usual = _usual(own) if samples.takes_rate(entry) else None
    if name != own:
        return Entrant(name, _theirs(own), usual, f"{name} {optax.__version__}", takes_rows=False)
    make = samples.make_of(entry)
    assert make is not None  # only wrappers do without a sample

    def quietly(rate: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(rate)

    same = own in samples.ON_ALL_EXAMPLES
    return Entrant(name, quietly, usual, str(quietly(1e-3)), same)


def with_other_arguments() -> tuple[str, ...]:
    """Return the optimizers that do not race with their defaults, but as the site shows them."""
    return tuple(name for name in samples.OPTIMIZERS if name not in LEFT_OUT)


def _theirs(name: str) -> Callable[[Any], Any]:
    # Names that moved to `contrib` are still in `optax`, with a warning.
    factory = getattr(optax.contrib, name, None) or getattr(optax, name)
    return lambda rate: optax.with_extra_args_support(factory(rate))


def _optimizers() -> list[Entry]:
    return [e for e in registered_parts("optimizers") if ":" not in e.name]


@functools.cache
def _best_rates() -> dict[str, float]:
    """Return the best learning rate of every part on the digits, as the site shows it."""
    lines = map(json.loads, PARTS.read_text(encoding="utf-8").splitlines())
    return {line["name"]: line["run"]["race"]["rate"] for line in lines if line["run"]}


def _usual(name: str) -> float:
    rate = _best_rates().get(name)
    if rate is None:
        raise Refused(
            f"{PARTS.name} does not have the usual learning rate of {name}; "
            f'run `make docs-data ARGS="{name}"`.'
        )
    return 10 ** (round(2 * math.log10(rate)) / 2)  # the file has three digits of it
