"""Formulas as docstrings write them, read into MathML.

The notation is that of the update rules, such as

    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

Two factors stand beside each other, a fraction takes all factors before it and one after it, a
name directly before a parenthesis is a function, and words between factors are words.
"""

import html
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "epsilon": "ϵ"},
    **{"eta": "η", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "rho": "ρ", "sigma": "σ"},
}
# Long names that are not words, although no part has an argument of that name.
FUNCTIONS = {"clip", "diag", "max", "mean", "min", "NewtonSchulz", "rms", "sign"}
KNOWN = FUNCTIONS | {"base_optimizer", "best", "inner", "lr", "projection", "sum", "top", "value"}
RELATIONS = {"<-": "←", "=": "=", ">=": "≥", "<=": "≤", "<": "&lt;", ">": "&gt;"}
CLOSED_BY = {"(": ")", "[": "]", "|": "|", "||": "||", "<": ">"}
FENCES = {"<": "⟨", ">": "⟩", "||": "‖"}
_TOKEN = re.compile(
    r"(?P<code>`[^`]+`)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<word>[A-Za-z]+(?:-[a-z]+)+|[A-Za-z]+'s\b)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*'*)"
    r"|(?P<sign><-|>=|<=|\|\||\.\.\.|\*_\w|[-+*/^=<>()\[\]|,;:.])"
)


class NotAFormula(ValueError):
    """Text that the notation does not cover."""


class Token(NamedTuple):
    """A piece of a formula."""

    kind: str  # a group of `_TOKEN`
    text: str
    start: int
    end: int
    spaced: bool  # whether a space is before it


class Node(NamedTuple):
    """A part of a formula."""

    markup: str
    bare: str = ""  # of a parenthesis: what is inside
    words: str = ""  # the words, if it is made of words


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text."""
    found: list[Token] = []
    at = 0
    while text[at:].strip():
        start = at + len(text[at:]) - len(text[at:].lstrip())
        match = _TOKEN.match(text, start)
        if match is None:
            raise NotAFormula(f"{text[start:]!r} in {text!r}")
        found.append(Token(match.lastgroup or "", match[0], start, match.end(), start > at))
        at = match.end()
    return found


def mathml(text: str, names: Iterable[str] = (), display: bool = False) -> str:
    """Return a formula as a `math` element.

    Args:
      text: the formula; two or more spaces are a wide space.
      names: the arguments that it may name; other long names are words.
      display: whether it stands on a line of its own.

    Raises:
      NotAFormula: if the notation does not cover it.
    """
    pieces = [piece for piece in re.split(r"\s{2,}", text.strip()) if piece]
    rows = [Parser(tokens_of(piece), frozenset(names)).everything() for piece in pieces]
    body = '<mspace width="2em"/>'.join(rows)
    form = ' display="block"' if display else ""
    label = html.escape(" ".join(text.split()), quote=True)
    return f'<math{form} aria-label="{label}"><mrow>{body}</mrow></math>'


def is_name(text: str, names: frozenset[str]) -> bool:
    """Whether a name stands for a number or a function, and is not a word."""
    plain = text.rstrip("'")
    return (
        len(plain) == 1
        or "_" in plain
        or plain in names
        or plain in KNOWN
        or plain in ("infinity", "gbar")
        or bool(re.fullmatch(r"([A-Za-z]|" + "|".join(GREEK) + r")\d*", plain))
    )


class Parser:
    """Reads the tokens of one formula, from left to right."""

    def __init__(self, tokens: list[Token], names: frozenset[str]) -> None:
        self.tokens, self.names = tokens, names
        self.at = 0
        self.open: list[str] = []  # the fences that are open

    def everything(self) -> str:
        """Return the markup of all tokens."""
        markup = self.items()
        if self.at < len(self.tokens):
            raise NotAFormula(f"{self.tokens[self.at].text!r} is not expected")
        return markup

    # ------------------------------------------------------------------------------ the tokens

    def text(self, ahead: int = 0) -> str:
        """Return the text of a token from here, or "" at the end."""
        return self.tokens[self.at + ahead].text if self.at + ahead < len(self.tokens) else ""

    def glued(self, ahead: int = 1) -> bool:
        """Whether a token follows without a space."""
        at = self.at + ahead
        return at < len(self.tokens) and not self.tokens[at].spaced

    def opens(self) -> bool:
        """Whether the token here opens a fence."""
        sign = self.text()
        if sign == "<":
            return self.glued()
        if sign in ("|", "||"):
            return not self.open or self.open[-1] != sign
        return sign in ("(", "[")

    def closes(self) -> bool:
        """Whether the token here closes the innermost fence."""
        return bool(self.open) and self.text() == CLOSED_BY[self.open[-1]]

    # ------------------------------------------------------------------------------ the grammar

    def items(self) -> str:
        """Read relations, with separators between them."""
        rows = []
        while self.at < len(self.tokens) and not self.closes():
            sign = self.text()
            if sign in (",", ";", ":", "."):
                self.at += 1
                rows.append(f'<mo separator="true">{sign}</mo><mspace width="0.4em"/>')
            else:
                before = self.at
                rows.append(self.relation())
                if self.at == before:
                    raise NotAFormula(f"{sign!r} is not expected")
        return "".join(rows)

    def relation(self) -> str:
        """Read sums, with signs of relations between them."""
        rows = [self.sum()]
        while self.text() in RELATIONS and not self.closes():
            rows += [f"<mo>{RELATIONS[self.text()]}</mo>"]
            self.at += 1
            rows += [self.sum()]
        return "".join(rows)

    def sum(self) -> str:
        """Read products, with plus and minus between them and perhaps before them."""
        rows = []
        while True:
            if self.text() in ("+", "-"):
                form = "infix" if rows else "prefix"
                rows.append(f'<mo form="{form}">{"−" if self.text() == "-" else "+"}</mo>')
                self.at += 1
            rows.append(self.product())
            if self.text() not in ("+", "-"):
                return "".join(rows)

    def product(self) -> str:
        """Read factors beside each other; a fraction takes those before it, up to a word."""
        factors: list[Node] = []
        while self.at < len(self.tokens) and not self.closes():
            if self.text() == "/":
                self.at += 1
                top = len(factors)
                while top and (not factors[top - 1].words or factors[top - 1].words.endswith("of")):
                    top -= 1
                if top == len(factors):
                    raise NotAFormula("a fraction begins with a stroke")
                factors[top:] = [Node(_fraction(factors[top:], self.denominator()))]
            elif self.text().startswith("*"):
                sign, index = "·" if self.text() == "*" else "∗", self.text()[2:]
                operator = f"<mo>{sign}</mo>"
                factors.append(
                    Node(f"<msub>{operator}<mi>{index}</mi></msub>" if index else operator)
                )
                self.at += 1
            elif self.starts_a_factor():
                factor = self.factor()
                if factor.words and factors and factors[-1].words:
                    factor = _words(f"{factors.pop().words} {factor.words}")
                factors.append(factor)
            else:
                break
        if not factors:
            raise NotAFormula(f"nothing before {self.text()!r}")
        return _beside(factors)

    def starts_a_factor(self) -> bool:
        """Whether a factor begins here."""
        if self.at >= len(self.tokens):
            return False
        return self.tokens[self.at].kind != "sign" or self.text() == "..." or self.opens()

    def denominator(self) -> list[Node]:
        """Read words, if there are some, and one factor."""
        factors: list[Node] = []
        while True:
            if not self.starts_a_factor():
                raise NotAFormula("a fraction ends with a stroke")
            factor = self.factor()
            if factor.words and factors and factors[-1].words:
                factor = _words(f"{factors.pop().words} {factor.words}")
            factors.append(factor)
            if not factors[-1].words and factors[-1].markup != _SUM:
                return factors

    def factor(self) -> Node:
        """Read a number, name, call or parenthesis, with its exponents."""
        base = self.base()
        while self.text() == "^":
            self.at += 1
            negative = self.text() == "-"
            self.at += negative
            if not self.starts_a_factor():
                raise NotAFormula("an exponent is missing")
            exponent = self.base()
            minus = "<mo>−</mo>" if negative else ""
            markup = f"<mrow>{minus}{exponent.bare or exponent.markup}</mrow>"
            base = Node(f"<msup><mrow>{base.markup}</mrow>{markup}</msup>")
        return base

    def base(self) -> Node:
        """Read a number, name, call or parenthesis."""
        token = self.tokens[self.at]
        if token.text == "...":
            self.at += 1
            return Node("<mo>⋯</mo>")
        if self.opens():
            return self.fenced()
        self.at += 1
        if token.kind == "number":
            return Node(f"<mn>{token.text}</mn>")
        if token.kind == "code":
            return Node(f'<mtext class="gx-name">{html.escape(token.text[1:-1])}</mtext>')
        called = self.text() == "(" and self.glued(0)
        word = (
            token.kind == "word"
            or (token.text == "mean" and not called and self.text() != "|")
            or (token.text == "sum" and self.text() in ("of", "over"))
        )
        if word or not (called or is_name(token.text, self.names)):
            return _words(token.text)
        if called and token.text in ("sqrt", "cbrt"):
            inside = self.fenced().bare
            if token.text == "sqrt":
                return Node(f"<msqrt>{inside}</msqrt>")
            return Node(f"<mroot><mrow>{inside}</mrow><mn>3</mn></mroot>")
        markup = _symbol(token.text, called)
        if self.text() == "[" and self.glued(0):
            return Node(f"<msub>{markup}<mrow>{self.fenced('[').bare}</mrow></msub>")
        if called:
            return Node(f"<mrow>{markup}<mo>&#8289;</mo>{self.fenced().markup}</mrow>")
        return Node(markup)

    def fenced(self, bare: str = "(") -> Node:
        """Read a parenthesis, bracket, norm or inner product; one like `bare` can be left out."""
        sign = self.text()
        self.open.append(sign)
        self.at += 1
        inside = f"<mrow>{self.items()}</mrow>"
        if not self.closes():
            raise NotAFormula(f"{sign!r} is not closed")
        self.open.pop()
        self.at += 1
        left, right = (FENCES.get(s, s) for s in (sign, CLOSED_BY[sign]))
        fences = [
            f'<mo form="{form}" fence="true">{s}</mo>'
            for form, s in (("prefix", left), ("postfix", right))
        ]
        return Node(f"<mrow>{fences[0]}{inside}{fences[1]}</mrow>", inside if sign == bare else "")


# ---------------------------------------------------------------------------------- the markup

_SUM = '<mo form="prefix" lspace="0.1em" rspace="0.1em">∑</mo>'


def _words(text: str) -> Node:
    return Node(f"<mtext>{html.escape(text)}</mtext>", words=text)


def _fraction(top: list[Node], bottom: list[Node]) -> str:
    rows = [
        _beside(part) if len(part) > 1 else part[0].bare or part[0].markup for part in (top, bottom)
    ]
    return "<mfrac>" + "".join(f"<mrow>{row}</mrow>" for row in rows) + "</mfrac>"


def _beside(factors: list[Node]) -> str:
    rows = [factors[0].markup]
    for before, factor in itertools.pairwise(factors):
        if before.words or factor.words:
            rows.append('<mspace width="0.3em"/>')
        elif before.markup != _SUM:
            rows.append('<mo lspace="0" rspace="0.17em">&#8290;</mo>')
        rows.append(factor.markup)
    return "".join(rows)


def _symbol(text: str, called: bool) -> str:
    plain = text.rstrip("'")
    if plain == "sum" and not called:
        return _SUM
    if plain == "infinity":
        return "<mi>∞</mi>"
    if plain == "gbar":
        return "<mover><mi>g</mi><mo>¯</mo></mover>"
    split = re.fullmatch(r"([A-Za-z]|" + "|".join(GREEK) + r")(?:(\d+)|_([^\W_]+))?", plain)
    if split is None:
        kind = "" if plain in FUNCTIONS else ' class="gx-name"'
        markup = f"<mi{kind}>{html.escape(plain)}</mi>"
    else:
        markup = f"<mi>{GREEK.get(split[1], split[1])}</mi>"
        if split[2]:
            markup = f"<msub>{markup}<mn>{split[2]}</mn></msub>"
        elif split[3]:
            markup = f"<msub>{markup}{_subscript(split[3])}</msub>"
    primes = len(text) - len(plain)
    prime = f'<mo lspace="0" rspace="0">{"′" * primes}</mo>'
    return f"<mrow>{markup}{prime}</mrow>" if primes else markup


def _subscript(text: str) -> str:
    if text == "inf":
        return "<mi>∞</mi>"
    if text.isdecimal():
        return f"<mn>{text}</mn>"
    if len(text) == 1 or text in GREEK:
        return f"<mi>{GREEK.get(text, text)}</mi>"
    return f"<mtext>{text}</mtext>"
