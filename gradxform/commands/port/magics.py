"""Text beside Python in cells of notebooks: IPython's magics, commands of the shell and help."""

import io
import re
import tokenize

from gradxform.commands.port.syntax import parsed_source

# A line that is none of Python's: `%magic`, `!command`, `?name`, `name?`.
_WHOLE = re.compile(r"\s*([%!?]|[\w.*]+\?{1,2}\s*$)")
# A name that is given what a magic or a command returns.
_ASSIGNED = re.compile(r"(\s*[\w., ]+=\s*)([%!].*)")
# Magics whose cell, or whose line, is Python all the same.
_OF_CELLS = re.compile(r"%%(capture|prun|time|timeit)\b")
_OF_LINES = re.compile(r"(\s*)(%(?:prun|time|timeit)\s+)(\S.*)")


def masked(source: str) -> str:
    """Return the source of a cell as Python, by putting a 0 in place of what is not.

    Every line keeps its length, so that what is found in the result is at the same place in the
    source. What cannot be told apart from an error stays, for the parser to complain of.
    """
    if source.lstrip().startswith("%%"):
        first, newline, rest = source.lstrip("\n").partition("\n")
        blank = source[: len(source) - len(source.lstrip("\n"))]
        if not _OF_CELLS.match(first):
            return re.sub(r"[^\n]", "#", source)  # another language, or a file to be written
        return f"{blank}{_zero(first)}{newline}{masked(rest)}"
    if _is_plain_python(source):
        return source
    lines: list[str] = []
    continued = False  # whether the line before ends in a backslash, and is not Python
    for line in source.split("\n"):
        if continued:
            new = "#" * len(line)
        elif _is_open("\n".join(lines)):
            new = line
        else:
            new = _as_python(line)
        continued = (continued or new != line) and line.rstrip().endswith("\\")
        lines.append(new)
    return "\n".join(lines)


def _as_python(line: str) -> str:
    timed = _OF_LINES.match(line)
    if timed and _is_plain_python(timed[3]):
        return f"{timed[1]}0;{' ' * (len(timed[2]) - 2)}{timed[3]}"
    if _WHOLE.match(line):
        return _zero(line)
    match = _ASSIGNED.match(line)
    return match[1] + _zero(match[2]) if match else line


def _zero(text: str) -> str:
    """Return a 0 and a comment of the same length, behind the same indentation."""
    inner = text.lstrip()
    return f"{text[: len(text) - len(inner)]}0{'#' * (len(inner) - 1)}"


def _is_plain_python(source: str) -> bool:
    try:
        parsed_source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _is_open(source: str) -> bool:
    """Whether lines end inside a string, brackets or a statement, which the next one goes on."""
    if source.rstrip(" ").endswith("\\"):
        return True
    try:
        for _ in tokenize.generate_tokens(io.StringIO(source).readline):
            pass
    except tokenize.TokenError as error:
        return "EOF in multi-line" in str(error)
    except SyntaxError:
        return False
    return False
