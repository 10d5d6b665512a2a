"""Results that take long, kept in files that are named after what they depend on."""

import contextlib
import hashlib
import json
import os
import pathlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("GRADXFORM_DOCS_CACHE", ROOT / ".docs_cache"))


def digest(*parts: Any) -> str:
    """Return a name for plain data, and for the contents of files that paths name."""
    found = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, pathlib.Path) else json.dumps(part).encode()
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()[:32]


def read(kind: str, key: str) -> Any:
    """Return what is kept under a key, or None."""
    path = FOLDER / kind / f"{key}.json"
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        path.touch()  # so that the oldest are those that no page shows any more
        return found
    return None


def write(kind: str, key: str, data: Any) -> None:
    """Keep data under a key."""
    path = FOLDER / kind / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)
