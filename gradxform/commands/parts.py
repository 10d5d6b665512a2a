"""`list` and `show`: the parts of the library."""

import argparse
import json
import pathlib
import shlex
import shutil
import textwrap
from collections.abc import Iterator

from gradxform.commands.catalog import KINDS, Entry, registered_part, registered_parts
from gradxform.commands.finding import find
from gradxform.commands.parser import Parser, program
from gradxform.commands.screen import rich_console, show_tables
from gradxform.errors import did_you_mean
from gradxform.tables.text_table import Column, Line, Table, wrapped_lines

# Between these lines of a Markdown file, `list --markdown --into FILE` writes its table.
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"
# The widest column of names; the text after a longer name begins on the next line.
COLUMN = 26


def add_list(parser: Parser) -> None:
    """Add the arguments of `list`."""
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="as JSON")
    formats.add_argument("--markdown", action="store_true", help="as a Markdown table")
    parser.add_argument(
        "--into",
        type=pathlib.Path,
        metavar="FILE",
        help="with --markdown and one KIND: write the table into FILE, between the lines "
        f"'{BEGIN.format('KIND')}' and '{END.format('KIND')}'",
    )
    parser.set_defaults(run=list_parts)


def add_show(parser: Parser) -> None:
    """Add the arguments of `show`."""
    parser.add_argument("name", metavar="NAME", help="such as adamw or scale_by_adam")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=show_part)


ADD = {"list": add_list, "show": add_show}


def list_parts(args: argparse.Namespace, parser: Parser) -> int:
    """Print the parts of some kinds."""
    screen = None if args.json or args.markdown else rich_console()
    if screen is not None:
        _check_kinds(args, parser)
        show_tables(screen, _tables(registered_parts(*args.kinds)))
        return 0
    print(_list(args, parser), flush=True)
    return 0


def show_part(args: argparse.Namespace, parser: Parser) -> int:
    """Print one part."""
    print(_show(args, parser), flush=True)
    return 0


# ------------------------------------------------------------------------------------------ list


def _list(args: argparse.Namespace, parser: Parser) -> str:
    _check_kinds(args, parser)
    parts = registered_parts(*args.kinds)
    if args.json:
        fields = ("name", "kind", "summary", "reference")
        rows = [{"name": e.name, "kind": e.kind, **e.doc._asdict()} for e in parts]
        return json.dumps([{k: row[k] for k in fields} for row in rows], indent=2)
    if args.into is not None:
        return _write(args.into, args.kinds[0], markdown_table(parts), parser)
    return markdown_table(parts) if args.markdown else _text(parts)


def _check_kinds(args: argparse.Namespace, parser: Parser) -> None:
    for kind in args.kinds:
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            if not hint and find(kind):
                hint = f" It is a name; see: {program()} find {shlex.quote(kind)}"
            hint = hint or f" There are {', '.join(KINDS)}."
            parser.error(f"no kind {kind!r}.{hint}")
    if args.into is not None and not (args.markdown and len(args.kinds) == 1):
        parser.error("--into goes with --markdown and one KIND.")


def _tables(parts: list[Entry]) -> Iterator[tuple[str, Table]]:
    """Yield a table for each kind, with its title."""
    columns = [Column("name"), Column("what it does"), Column("reference")]
    for kind in dict.fromkeys(e.kind for e in parts):
        of_kind = [e for e in parts if e.kind == kind]
        lines = [Line([[e.name], [e.doc.summary], [e.doc.reference]]) for e in of_kind]
        yield f"{kind} ({len(of_kind)})", Table(columns, lines)


def _text(parts: list[Entry]) -> str:
    """Return one line for each part, and one for its paper."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    column = min(max((len(e.name) for e in parts), default=0) + 2, COLUMN)
    lines = []
    for kind in dict.fromkeys(e.kind for e in parts):
        of_kind = [e for e in parts if e.kind == kind]
        lines += ["", f"{kind} ({len(of_kind)})"]
        for e in of_kind:
            first = f"  {e.name:{column}}"
            if len(e.name) > column - 2:
                lines.append(first)
                first = " " * (column + 2)
            lines += wrapped_lines(e.doc.summary, width, first, " " * (column + 2))
            if e.doc.reference:
                indent = " " * (column + 4)
                lines += wrapped_lines(e.doc.reference, width, indent, indent)
    return "\n".join(lines[1:])


def markdown_table(parts: list[Entry]) -> str:
    """Return a table of parts: name, one line, paper."""
    rows = [(f"`{e.name}`", e.doc.summary, e.doc.reference) for e in parts]
    lines = [("name", "what it does", "reference"), ("---", "---", "---"), *rows]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _write(path: pathlib.Path, kind: str, table: str, parser: Parser) -> str:
    begin, end = BEGIN.format(kind), END.format(kind)
    try:
        text = path.read_text(encoding="utf-8")
        head, first_line, rest = text.partition(begin + "\n")
        _, last_line, tail = rest.partition(end)
        if not first_line or not last_line:
            parser.error(f"{path} lacks the lines {begin!r} and {end!r} to write between.")
        new = f"{head}{begin}\n{table}\n{end}{tail}"
        if new != text:
            path.write_text(new, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{path}: {getattr(error, 'strerror', None) or error}.")
    return f"{path}: {'unchanged' if new == text else 'written'}"


# ------------------------------------------------------------------------------------------ show


def _show(args: argparse.Namespace, parser: Parser) -> str:
    try:
        part = registered_part(args.name)
    except KeyError as error:
        if found := find(args.name):  # a composition, or what others call so
            return json.dumps(found.as_data(), indent=2) if args.json else repr(found)
        parser.error(f"{error.args[0]} List all with: {program()} list")
    if args.json:
        return json.dumps(part.as_data(), indent=2)
    width = min(100, max(60, shutil.get_terminal_size((100, 24)).columns))
    doc, indent = part.doc, "  "
    call = ", ".join(a.name + (f"={a.default}" if a.default else "") for a in part.arguments)
    blocks = ["\n".join(wrapped_lines(f"{part.name}({call})", width, "", " " * 4))]
    blocks.append("\n".join(wrapped_lines(doc.summary, width, "", "")))
    blocks += [doc.rule, doc.notes]
    if part.parts is not None:
        blocks.append("Made of:\n\n" + textwrap.indent(str(part.parts), indent))
    if not doc.rule:
        blocks.append(part.rule)
    if part.arguments:
        lines = ["Arguments:"]
        for a in part.arguments:
            default = "required" if a.default is None else a.default
            line = f"{indent}{a.name}" + (f" = {default}" if default else "")
            line += f", {a.range}" if a.range and a.range not in a.text else ""
            lines += [line, *wrapped_lines(a.text, width, indent * 3, indent * 3)]
        blocks.append("\n".join(lines))
    if doc.raises:
        lines = ["Raises:"]
        for error, reason in doc.raises.items():
            lines += wrapped_lines(f"{error}: {reason}", width, indent, indent * 3)
        blocks.append("\n".join(lines))
    if doc.reference:
        blocks.append(
            "\n".join(["Reference:", *wrapped_lines(doc.reference, width, indent, indent)])
        )
    return "\n\n".join(filter(None, blocks))
