"""Every rule in NumPy float64, one family a file."""

from tests.references.base import *  # noqa: F403
from tests.references.contrib import *  # noqa: F403
from tests.references.core import *  # noqa: F403
from tests.references.lazy import *  # noqa: F403
from tests.references.matrix import *  # noqa: F403
from tests.references.optax_rules import *  # noqa: F403
from tests.references.seeds import *  # noqa: F403
