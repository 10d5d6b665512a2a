"""Checks of the built site: its links, the public names, and where it loads from."""

import html
import pathlib
import re
import urllib.parse
from collections.abc import Iterable

from docs.site.public import Name

_LINK = re.compile(r"<(?:a|img|link|script|source|use)\b[^>]*?\s(?:href|src)=\"([^\"]*)\"")
_LOADED = re.compile(
    r"<(?:img|link|script|source|iframe)\b[^>]*?\s(?:href|src)=\"(https?:)?//([^/\"]+)"
)
_ID = re.compile(r"\s(?:id|name)=\"([^\"]+)\"")
_STYLE_URL = re.compile(r"(?:url\(|@import )['\"]?(?:https?:)?//([^/'\")]+)")


def _read(site: pathlib.Path) -> dict[pathlib.Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def dead_links(site: pathlib.Path) -> list[str]:
    """Return a line for each link to a file or an anchor that is not there."""
    texts = _read(site)
    anchors = {path: {html.unescape(x) for x in _ID.findall(text)} for path, text in texts.items()}
    found = []
    for path, text in texts.items():
        if path.name == "404.html":  # its links begin at the root
            continue
        for link in set(_LINK.findall(text)):
            parts = urllib.parse.urlsplit(html.unescape(link))
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
                target = target / "index.html" if target.is_dir() else target
            fragment = urllib.parse.unquote(parts.fragment)
            where = path.relative_to(site)
            if not target.is_file():
                found.append(f"{where}: {link} is not there")
            elif fragment and target in anchors and fragment not in anchors[target]:
                if fragment not in ("__toc", "__search"):
                    found.append(f"{where}: {link}: no such place on the page")
    return found


def missing_names(site: pathlib.Path, names: Iterable[Name]) -> list[str]:
    """Return a line for each public name without a description."""
    there: set[str] = set()
    for path in (site / "reference").rglob("*.html"):
        there.update(_ID.findall(path.read_text(encoding="utf-8")))
    return [f"{name.path} is public and has no page" for name in names if name.path not in there]


def other_hosts(site: pathlib.Path) -> list[str]:
    """Return a line for each file that loads something from another host."""
    found = []
    for path, text in _read(site).items():
        found += [f"{path.relative_to(site)} loads from {m[1]}" for m in _LOADED.findall(text)]
    for path in site.rglob("*.css"):
        hosts = _STYLE_URL.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads from {host}" for host in hosts]
    return found
