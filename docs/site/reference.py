"""The pages of the reference: every public name, described by mkdocstrings from its docstring."""

import contextlib
import inspect
import io
import pkgutil
import re

from docs.site import public
from gradxform.commands import main


def title_of(stem: str) -> str:
    """Return the title of a page of the reference."""
    return public.SUBJECTS.get(stem) or f"gradxform.{_module(stem)}"


def _module(stem: str) -> str:
    for name in public.pages()[stem]:
        return name.module.removeprefix("gradxform.")
    return stem


def address(stem: str) -> str:
    """Return the path of a page, from the folder docs."""
    return f"reference/{stem}.md"


def page(stem: str) -> str:
    """Return a page of the reference as Markdown."""
    names = public.pages()[stem]
    blocks = [f"# {title_of(stem)}"]
    if stem not in public.SUBJECTS:
        doc = inspect.getdoc(pkgutil.resolve_name(names[0].module)) or ""
        blocks.append(doc.split("\n\n")[0])
    others = [n for n in names if public.homes()[n.path] != n.path]
    blocks += [_described(n) for n in names if n not in others]
    if others:
        lines = []
        for n in others:
            target = public.page_of(n.path).removeprefix("reference/")
            home = public.homes()[n.path]
            lines.append(f'- <span id="{n.path}">`{n.name}`</span>: [`{home}`]({target})')
        blocks += ["## Names of other pages", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _described(name: public.Name) -> str:
    """Return what makes mkdocstrings describe a name."""
    module = getattr(name.value, "__module__", None)
    own = getattr(name.value, "__name__", None) == name.name
    if own and isinstance(module, str) and module != name.module and module.startswith("gradxform"):
        # Where it is defined: a package may have a module of that name too.
        return f'<span id="{name.path}"></span>\n\n::: {module}.{name.name}'
    return f"::: {name.path}"


def command_line() -> str:
    """Return the page about the command line: the help that each command prints."""
    first = _help()
    blocks = ["# Command line", f"```text\n{first}\n```"]
    for name in re.findall(r"^    (\w+) ", first, re.MULTILINE):
        blocks += [f"## python -m gradxform {name}", f"```text\n{_help(name)}\n```"]
    return "\n\n".join(blocks) + "\n"


def _help(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().strip()


def index() -> str:
    """Return the first page of the reference: the pages with their numbers of names."""
    lines = ["# Reference", "", "Every public name, by subject.", ""]
    for stem, names in public.pages().items():
        lines.append(f"- [{title_of(stem)}]({stem}.md): {_listed([n.name for n in names])}")
    lines.append("- [Command line](command_line.md): `python -m gradxform`")
    return "\n".join(lines) + "\n"


def _listed(names: list[str], most: int = 6) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
