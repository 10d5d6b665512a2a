"""Which module has each public name of a package, and which modules are public themselves."""

from gradxform._names.table import NAMES

# Modules that the docs name as import paths, besides those that are public names. All others are
# where this library keeps things: an import statement finds them, and attributes do not.
PATHS = {
    "gradxform": "assignment losses perturbations second_order",
    "gradxform.commands": "port",
    "gradxform.compat.keras": "keras3",
    "gradxform.distributed": "center ray",
    "gradxform.linalg": "curvature",
    "gradxform.projections": "polytopes",
    "gradxform.testing": "hlo hlo_schedule",
}


def homes_of(package: str) -> dict[str, str]:
    """Return the public names of a package, each with the module that has it.

    A module of the package that is public itself has the package as its home.
    """
    homes = {}
    for module, names in NAMES.get(package, {}).items():
        if names == "*":  # all names of another package
            homes |= homes_of(module)
        else:
            homes |= dict.fromkeys(names.split(), module)
    return homes
