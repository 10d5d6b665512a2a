"""The environment in which the pages run, set before anything imports JAX or Keras."""

import os

from docs.site import blocks

os.environ.update(blocks.environment())
