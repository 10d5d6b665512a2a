"""The text of `finetune.py`: parts of the standard library's sources, as characters.

A part is a package or a module, such as `asyncio` or `argparse`. One passage in ten is held out.
"""

import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from command_line import Refused, did_you_mean

# All that the model can read and write; any other character is a question mark.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PASSAGE = 2048  # characters in a passage; one passage in HELD_OUT is held out
HELD_OUT = 10
HELD_OUT_WINDOWS = 48  # the number of windows by which a model is measured
SKIPPED = {"test", "tests", "idle_test", "__pycache__"}


def files_of(part: str) -> list[Path]:
    """Return the files of a part, or an empty list if the library does not have it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    if not part.isidentifier() or part in SKIPPED:
        return []
    files = sorted((root / part).rglob("*.py"))
    files = [path for path in files if not SKIPPED.intersection(path.relative_to(root).parts)]
    return files or [path for path in [root / f"{part}.py"] if path.is_file()]


def all_parts() -> list[str]:
    """Return the names of all packages and modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted({path.stem for path in root.iterdir() if files_of(path.stem)})


def read(parts: Sequence[str]) -> str:
    """Return the sources of some parts."""
    texts = []
    for part in parts:
        files = files_of(part)
        if not files:
            hint = did_you_mean(part, all_parts()) or "Name packages such as asyncio or email."
            raise Refused(f"the standard library has no part {part!r}. {hint}")
        texts += [path.read_text(encoding="utf-8", errors="replace") for path in files]
    return "\n".join(texts)


class Text:
    """A text as numbers of characters, in windows of one length.

    Args:
      text: the text.
      length: how many characters a window has after its first.
      batch_size: the number of windows in a batch.
      seed: the seed of their order.
    """

    def __init__(self, text: str, length: int, batch_size: int, seed: int) -> None:
        number_of = np.full(256, CHARACTERS.index("?"), np.int32)
        number_of[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(len(CHARACTERS))
        numbers = number_of[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
        passage = np.arange(len(numbers)) // PASSAGE
        held_out = passage % HELD_OUT == HELD_OUT - 1
        self.training = numbers[~held_out]
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.windows = max(0, len(self.training) - 1) // length - 1  # wherever they begin
        self.batches = self.windows // batch_size  # in an epoch
        self.held_out = self._held_out(numbers[held_out])
        self.checksum = zlib.crc32(numbers.tobytes())
        if self.batches < 1 or not len(self.held_out):
            raise Refused(
                f"a text of {len(numbers)} characters is too short for batches of {batch_size} "
                f"windows of {length}; name more parts."
            )
        self._epoch, self._starts = -1, np.zeros((0, 0), np.int64)

    def _held_out(self, numbers: np.ndarray) -> np.ndarray:
        """Return windows of the held-out text, evenly spread."""
        count = min(HELD_OUT_WINDOWS, max(0, len(numbers) - 1) // self.length)
        starts = np.linspace(0, max(0, len(numbers) - self.length - 1), count).astype(np.int64)
        return numbers[starts[:, None] + np.arange(self.length + 1)]

    def batch(self, i: int) -> np.ndarray:
        """Return batch i = 0, 1, ...: windows [batch_size, length + 1].

        It depends only on i and the seed, so that a resumed run sees the same batches. An epoch
        covers the text once, in windows that begin elsewhere than those of the epoch before.
        """
        epoch, position = divmod(i, self.batches)
        if epoch != self._epoch:
            random = np.random.default_rng([self.seed, epoch])
            starts = random.integers(self.length) + self.length * random.permutation(self.windows)
            used = starts[: self.batches * self.batch_size]
            self._epoch, self._starts = epoch, used.reshape(self.batches, self.batch_size)
        return self.training[self._starts[position][:, None] + np.arange(self.length + 1)]
