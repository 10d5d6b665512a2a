"""The command line, as a module: `python -m gradxform`."""

import sys

from gradxform.commands import main

if __name__ == "__main__":
    sys.exit(main())
