"""The uses of Optax in a Python file, found in its syntax tree; nothing is run or imported."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Use(NamedTuple):
    """One use of a name of Optax."""

    line: int
    column: int  # from 1
    name: str  # without `optax.`; "" for the module itself, "*" for a star import
    call: ast.Call | None  # the call, if the name is called
    within: str  # "isinstance", "annotation", "import" or ""
    root: ast.Name | None  # the word that is bound to Optax, or to a part of it


class Binding(NamedTuple):
    """A word that an import binds."""

    word: str
    name: str  # of Optax, without `optax.`


def is_optax(module: str | None) -> bool:
    """Whether a module is Optax or in it."""
    return module is not None and (module == "optax" or module.startswith("optax."))


def inner(module: str) -> str:
    """Return the name of a module of Optax without `optax.`."""
    return module.removeprefix("optax").removeprefix(".")


def dotted_name(*names: str) -> str:
    """Return names with dots between them."""
    return ".".join(filter(None, names))


def optax_bindings(node: ast.stmt) -> Iterator[Binding]:
    """Yield the words that an import statement binds to Optax."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if is_optax(alias.name):
                if alias.asname is None:
                    yield Binding("optax", "")
                else:
                    yield Binding(alias.asname, inner(alias.name))
    elif isinstance(node, ast.ImportFrom) and not node.level and is_optax(node.module):
        for alias in node.names:
            if alias.name != "*":
                name = dotted_name(inner(node.module or ""), alias.name)
                yield Binding(alias.asname or alias.name, name)


def find_uses(tree: ast.Module) -> list[Use]:
    """Return the uses of Optax in a file, in order."""
    names_of_words: dict[str, str] = {}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names_of_words |= {b.word: b.name for b in optax_bindings(node)}
            if isinstance(node, ast.ImportFrom) and not node.level and is_optax(node.module):
                for alias in node.names:
                    star = alias.name == "*"
                    name = "*" if star else dotted_name(inner(node.module or ""), alias.name)
                    uses.append(Use(alias.lineno, alias.col_offset + 1, name, None, "import", None))
    visitor = _Visitor(names_of_words)
    visitor.visit(tree)
    used = {use.name for use in visitor.uses}
    # An import is listed where nothing else would tell of the name.
    imported = [use for use in uses if not any(f"{u}.".startswith(f"{use.name}.") for u in used)]
    return sorted(imported + visitor.uses, key=lambda use: use[:3])


class _Visitor(ast.NodeVisitor):
    """Finds the words that are bound to Optax, with the attributes behind them."""

    def __init__(self, names_of_words: dict[str, str]) -> None:
        self.names_of_words, self.uses = names_of_words, []
        self.hidden: list[set[str]] = []  # parameters of the functions around the node
        self.within = ""

    def visit_Name(self, node: ast.Name) -> None:
        """Note a bare word."""
        self.note(node, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note a dotted name, or look inside of it."""
        if not self.note(node, None):
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Note a name that is called, and look into the arguments."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not self.note(node.func, node):
            self.visit(node.func)
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[module, ast.Constant(value=str()), *_]
            ):
                text: Any = node.args[1]
                attribute = ast.Attribute(module, text.value, ast.Load(), lineno=0, col_offset=0)
                if self.note(ast.copy_location(attribute, node), None):
                    return
        self.inside(
            [*node.args, *(k.value for k in node.keywords)],
            "isinstance" if name in ("isinstance", "issubclass") else self.within,
        )

    def inside(self, nodes: Iterable[Any], within: str) -> None:
        """Visit nodes, and note what they are within."""
        before, self.within = self.within, within
        for node in nodes:
            if node is not None:
                self.visit(node)
        self.within = before

    def annotation(self, node: ast.expr | None) -> None:
        """Visit an annotation, which may be a string."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                parsed = ast.parse(node.value.strip(), mode="eval").body
            except SyntaxError:
                return
            for part in ast.walk(parsed):
                if "lineno" in part._attributes:
                    ast.copy_location(part, node)
            node = parsed
        self.inside([node], "annotation")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit target, annotation and value."""
        self.annotation(node.annotation)
        self.inside([node.target, node.value], self.within)

    def function(self, node: Any, body: list[Any]) -> None:
        """Visit a function; its parameters hide words of the same name."""
        a = node.args
        args = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        args = [arg for arg in args if arg is not None]
        self.inside([*a.defaults, *a.kw_defaults], self.within)
        for arg in args:
            self.annotation(arg.annotation)
        self.annotation(getattr(node, "returns", None))
        self.hidden.append({arg.arg for arg in args})
        self.inside(body, "")
        self.hidden.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit a function."""
        self.inside(node.decorator_list, "")
        self.function(node, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Visit a function."""
        self.inside(node.decorator_list, "")
        self.function(node, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Visit a function."""
        self.function(node, [node.body])

    def note(self, node: Any, call: ast.Call | None) -> bool:
        """Note a name if it begins with a word that is bound to Optax; return whether it does."""
        words, root = [], node
        while isinstance(root, ast.Attribute):
            words.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name) or not isinstance(root.ctx, ast.Load):
            return False
        if root.id not in self.names_of_words or any(root.id in names for names in self.hidden):
            return False
        name = dotted_name(self.names_of_words[root.id], *reversed(words))
        where = (node.lineno, node.col_offset + 1)
        self.uses.append(Use(*where, name, call, self.within, root))
        return True
