"""The command line: `python -m gradxform`."""

import sys

from gradxform.commands import main

if __name__ == "__main__":
    sys.exit(main())
