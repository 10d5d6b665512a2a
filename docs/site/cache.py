"""Where the build of the site keeps the pictures that pages draw."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("GRADXFORM_DOCS_CACHE", ROOT / ".docs_cache"))
