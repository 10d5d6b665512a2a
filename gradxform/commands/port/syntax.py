"""The text and the syntax tree of a file; whatever is wrong with them is one line."""

import ast
import io
import pathlib
import tokenize
import warnings


class PortError(Exception):
    """A path that cannot be read as Python; the message is one line."""


def text_of(path: pathlib.Path, encoding: str | None = None) -> str:
    r"""Return the text of a file, with `\n` at the end of its lines.

    Args:
      path: the file.
      encoding: its encoding. By default a comment at the beginning may name one, as in Python.

    Raises:
      PortError: if it cannot be read, or is not text.
    """
    try:
        data = path.read_bytes()
        if encoding is None:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise PortError(f"{path}: {error.strerror or error}.") from None
    except SyntaxError as error:
        raise PortError(f"{path}: not Python: {error.msg}.") from None
    except (UnicodeDecodeError, LookupError, ValueError) as error:
        raise PortError(f"{path}: not text: {' '.join(str(error).split())}.") from None


def tree_of(where: object, source: str) -> ast.Module:
    """Return the syntax tree of a text.

    Args:
      where: what messages begin with.
      source: the text.

    Raises:
      PortError: if it is not Python.
    """
    try:
        return parsed_source(source)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise PortError(f"{where}{line}: not Python: {error.msg}.") from None
    except ValueError as error:
        raise PortError(f"{where}: not text: {' '.join(str(error).split())}.") from None
    except (RecursionError, MemoryError):
        raise PortError(f"{where}: nested too deep to be parsed.") from None


def parsed_source(source: str) -> ast.Module:
    """Return the syntax tree of a text, without the parser's warnings about the user's strings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
