"""What an example needs besides gradxform: one line on stderr and exit code 2 without it."""

import importlib.util
import sys
from pathlib import Path


def require(*packages: str, extras: str = "examples") -> None:
    """End the program if a package is not installed; call it before the packages are imported.

    Args:
      *packages: the names under which they are imported.
      extras: the extras of gradxform that install them, as pip takes them.
    """
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        print(
            f"{Path(sys.argv[0]).name}: error: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed; install gradxform[{extras}].",
            file=sys.stderr,
        )
        sys.exit(2)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
