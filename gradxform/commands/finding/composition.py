"""A composition: what is asked for by a name, and is made of parts that are here."""

import ast
import re
import unicodedata
from typing import NamedTuple

# What was compared, in the words of the page.
REFERENCE = "the line with a NumPy reference that is written from the source"
PARTS = "each part by itself, not the two together"

# What the lines use. The page begins with it, and an answer has what its line needs.
NAMES = """\
import gradxform as gx
import gradxform.distributed as gd

lr = 0.02
adam_lr = 0.0003  # of what is not a hidden matrix
w = 0.1  # of the weight decay

# The hidden matrices; `gx.path_matches("kernel$")` selects by name.
matrices = gx.ndim_at_least(2) & ~gx.ndim_at_least(3)
labels = gx.label_by(("matrices", matrices), ("others", True))
schedule = gx.cosine_decay_schedule(lr, 1000)

# Steps as long as lr times the norm of a matrix, which then gets its norm back.
angle = gx.chain(gx.scale_by_trust_ratio(), gx.scale_by_learning_rate(lr, flip_sign=False))
hyperball = gx.masked(gx.chain(angle, gx.keep_matrix_norms()), matrices)
"""


class Composition(NamedTuple):
    """A row: a name, and the line of code that it is here."""

    names: tuple[str, ...]  # the first is the title; case, hyphens and the like do not matter
    what: str  # what it is, in a sentence
    line: str  # an expression of what `NAMES` defines, and of `params`
    source: str  # authors, title and year, or whose repository
    link: str
    compared: str = PARTS
    notes: str = ""  # Markdown: what is not as the source has it, and what to know
    needs: str = ""  # the package of others that the line needs

    @property
    def title(self) -> str:
        """The name under which the page has it."""
        return self.names[0]

    @property
    def page(self) -> str:
        """The place in the documentation."""
        return f"guides/compositions.md#{_slug(self.title)}"


def definitions(line: str, code: str) -> str:
    """Return those statements of some code that a line needs, without imports and comments."""
    wanted, kept = _names_used(ast.parse(line, mode="eval")), []
    for statement in reversed(ast.parse(code).body):
        if _names_set(statement) & wanted:
            wanted |= _names_used(statement)
            kept.append(ast.unparse(statement))
    return "\n".join(reversed(kept))


def _slug(title: str) -> str:
    """Return the anchor of a heading, as the site writes it."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _names_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _names_set(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
