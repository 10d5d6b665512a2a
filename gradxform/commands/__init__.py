"""The command line, `python -m gradxform`: a module for each command, or for two that are alike."""

import os
import re
import sys
from collections.abc import Sequence

from gradxform._version import __version__
from gradxform.commands import describe, parts, plot, port
from gradxform.commands.parser import Parser
from gradxform.errors import did_you_mean

__all__ = ["main"]

ABOUT = "List, show, describe and draw the parts of gradxform, and look at uses of Optax."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = Parser("python -m gradxform", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"gradxform {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in (parts, describe, plot, port):
        module.add(commands)
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        *others, last = commands.choices
        listed = f" There are {', '.join(others)} and {last}."
        hint = did_you_mean(words[0], commands.choices) or listed
        parser.error(f"no command {words[0]!r}.{hint}")
    args, unknown = parser.parse_known_args(words)
    command = commands.choices.get(args.command, parser)
    if unknown:
        word = unknown[0].split("=")[0]
        flags = re.findall(r"--[a-z][a-z-]*", command.format_help())
        hint = did_you_mean(word, dict.fromkeys(flags)) if word.startswith("-") else ""
        parser.error(f"unknown argument {word!r}.{hint or ' See --help.'}")
    try:
        if args.command is None:
            parser.print_help()
            code = 0
        else:
            code = args.run(args, command)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
