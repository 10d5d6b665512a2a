"""References link to the papers that they name, and every address has a reference."""

import ast
import collections
import inspect
import re
import urllib.parse

import griffe

import gradxform as gx
from docs.site import papers
from docs.site.cache import ROOT


def docstrings():
    for path in sorted((ROOT / "gradxform").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def citations():
    """Return how often a docstring cites what has authors, a title and a year."""
    found = collections.Counter()
    for doc in docstrings():
        for section in re.findall(r"References?:\s*(.*?)(?=\n\s*\n|\Z)", doc, re.DOTALL):
            for cited in re.split(r";\s+", " ".join(section.split())):
                whole = re.match(r".+?, (?:19|20)\d\d\b", cited)
                if whole:
                    found[whole[0]] += 1
    return found


CITED = citations()


def test_every_paper_is_cited():
    text = "\n".join(CITED)
    assert len(CITED) > 200
    assert [title for title in papers.papers() if title not in text] == []


def test_a_paper_that_is_cited_twice_is_linked_or_was_not_found():
    unknown = [title for title, to in papers.papers().items() if to is None]
    missing = [
        cited
        for cited, times in CITED.items()
        if times > 1 and papers.linked(cited) == cited and not any(t in cited for t in unknown)
    ]
    assert missing == []


def test_most_of_what_is_cited_is_linked():
    linked = [cited for cited in CITED if papers.linked(cited) != cited]
    assert len(linked) > 0.95 * len(CITED)


def test_addresses_are_those_of_one_paper_each():
    titles = collections.defaultdict(list)
    for title, to in papers.papers().items():
        if to is not None:
            assert urllib.parse.urlsplit(to).scheme == "https"
            assert not re.search(r"[()\s]", to), title
            titles[to].append(title)
    for found in titles.values():
        shortest = min(found, key=len)
        assert all(title.startswith(shortest) for title in found)


ADAM = "Adam: A Method for Stochastic Optimization"
ADDRESS = "https://arxiv.org/abs/1412.6980"


def test_a_title_with_its_year_becomes_a_link():
    assert papers.linked(f"Kingma and Ba, {ADAM}, 2015, Algorithm 1.") == (
        f"Kingma and Ba, [{ADAM}]({ADDRESS}), 2015, Algorithm 1."
    )
    broken = ADAM.replace("for ", "for\n    ")
    assert papers.linked(f"{broken},\n    2015") == f"[{broken}]({ADDRESS}),\n    2015"


def test_code_links_and_titles_without_a_year_stay():
    for text in (
        f"```\n{ADAM}, 2015\n```",
        f"`{ADAM}, 2015`",
        f"[{ADAM}, 2015](https://example.org)",
        f"{ADAM} is a paper",
    ):
        assert papers.linked(text) == text


def test_the_reference_has_what_help_prints_with_links():
    extensions = griffe.load_extensions(str(ROOT / "docs/site/described.py"))
    module = griffe.load("gradxform.optimizers.adam", extensions=extensions)
    shown = module["adamw"].docstring.value
    assert shown == papers.linked(inspect.getdoc(gx.adamw))
    assert "weight_decay_mask: " in shown and "](https://arxiv.org/abs/1711.05101)" in shown
