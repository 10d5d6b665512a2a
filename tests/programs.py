"""Compiled programs on disk, which one process of the tests takes over from another.

JAX writes a program in place: whoever reads it meanwhile gets a half. So each process has a folder
of its own, and what is complete there becomes a link in one that all share, and the reverse. With
the programs of an earlier run, on this machine, the tests take little more than half their time.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".programs"
DAYS = 3  # for which a program is kept


class Programs:
    """The programs of this process, and those that all share."""

    def __init__(self, folder: Path = FOLDER):
        self.shared = folder / _machine()
        self.shared.mkdir(parents=True, exist_ok=True)
        self.own = Path(tempfile.mkdtemp(prefix="process-", dir=folder))
        # What a process that was killed has left, too.
        for path in [*_older(self.shared), *_older(folder)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self.exchange()

    def exchange(self) -> None:
        """Give what is new here, and take what is new there; nothing may be compiling meanwhile."""
        ours, theirs = (set(os.listdir(path)) for path in (self.own, self.shared))
        for name in ours - theirs:
            _link(self.own / name, self.shared / name)
        for name in theirs - ours:
            _link(self.shared / name, self.own / name)

    def close(self) -> None:
        """Give what is new, and remove the folder of this process."""
        self.exchange()
        shutil.rmtree(self.own, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    # Another process has been faster, or removed it; or the file system does not have links.
    with contextlib.suppress(OSError):
        os.link(source, target)


def _older(folder: Path) -> Iterator[Path]:
    before = time.time() - DAYS * 24 * 3600
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name != _machine() and path.stat().st_mtime < before:
                yield path


def _machine() -> str:
    """Return a name for processors that run the same programs."""
    said = platform.platform() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        said += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(said.encode()).hexdigest()[:16]
