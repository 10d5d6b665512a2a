"""The program: it reads which command is to run, and loads the module of that one."""

import importlib
import os
import re
import sys
from collections.abc import Sequence

from gradxform._names.version import __version__
from gradxform.commands.parser import Parser, program

__all__ = ["main"]

ABOUT = "List, find, show, describe and draw the parts of gradxform, and look at uses of Optax."
# Each command: its module, which is loaded to run it, and what it does.
COMMANDS = {
    "list": ("parts", "every part with one line and its paper"),
    "find": ("finding.command", "what answers to a name, here or in other libraries"),
    "show": ("parts", "the update rule, the arguments and the paper of one part"),
    "describe": ("describe", "the parts of an optimizer, and the bytes of its state"),
    "plot": ("plot", "draw schedules, optimizers or metrics"),
    "port": ("port.command", "what becomes of the uses of Optax in Python files"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = Parser(program(), description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"gradxform {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    words = list(sys.argv[1:] if argv is None else argv)
    for name, (module, does) in COMMANDS.items():
        command = commands.add_parser(name, help=does, allow_abbrev=False)
        if words and words[0] == name:
            importlib.import_module(f"gradxform.commands.{module}").ADD[name](command)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        *others, last = COMMANDS
        listed = f" There are {', '.join(others)} and {last}."
        parser.error(f"no command {words[0]!r}.{_hint(words[0], list(COMMANDS)) or listed}")
    args, unknown = parser.parse_known_args(words)
    command = commands.choices.get(args.command, parser)
    if unknown:
        word = unknown[0].split("=")[0]
        flags = re.findall(r"--[a-z][a-z-]*", command.format_help())
        hint = _hint(word, list(dict.fromkeys(flags))) if word.startswith("-") else ""
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


def _hint(word: str, words: list[str]) -> str:
    from gradxform.errors import did_you_mean  # which needs JAX

    return did_you_mean(word, words)
