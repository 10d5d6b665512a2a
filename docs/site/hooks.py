"""What MkDocs calls while it builds the site: it adds the generated pages and checks the result."""

import concurrent.futures
import functools
import logging
import os
import pathlib
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import (
    blocks,
    cache,
    check,
    choices,
    facts,
    gallery,
    home,
    nav,
    papers,
    parts,
    public,
    race,
    ranking,
    reference,
)

log = logging.getLogger("mkdocs.hooks.gradxform")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and pictures, and say where they are in the navigation."""
    written = [f.src_uri for f in files.documentation_pages()]

    def add(path: str, content: str) -> None:
        files.append(File.generated(config, path, content=content))

    try:
        nav.require_places(written)  # before what takes minutes
        known = facts.collect()
        for path, drawn in zip(written, _drawn(written), strict=True):
            for name, file in drawn.items():
                add(str(pathlib.PurePosixPath(path).parent / name), file.read_text("utf-8"))
        for fact in known.values():
            add(parts.address(fact.entry), parts.page(fact, _links(fact.entry.kind)))
            for file, picture in parts.pictures_of(fact, known["adam"]).items():
                add(f"{parts.folder_of(fact.entry)}/{file}", picture)
        add("gallery.md", gallery.page(known.values()))
        add("home-race.svg", home.figure())
        listed = []
        for stem in public.pages():
            add(reference.address(stem), reference.page(stem))
            listed.append({reference.title_of(stem): reference.address(stem)})
        add("reference/command_line.md", reference.command_line())
        listed.append({"Command line": "reference/command_line.md"})
        add("reference/index.md", reference.index())
        of_kind = {
            kind: [parts.address(f.entry) for f in known.values() if f.entry.kind == kind]
            for kind in ("optimizers", "wrappers")
        }
        config.nav = nav.nav(written, of_kind["optimizers"], of_kind["wrappers"], listed)
    except (ValueError, RuntimeError, blocks.PageError) as error:
        raise PluginError(str(error)) from error
    return files


def _drawn(paths: list[str]) -> list[dict[str, pathlib.Path]]:
    """Return the pictures of pages; each page runs in a process, one on each core."""
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        return list(
            pool.map(
                lambda path: blocks.pictures(blocks.DOCS / path, cache.FOLDER / "pages"), paths
            )
        )


@functools.cache
def _links(folder: str) -> dict[str, str]:
    """Return the addresses of the pages of public names, from a page in a folder."""
    found = {n.name: f"../{public.page_of(n.path)}" for n in reversed(public.names())}
    for kind in ("optimizers", "wrappers"):
        for name in parts.names_of(kind):
            found[name] = f"{name}.md" if kind == folder else f"../{kind}/{name}.md"
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the pages with generated parts, and link names and papers."""
    markdown = papers.linked(markdown)
    path = page.file.src_uri
    boost = ranking.boost(path, parts.names_of("optimizers"))
    page.meta.setdefault("search", {})["boost"] = boost
    if path == "index.md":
        return home.completed(markdown)
    if path == "race.md":
        known = parts.names_of("optimizers")
        return race.completed(
            markdown, lambda name: f"[`{name}`](optimizers/{name}.md)" if name in known else name
        )
    if path == "guides/choosing.md":
        return choices.completed(markdown, lambda name: f"[`{name}`](../optimizers/{name}.md)")
    if path in ("optimizers.md", "wrappers.md"):
        folder = path.removesuffix(".md")
        known = parts.names_of(folder)

        def link(match: re.Match[str]) -> str:
            name = match[1]
            return f"| [`{name}`]({folder}/{name}.md) |" if name in known else match[0]

        return re.sub(r"^\| `(\w+)` \|", link, markdown, flags=re.MULTILINE)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site with a dead link, or without a public name."""
    site = pathlib.Path(config.site_dir)
    errors = [*check.dead_links(site), *check.missing_names(site, public.names())]
    foreign = check.other_hosts(site)
    for error in [*errors, *foreign][:40]:
        log.error(error)
    if errors or foreign:
        raise PluginError(f"the site has {len(errors) + len(foreign)} faults; see above.")
    pages = sum(1 for _ in site.rglob("*.html"))
    log.info("%d pages, %d public names", pages, len(public.names()))


def on_config(config: MkDocsConfig) -> Any:
    """Do not watch what the build itself writes."""
    config.watch = [str(blocks.ROOT / "gradxform")]
    return config
