"""All compositions, by the sections of the page. A new one is a row of the file of its section."""

from gradxform.commands.finding import of_averages, of_decays, of_matrices, of_steps
from gradxform.commands.finding.composition import Composition

SECTIONS: dict[str, list[Composition]] = {
    "Muon, SOAP and their kin": of_matrices.ROWS,
    "Weight decay and groups": of_decays.ROWS,
    "Averages of the parameters": of_averages.ROWS,
    "Gradients and steps": of_steps.ROWS,
}
COMPOSITIONS = [row for rows in SECTIONS.values() for row in rows]
