"""`find`: what answers to a name, here or elsewhere."""

import argparse
import json

from gradxform.commands.finding.lookup import find
from gradxform.commands.parser import Parser, program


def add_command(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help='such as MuonH, sf-adopt or "torch.optim.SGD"')
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, parser: Parser) -> int:
    """Print the answers."""
    found = find(args.name)
    if not found:
        parser.error(f"{found!r} List all parts with: {program()} list")
    print(json.dumps(found.as_data(), indent=2) if args.json else repr(found), flush=True)
    return 0


ADD = {"find": add_command}
