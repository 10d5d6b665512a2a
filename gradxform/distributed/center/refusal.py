"""The reasons for refusals, and the errors that a worker sees."""

import collections
import logging
import threading

LOGGER = logging.getLogger("gradxform.distributed.center")

# Why a center refuses a request.
VERSION = "version"  # a worker of another gradxform
MALFORMED = "malformed"  # not a request of `Worker`
REPLAYED = "replayed"  # older than the last request of its worker
TREE = "tree"  # other leaves, shapes or dtypes than the center's
NOT_FINITE = "not finite"  # NaN or infinity in a request, or in the result
OPERATION = "operation"  # a request that the center's method does not have


class CenterUnavailableError(ConnectionError):
    """The center did not answer within the time limit, or is gone."""


class RefusedError(ValueError):
    """The center refused a request, and did not change."""


class Refusal(Exception):
    """Raised inside a center that refuses a request."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Refusals:
    """Counts of refusals, by reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def count(self, reason: str, message: str) -> None:
        """Count a refusal, and log it on one line whatever the worker sent."""
        line = " ".join(message.split())[:300]
        LOGGER.warning("refused %s: %s", reason, line)
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return the number of refusals for each reason that occurred."""
        with self._lock:
            return dict(self._counts)
