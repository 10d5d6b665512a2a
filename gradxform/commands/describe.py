"""`describe`: the parts of an optimizer that is written as an expression, and what they cost."""

import argparse
import json
from typing import Any

from gradxform.commands import parser as parsers
from gradxform.commands.expressions import ExpressionError, read_expression
from gradxform.commands.parser import Parser, one_line
from gradxform.commands.screen import rich_console, show_tables
from gradxform.tables.describe import Description, describe
from gradxform.values import printed

EPILOG = """A transform is a value, and no instance of Optax's class: where a library asks for that
class, give it gx.as_optax(tx)."""


def add_command(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EPILOG
    parser.add_argument("expression", metavar="EXPR", help='such as "adamw(1e-3)"')
    parser.add_argument(
        "--params", type=parsers.params, metavar="SHAPES", help=f"such as {parsers.SHAPES}"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, parser: Parser) -> int:
    """Print the parts of an optimizer."""
    try:
        description = describe(read_expression(args.expression), args.params)
    except ExpressionError as error:
        parser.error(str(error))
    except (TypeError, ValueError) as error:
        parser.error(one_line(error))
    if args.json:
        print(json.dumps(_description_as_data(description), indent=2))
    elif (screen := rich_console()) is not None:
        show_tables(screen, [("", table) for table in description.tables()], description.total())
    else:
        print(description)
    return 0


ADD = {"describe": add_command}


def _description_as_data(description: Description) -> dict[str, Any]:
    rows = []
    for row in description.rows:
        data = {k: v for k, v in row._asdict().items() if k != "defaults"}
        data["hyperparameters"] = {k: printed(v) for k, v in row.hyperparameters.items()}
        rows.append(data | {"slots": [slot._asdict() for slot in row.slots]})
    totals = {k: getattr(description, k) for k in ("param_leaves", "param_bytes", "total_bytes")}
    return {"rows": rows, **totals}
