"""Update rules as docstrings state them, written as HTML with TeX, which KaTeX sets.

A paragraph that is indented is formulas, one a line. In the other paragraphs the formulas are
found among the words.
"""

import html
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from docs.site.formulas import FUNCTIONS, GREEK, NotAFormula, Token, tex, tokens_of
from gradxform.values.docstrings import Doc

_SYMBOL = re.compile(rf"(?:[A-Za-z]|{'|'.join(GREEK)})\d*'*|[A-Za-z]\w*_\w+'*|lr|infinity")
_OPERATORS = {*"=<>+-/^()[]|,;*", "<-", ">=", "<=", "||", "..."}
_RELATION = re.compile(r"(?<!\S)(<-|=|<|>|>=|<=)(?!\S)")


class Written(NamedTuple):
    """A rule as HTML."""

    markup: str
    formulas: int  # lines of formulas
    unread: tuple[str, ...]  # lines that are not formulas: they are shown as they stand


def rule_html(rule: str, names: Iterable[str] = ()) -> Written:
    """Return a rule as HTML.

    Args:
      rule: its paragraphs, as in the docstring.
      names: the names of the part's arguments.
    """
    known = frozenset(names)
    blocks: list[str] = []
    formulas, unread = 0, []
    for paragraph in re.split(r"\n\s*\n", rule.strip("\n")):
        if not paragraph.startswith("    "):
            blocks.append(f"<p>{prose_html(paragraph, known)}</p>")
            continue
        lines = []
        for line in filter(str.strip, paragraph.split("\n")):
            try:
                if not _RELATION.search(line):
                    raise NotAFormula(line)
                lines.append(_tex_html(line, known, "div"))
                formulas += 1
            except NotAFormula:
                unread.append(line.strip())
                lines.append(f"<pre><code>{html.escape(line.strip())}</code></pre>")
        blocks.append(f'<div class="gx-math" tabindex="0">{"".join(lines)}</div>')
    return Written("\n".join(blocks), formulas, tuple(unread))


def rule_and_notes(doc: Doc) -> tuple[str, str]:
    """Return the whole rule of a docstring, up to its last formula, and the paragraphs after it."""
    notes = re.split(r"\n\s*\n", doc.notes)
    last = max((i for i, text in enumerate(notes, 1) if _is_formulas(text)), default=0)
    rule = "\n\n".join(filter(None, [doc.rule, *notes[:last]]))
    return rule, "\n\n".join(notes[last:])


def _is_formulas(paragraph: str) -> bool:
    if not paragraph.startswith("    "):
        return False
    written = rule_html(paragraph)
    return bool(written.formulas) and not written.unread


def prose_html(text: str, names: frozenset[str] = frozenset()) -> str:
    """Return a paragraph with the formulas among its words as TeX, and names as code."""
    text = " ".join(text.split())
    parts = re.split(r"(`[^`<&]+`)", text)
    written = [
        f"<code>{html.escape(part[1:-1])}</code>"
        if part.startswith("`")
        else _with_math(part, names)
        for part in parts
    ]
    return "".join(written)


def _tex_html(formula: str, names: frozenset[str], tag: str = "span") -> str:
    """Return an element that assets/math.js sets: readers without scripts see the TeX."""
    return f'<{tag} class="gx-tex">{html.escape(tex(formula, names))}</{tag}>'


def _with_math(text: str, names: frozenset[str]) -> str:
    try:
        tokens = tokens_of(re.sub(r"[^\x20-\x7e]|[\"?!*{}&%$#@~\\]", "x", text))
    except NotAFormula:
        return html.escape(text)
    mathy = [_is_mathy(tokens, i, names) for i in range(len(tokens))]
    written, at = [], 0
    for is_math, group in itertools.groupby(range(len(tokens)), key=lambda i: mathy[i]):
        run = list(group)
        if not is_math:
            continue
        found = _longest(text, [tokens[i] for i in run], names)
        if found is not None:
            start, end, markup = found
            written += [html.escape(text[at:start]), markup]
            at = end
    return "".join([*written, html.escape(text[at:])])


def _longest(text: str, run: list[Token], names: frozenset[str]) -> tuple[int, int, str] | None:
    """Return the longest formula of a run of tokens: where it begins, where it ends, its markup."""
    for drop in range(min(len(run), 6)):
        for left in range(drop + 1):
            part = run[left : len(run) - (drop - left)]
            if not part or part[0].text in ",;)]^/" or part[-1].text in ",;([:":
                continue
            if not any(t.kind == "name" for t in part):
                continue
            piece = text[part[0].start : part[-1].end]
            if len(part) > 1 and not set(piece) & set("=<>+-/^|("):
                continue
            try:
                return part[0].start, part[-1].end, _tex_html(piece, names)
            except NotAFormula:
                continue
    return None


def _is_mathy(tokens: list[Token], i: int, names: frozenset[str]) -> bool:
    token = tokens[i]
    if token.kind == "number":
        return True
    if token.kind == "sign":
        return token.text in _OPERATORS
    if token.kind != "name":
        return False
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    beside = [tokens[k].text for k in (i - 1, i + 1) if 0 <= k < len(tokens)]
    operated = any(sign in ("=", "<-", "+", "^", "/", "<", ">", "-") for sign in beside)
    if after is not None and after.text == "(" and not after.spaced:
        return token.text in {*FUNCTIONS, "cbrt", "sqrt"} or bool(_SYMBOL.fullmatch(token.text))
    if token.text in ("mean", "sum") and after is not None and after.text == "|":
        return True
    if token.text in ("a", "A", "I"):
        return operated
    if token.text in names and not _SYMBOL.fullmatch(token.text):
        # An argument that is an English word too: a factor of a formula, if it is beside one.
        single = [t for t in beside if len(t) == 1 and t.isalpha() and t != "a"]
        return operated or bool(single)
    return bool(_SYMBOL.fullmatch(token.text))
