"""The table of public names, `_names/table.py`: `python -m tests.project.names` writes it anew.

What is public is read from the sources: what a package imports for type checkers, and what files
say. Of some packages it is all that their files say; a stub beside their `__init__.py`, written
too, says so to type checkers. What configs may name besides is found by importing every module.
"""

import ast
import functools
import importlib
import inspect
import itertools
import pathlib
import textwrap

from gradxform._names.table import NAMES

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "gradxform" / "_names" / "table.py"
# The doors whose factories configs may name, as `keras:Adam`; of a factory that several offer, the
# first of these counts.
DOORS = {
    "keras": "keras.keras",
    "keras3": "keras.keras3",
    "tf1": "tf1.tf1",
    "tf_contrib": "tf_contrib.tf_contrib",
    "returnn": "returnn.returnn",
}

# Packages of all that the files in their folders make public, and what they have from elsewhere.
OF_FILES: dict[str, dict[str, list[str]]] = {
    "gradxform.distributed": {"gradxform.testing": ["hlo", "hlo_schedule"]},
    "gradxform.linalg.curvature": {},
    "gradxform.optimizers": {},
    "gradxform.schedules": {},
    "gradxform.transforms": {},
    "gradxform.wrappers": {},
}
# Packages with a stub: they have names of so many files that no list is kept by hand.
STUBS = ["gradxform", *OF_FILES]
# What these decorate is public, unless the file has an `__all__` or the name begins with "_".
DECORATORS = {"optimizer", "transform", "value"}

HEAD = '''"""Where each name is. Written by `make tables`; do not edit.

A package or module, its files, and the names in each that it offers. "*" stands for all names of
another package, and a package in its own place for its public modules.
"""

# ruff: noqa: E501
'''


def source_of(module: str) -> pathlib.Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def modules() -> tuple[str, ...]:
    """Every module of the library but `__main__`, read from the folder."""
    paths = sorted((ROOT / "gradxform").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return tuple(x.removesuffix(".__init__") for x in names if not x.endswith("__main__"))


@functools.cache
def public_in(module: str) -> dict[str, str]:
    """What a package imports for type checkers: each file with its names, or with "*"."""
    found = {k: [*names] for k, names in OF_FILES.get(module, {}).items()}
    if module in OF_FILES:
        for file in modules():
            if file.startswith(f"{module}.") and source_of(file).name != "__init__.py":
                found |= {file: said} if (said := said_by(file)) else {}
    for node in ast.parse(source_of(module).read_text("utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom) and statement.module, module
                names = [alias.name for alias in statement.names]
                if names == ["*"]:
                    is_package = source_of(statement.module).name == "__init__.py"
                    names = ["*"] if is_package else said_by(statement.module)
                for name in names:
                    own = statement.module == module
                    file = module if own else file_of(statement.module, name)
                    found.setdefault(file, []).append(name)
    return {file: " ".join(sorted(names)) for file, names in sorted(found.items())}


def packages() -> list[str]:
    """The packages and modules that load their names when somebody asks for them."""
    return [module for module in modules() if is_lazy(module)]


def file_of(module: str, name: str) -> str:
    """The module that has a name, if another one only loads it."""
    if is_lazy(module) and name != "*":
        files = public_in(module)
        return next((file for file, names in files.items() if name in names.split()), module)
    return module


def said_by(module: str) -> list[str]:
    """What a file makes public: its `__all__`, or else what is decorated, and states."""
    body = ast.parse(source_of(module).read_text("utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not node.name.startswith("_")
        and (is_state(node) or DECORATORS & set(map(name_of_decorator, node.decorator_list)))
    ]


def is_state(node: ast.ClassDef | ast.FunctionDef) -> bool:
    is_tuple = isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
    return is_tuple and node.name.endswith("State")


def name_of_decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def is_lazy(module: str) -> bool:
    return (
        "public_names(" in source_of(module).read_text("utf-8")
        and module != "gradxform._names.lazy"
    )


def registered() -> dict[str, str]:
    """What configs may name: each module with the names of its parts."""
    from gradxform.values.registry import REGISTRY

    for module in modules():
        importlib.import_module(module)
    found: dict[str, list[str]] = {}
    elsewhere = {name: module for module in modules() for name in registered_by(module)}
    for name, part in REGISTRY._parts.items():
        home = elsewhere.get(name, part.__module__)
        if home.startswith("gradxform."):
            found.setdefault(home, []).append(name)
    factories: set[object] = set()
    for door, file in DOORS.items():
        module = importlib.import_module(f"gradxform.compat.{file}")
        for name, x in vars(module).items():
            if returns_optimizer(name, x) and x not in factories:
                factories.add(x)
                found.setdefault(module.__name__, []).append(f"{door}:{name}")
    return {module: " ".join(sorted(names)) for module, names in sorted(found.items())}


def registered_by(module: str) -> list[str]:
    """The names that a module registers by a call of `register`, of functions of any module."""
    calls = [
        node.value
        for node in ast.parse(source_of(module).read_text("utf-8")).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    of_register = [x for x in calls if ast.unparse(x.func) == "register" and x.args]
    return [x.args[0].value for x in of_register if isinstance(x.args[0], ast.Constant)]


def returns_optimizer(name: str, x: object) -> bool:
    from gradxform.base import GradientTransformation

    if not (inspect.isfunction(x) and x.__name__[0].isupper()):
        return False
    returns = inspect.signature(x).return_annotation
    return isinstance(returns, type) and issubclass(returns, GradientTransformation)


def written(name: str, about: str, table: dict[str, dict[str, str]]) -> str:
    lines = [f"# {about}", f"{name}: dict[str, dict[str, str]] = {{"]
    for package, files in table.items():
        lines.append(f'    "{package}": {{')
        lines += [f'        "{file}": "{names}",' for file, names in files.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def public_names() -> dict[str, dict[str, str]]:
    """What each package offers, as far as the sources say it: its files, and their names."""
    public = {module: public_in(module) for module in packages()}
    return {module: files for module, files in public.items() if files}


def table() -> str:
    """The text of the table, as it should be."""
    public = public_names()
    known = homes_in("gradxform", public)
    for module in public:
        own = homes_in(module, public)
        if own.items() <= known.items() and source_of(module).name != "__init__.py":
            public[module] = {"gradxform": " ".join(sorted(own))}  # where their homes are said
    names = written("NAMES", "The public names.", public)
    lines = ["# What configs may name: of these packages, where they have it, or of these modules."]
    lines.append("CONFIG_NAMES: dict[str, str] = {")
    for module, of_module in by_package(registered(), public).items():
        # Each letter begins a line, so that a new name does not move all that come after it.
        letters = itertools.groupby(sorted(of_module), lambda name: name[0])
        many = len(of_module) > 8
        groups = (
            [" ".join(names) for _, names in letters] if many else [" ".join(sorted(of_module))]
        )
        first, *rest = (row for group in groups for row in textwrap.wrap(group, 90))
        if rest:
            rows = [f'        "{first}"', *(f'        " {row}"' for row in rest)]
            lines += [f'    "{module}": (', *rows, "    ),"]
        else:
            lines.append(f'    "{module}": "{first}",')
    return "\n".join([HEAD, names, *lines, "}", ""])


def homes_in(package: str, public: dict[str, dict[str, str]]) -> dict[str, str]:
    """The names that a package offers, each with its file."""
    own: dict[str, str] = {}
    for file, names in public[package].items():
        own |= homes_in(file, public) if names == "*" else dict.fromkeys(names.split(), file)
    return own


def by_package(homes: dict[str, str], public: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Names under the package that offers them from their home, so that no home is said twice."""
    packages = {k: homes_in(k, public) for k in ("gradxform", "gradxform.distributed")}
    found: dict[str, list[str]] = {}
    for module, names in homes.items():
        for name in names.split():
            offering = (k for k, own in packages.items() if own.get(name) == module)
            found.setdefault(next(offering, module), []).append(name)
    return dict(sorted(found.items()))


def stub_of(package: str) -> pathlib.Path:
    return source_of(package).with_suffix(".pyi")


def stub(package: str) -> str:
    """The text of a package's stub: where its names are, for type checkers."""
    from gradxform._names.homes import homes_of
    from gradxform._names.lazy import FORWARDS

    lines = ["# Written by `make tables`; do not edit."]
    found: dict[str, list[str]] = {}
    for name, file in homes_in(package, {k: public_in(k) for k in packages()}).items():
        found.setdefault(file, []).append(name)
    own = {name for names in found.values() for name in names}
    for name in sorted({*FORWARDS.get(package, "").split()} - own):
        found.setdefault(homes_of("gradxform")[name], []).append(name)
    if package == "gradxform":
        found["gradxform._names.version"] = ["__version__"]
    for file, names in sorted(found.items()):
        names = sorted(names)
        line = f"from {file} import {', '.join(f'{x} as {x}' for x in names)}"
        if len(line) > 100:
            each = [f"    {x} as {x}," for x in names]
            line = "\n".join([f"from {file} import (", *each, ")"])
        lines.append(line)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    NAMES.update(public_names())  # a file that needs a name which has moved can be imported
    TABLE.write_text(table(), "utf-8")
    for _package in STUBS:
        stub_of(_package).write_text(stub(_package), "utf-8")
