r"""Formulas as docstrings write them, translated to TeX, which KaTeX sets in the browser.

The notation is that of the update rules, such as

    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

Two factors stand beside each other, a fraction takes all factors before it and one after it, a
name directly before a parenthesis is a function, and words between factors are words.
"""

import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

GREEK = {
    name: rf"\{'varepsilon' if name == 'eps' else name}"
    for name in (
        *("alpha", "beta", "gamma", "delta", "eps", "epsilon", "eta", "lambda", "mu", "nu", "pi"),
        *("rho", "sigma", "xi"),
    )
}
# Long names that are not words, although no part has an argument of that name.
FUNCTIONS = {"clip", "diag", "max", "mean", "min", "NewtonSchulz", "rms", "sign"}
KNOWN = FUNCTIONS | {"base_optimizer", "best", "inner", "lr", "projection", "sum", "top", "value"}
RELATIONS = {"<-": r"\leftarrow", "=": "=", ">=": r"\ge", "<=": r"\le", "<": r"\lt", ">": r"\gt"}
SIGNS = {**RELATIONS, "+": "+", "-": "-"}
SEPARATORS = {",": ",", ";": ";", ":": r"\colon", ".": "."}
# What closes a fence, and both in TeX.
FENCES = {
    "(": (")", "(", ")"),
    "[": ("]", "[", "]"),
    "|": ("|", r"\lvert", r"\rvert"),
    "||": ("||", r"\lVert", r"\rVert"),
    "<": (">", r"\langle", r"\rangle"),
}
_TALL = re.compile(r"\\(frac|sqrt|sum|left)\b")
_LETTER = rf"[A-Za-z]|{'|'.join(sorted(GREEK, key=len, reverse=True))}"
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


class Factor(NamedTuple):
    """A part of a product."""

    tex: str
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


def tex(text: str, names: Iterable[str] = ()) -> str:
    """Return a formula as TeX.

    Args:
      text: the formula; two or more spaces are a wide space.
      names: the arguments that it may name; other long names are words.

    Raises:
      NotAFormula: if the notation does not cover it.
    """
    pieces = [piece for piece in re.split(r"\s{2,}", text.strip()) if piece]
    known = frozenset(names)
    return r" \qquad ".join(Reader(tokens_of(piece), known).everything() for piece in pieces)


class Reader:
    """Reads the tokens of one formula, from left to right."""

    def __init__(self, tokens: list[Token], names: frozenset[str]) -> None:
        self.tokens, self.names = tokens, names
        self.at = 0
        self.open: list[str] = []  # the fences that are open

    def everything(self) -> str:
        """Return the TeX of all tokens."""
        found = self.items()
        if self.at < len(self.tokens):
            raise NotAFormula(f"{self.text()!r} is not expected")
        return found

    def text(self) -> str:
        """Return the text of the token here, or "" at the end."""
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def glued(self, ahead: int = 0) -> bool:
        """Whether a token is here, or ahead, without a space before it."""
        at = self.at + ahead
        return at < len(self.tokens) and not self.tokens[at].spaced

    def opens(self) -> bool:
        """Whether the token here opens a fence."""
        sign = self.text()
        if sign in ("|", "||"):
            return self.open[-1:] != [sign]
        return sign in FENCES and (sign != "<" or self.glued(1))

    def closes(self) -> bool:
        """Whether the token here closes the innermost fence."""
        return bool(self.open) and self.text() == FENCES[self.open[-1]][0]

    def items(self, small: bool = False) -> str:
        """Read all up to a closing fence; fractions of a small exponent keep their stroke."""
        done: list[str] = []
        factors: list[Factor] = []  # of the product here
        wanted = ""  # the sign that needs a factor after it
        while self.at < len(self.tokens) and not self.closes():
            sign = self.text()
            if sign in SEPARATORS or (sign in SIGNS and not self.opens()):
                bad = wanted or (sign in RELATIONS and not factors)
                if bad and sign not in ("+", "-"):
                    raise NotAFormula(f"{sign!r} is not expected")
                self.at += 1
                space = "" if self.open else r"\ "
                done += [_beside(factors), SIGNS.get(sign, SEPARATORS.get(sign, "") + space)]
                factors, wanted = [], sign if sign in SIGNS else ""
            elif sign == "/":
                self.at += 1
                top = len(factors)
                while top and (not factors[top - 1].words or factors[top - 1].words.endswith("of")):
                    top -= 1
                if top == len(factors):
                    raise NotAFormula("a fraction begins with a stroke")
                factors[top:] = [_fraction(factors[top:], self.denominator(), small)]
            else:
                self.add_factor(factors)
                wanted = ""
        if wanted:
            raise NotAFormula(f"nothing after {wanted!r}")
        return " ".join(filter(None, [*done, _beside(factors)]))

    def denominator(self) -> list[Factor]:
        """Read words, if there are some, and one factor."""
        factors: list[Factor] = []
        while not factors or factors[-1].words or factors[-1].tex == r"\sum":
            self.add_factor(factors)
        return factors

    def add_factor(self, factors: list[Factor]) -> None:
        """Read a factor with its exponents; words join those before them."""
        found = self.base()
        while self.text() == "^":
            self.at += 1
            minus = "-" if self.text() == "-" else ""
            self.at += len(minus)
            power = self.base(small=True)
            base = f"{{{found.tex}}}" if "^" in found.tex and not found.bare else found.tex
            found = Factor(f"{base}^{_script(minus + (power.bare or power.tex))}")
        if found.words and factors and factors[-1].words:
            found = _words(f"{factors.pop().words} {found.words}")
        factors.append(found)

    def base(self, small: bool = False) -> Factor:
        """Read a number, name, call or parenthesis."""
        if self.opens():
            return self.fenced(small=small)
        if self.at == len(self.tokens) or self.text() in ("/", "^", *SIGNS, *SEPARATORS, ")", "]"):
            raise NotAFormula(f"{self.text() or 'the end'!r} is not expected")
        token = self.tokens[self.at]
        self.at += 1
        if token.kind == "sign":
            return Factor({"...": r"\dots", "*": r"\cdot"}.get(token.text, token.text))
        if token.kind == "number":
            power = re.sub(r"e(-?\d+)", r" \\cdot 10^{\1}", token.text)
            return Factor(power.removeprefix(r"1 \cdot "))
        if token.kind == "code":
            return Factor(_code(token.text[1:-1]))
        called = self.text() == "(" and self.glued()
        if (
            token.kind == "word"
            or (token.text == "mean" and not called and self.text() != "|")
            or (token.text == "sum" and self.text() in ("of", "over"))
            or not (called or is_name(token.text, self.names))
        ):
            return _words(token.text)
        if called and token.text in ("sqrt", "cbrt"):
            root = {"sqrt": r"\sqrt", "cbrt": r"\sqrt[3]"}[token.text]
            return Factor(f"{root}{{{self.fenced().bare}}}")
        symbol = self.symbol(token.text, called)
        if self.text() == "[" and self.glued():
            return Factor(f"{symbol}_{_script(self.fenced('[').bare)}")
        return Factor(symbol + self.fenced().tex) if called else Factor(symbol)

    def symbol(self, text: str, called: bool) -> str:
        """Return a name as TeX: letters in italics, arguments as code, functions upright."""
        plain = text.rstrip("'")
        found = {"infinity": r"\infty", "gbar": r"\bar{g}"}.get(plain)
        if plain == "sum" and not called:
            found = r"\sum"
        elif split := re.fullmatch(rf"({_LETTER})(?:(\d+)|_([^\W_]+))?", plain):
            found, below = _letter(split[1]), split[2] or split[3]
            if below:
                is_short = below.isdecimal() or re.fullmatch(rf"inf|..|{_LETTER}", below)
                found += f"_{_script(_letter(below) if is_short else _words(below).tex)}"
        elif found is None:
            is_code = "_" in plain or plain in self.names or plain in KNOWN - FUNCTIONS
            found = _code(plain) if is_code else rf"\operatorname{{{plain}}}"
        return found + text[len(plain) :]

    def fenced(self, bare: str = "(", small: bool = False) -> Factor:
        """Read a parenthesis, bracket, norm or inner product; one like `bare` can be left out."""
        sign = self.text()
        self.open.append(sign)
        self.at += 1
        inside = self.items(small)
        if not self.closes():
            raise NotAFormula(f"{sign!r} is not closed")
        self.open.pop()
        self.at += 1
        _, left, right = FENCES[sign]
        if _TALL.search(inside):
            left, right = rf"\mathopen{{}}\left{left}", rf"\right{right}"
        return Factor(f"{left} {inside} {right}", inside if sign == bare else "")


def is_name(text: str, names: frozenset[str]) -> bool:
    """Whether a name stands for a number or a function, and is not a word."""
    plain = text.rstrip("'")
    return (
        "_" in plain
        or plain in names
        or plain in KNOWN
        or plain in ("infinity", "gbar")
        or bool(re.fullmatch(rf"({_LETTER})\d*", plain))
    )


def _letter(text: str) -> str:
    return r"\infty" if text == "inf" else GREEK.get(text, text)


def _words(text: str) -> Factor:
    return Factor(rf"\text{{{text}}}", words=text)


def _code(text: str) -> str:
    escaped = re.sub(r"([_{}#%&$])", r"\\\1", text)
    return rf"\texttt{{{escaped}}}"


def _script(text: str) -> str:
    return text if len(text) == 1 else f"{{{text}}}"


def _fraction(top: list[Factor], bottom: list[Factor], small: bool) -> Factor:
    if small:
        return Factor(f"{_beside(top)} / {_beside(bottom)}")
    above, below = ((len(part) == 1 and part[0].bare) or _beside(part) for part in (top, bottom))
    return Factor(rf"\frac{{{above}}}{{{below}}}")


def _beside(factors: list[Factor]) -> str:
    """Return factors with spaces between them; TeX itself leaves those beside operators."""
    found = [factors[0].tex] if factors else []
    for before, factor in itertools.pairwise(factors):
        operators = (r"\sum", r"\cdot", "*_")
        is_operated = before.tex.startswith(operators) or factor.tex.startswith(operators)
        space = r"\ " if before.words or factor.words else " " if is_operated else r"\, "
        found += [space, factor.tex]
    return "".join(found)
