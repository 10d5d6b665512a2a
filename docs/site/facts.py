"""What the site says of each optimizer and wrapper."""

import dataclasses
from typing import Any

from docs.site import look, recorded
from gradxform.commands.catalog import Entry


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a part.

    Args:
      entry: the part.
      config: the transform that was drawn, as it prints; "" without.
      data: what its runs have shown, and what it says of itself, see `look.seen`; {} without.
      badges: the promises that it keeps.
    """

    entry: Entry
    config: str
    data: dict[str, Any]
    badges: tuple[str, ...]

    @property
    def slots(self) -> str:
        """How many numbers it keeps for each parameter: "0", "1", ... or "factored"."""
        if not self.data:
            return ""
        whole = round(self.data["bytes"] / 4)
        if abs(self.data["bytes"] / 4 - whole) < 1e-3 and (whole or self.data["bytes"] < 1e-3):
            return str(whole)
        return "factored"


def collect() -> dict[str, Facts]:
    """Return the facts of all optimizers and wrappers by name, in the order of the catalogue."""
    facts, lines = {}, recorded.read()
    for part in recorded.parts():
        line, tx = lines[part.name], recorded.sample_of(part)
        data = {} if tx is None else line["run"] | look.seen(tx)
        facts[part.name] = Facts(part, line["config"], data, tuple(line["badges"]))
    return facts
