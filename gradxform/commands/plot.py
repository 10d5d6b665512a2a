"""`plot`: a picture of schedules, of the paths of optimizers, of a state or of a run's metrics."""

import argparse
import pathlib
from typing import Any

from gradxform import plot
from gradxform.commands import parser as parsers
from gradxform.commands.expressions import ExpressionError, read_expression
from gradxform.commands.parser import Parser, one_line, whole_number
from gradxform.schedules import Schedule
from gradxform.types import SupportsTransform

EPILOG = """Schedules are drawn over the steps. Optimizers are run on a test surface, or with
--params, the memory of one's state is drawn. A file that ends in .csv is drawn as metrics."""


def add_command(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EPILOG
    parser.add_argument(
        "expressions",
        nargs="+",
        metavar="EXPR",
        help='schedules or optimizers, such as "cosine_decay_schedule(1e-3, 1000)"; or a CSV file',
    )
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, metavar="FILE", help="a .png, .svg or .pdf file"
    )
    parser.add_argument(
        "--steps", type=whole_number, metavar="N", help="1000 for schedules, 100 for optimizers"
    )
    parser.add_argument(
        "--surface", choices=tuple(plot.SURFACES), help="where optimizers run; valley by default"
    )
    parser.add_argument(
        "--params",
        type=parsers.params,
        metavar="SHAPES",
        help=f"draw the memory of the state for these parameters: {parsers.SHAPES}",
    )
    parser.add_argument("--keys", metavar="KEYS", help="of a CSV file: what to draw, with commas")
    parser.add_argument("--title", help="the title of the picture")
    parser.add_argument("--dark", action="store_true", help="in colors for a dark page")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, parser: Parser) -> int:
    """Draw, and write the file."""
    try:
        figure = _plotted_figure(args, parser)
        figure.savefig(args.out)
    except ExpressionError as error:
        parser.error(str(error))
    except (TypeError, ValueError, OSError, ImportError) as error:
        parser.error(one_line(error))
    print(f"{args.out}: written")
    return 0


ADD = {"plot": add_command}


def _plotted_figure(args: argparse.Namespace, parser: Parser) -> Any:
    look = {"title": args.title, "dark": args.dark}
    texts = list(dict.fromkeys(args.expressions))
    if any(text.lower().endswith(".csv") for text in texts):
        if len(texts) > 1:
            parser.error("draw a CSV file alone, without other expressions.")
        _refuse_options(args, parser, "a CSV file", "steps", "surface", "params")
        keys = args.keys.split(",") if args.keys else None
        return plot.training(texts[0], keys, **look)
    values = {text: read_expression(text) for text in texts}
    if all(isinstance(x, Schedule | int | float) for x in values.values()):
        _refuse_options(args, parser, "schedules", "surface", "params", "keys")
        only = next(iter(values.values())) if len(values) == 1 else values
        return plot.schedule(only, args.steps or 1000, **look)
    for text, x in values.items():
        if not isinstance(x, SupportsTransform):
            others = "with optimizers" if isinstance(x, Schedule) else "at all"
            parser.error(f"{text!r} cannot be drawn {others}; draw schedules or optimizers.")
    if args.params is not None:
        _refuse_options(args, parser, "--params", "surface", "steps", "keys")
        if len(values) > 1:
            parser.error("--params goes with one optimizer.")
        return plot.state_memory(values[texts[0]], args.params, **look)
    _refuse_options(args, parser, "optimizers", "keys")
    return plot.paths(values, args.surface or "valley", steps=args.steps or 100, **look)


def _refuse_options(args: argparse.Namespace, parser: Parser, what: str, *names: str) -> None:
    """Refuse options that would not do anything."""
    for name in names:
        if getattr(args, name) is not None:
            parser.error(f"--{name} does not go with {what}.")
