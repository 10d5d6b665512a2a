"""An event loop in a thread of its own, for callers that know nothing of event loops."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class Background:
    """Runs coroutines in its thread, and waits for them in the caller's.

    Args:
      name: of the thread.
    """

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Return the result of `work`; raise TimeoutError, and cancel it, after that long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except BaseException:  # out of time, or interrupted while waiting
            future.cancel()
            raise

    def stop(self, seconds: float) -> None:
        """End the thread, and whatever still runs in it."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)
