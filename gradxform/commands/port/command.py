"""`port`: what becomes of the uses of Optax in Python files and notebooks."""

import argparse
import json
import shutil
import sys

from gradxform.commands import port
from gradxform.commands.parser import Parser
from gradxform.commands.port import differences, report
from gradxform.commands.port.files import STAR
from gradxform.commands.port.names import MISSING

EPILOG = """The files are parsed and never run. The exit code is 1 if a name is missing, a star
import hides names, or a file cannot be read, and 2 if a PATH is wrong; else 0."""


def add_command(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EPILOG
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="Python files, notebooks, or folders"
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--diff", action="store_true", help="print the changed imports as a diff")
    formats.add_argument("--json", action="store_true", help="as JSON")
    formats.add_argument(
        "--table", action="store_true", help="print the whole table of differences, as Markdown"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, parser: Parser) -> int:
    """Print what the files use."""
    if args.table:
        if args.paths:
            parser.error("--table is printed without a PATH.")
        print(differences.page(), end="")
        return 0
    if not args.paths:
        parser.error("needs a PATH: Python files, notebooks, or folders.")
    try:
        paths = port.python_files(args.paths)
    except port.PortError as error:
        parser.error(str(error))
    files, unread = [], 0
    for path in paths:
        try:
            files.append(port.port(path))
        except port.PortError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            unread += 1
    if args.diff:
        print("".join(ported.diff for ported in files), end="")
    elif args.json:
        print(json.dumps(report.as_data(files), indent=2))
    elif files:
        width = min(110, max(60, shutil.get_terminal_size((100, 24)).columns))
        print(report.text(files, width))
    open_ends = any(use.status in (MISSING, STAR) for ported in files for use in ported.uses)
    return int(unread > 0 or open_ends)


ADD = {"port": add_command}
