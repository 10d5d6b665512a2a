"""The sections by name. A new one is a module with a `SECTION` and a line here."""

from benchmarks.options import Section
from benchmarks.sections import (
    backward,
    compression,
    core,
    curvature,
    imports,
    linesearch,
    losses,
    matrix,
    model,
    optimizers,
    pods,
    race,
    rows,
    storage,
    tpu,
    wire,
    wrappers,
)

SECTIONS: dict[str, Section] = {
    "core": core.SECTION,
    "optimizers": optimizers.SECTION,
    "rows": rows.SECTION,
    "imports": imports.SECTION,
    "bytes": wire.SECTION,
    "compression": compression.SECTION,
    "pods": pods.SECTION,
    "race": race.SECTION,
    "linesearch": linesearch.SECTION,
    "curvature": curvature.SECTION,
    "losses": losses.SECTION,
    "matrix": matrix.SECTION,
    "model": model.SECTION,
    "storage": storage.SECTION,
    "backward": backward.SECTION,
    "tpu": tpu.SECTION,
    "wrappers": wrappers.SECTION,
}
DEFAULT_SECTIONS = ("core",)
