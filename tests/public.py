"""The public names of a module, as a dict; they are loaded when they are asked for."""


def names_of(module):
    """What a module offers, by name."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
