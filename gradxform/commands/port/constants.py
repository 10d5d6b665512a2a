"""Constants of a file: names that it binds once, at the top, and never again."""

import ast
from collections import Counter
from collections.abc import Iterator


def constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that are bound once in a file, by a statement at its top."""
    times = Counter(name for node in ast.walk(tree) for name in _bound_names(node))
    return {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for target in [
            statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        ]
        if isinstance(target, ast.Name) and times[target.id] == 1
    }


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, or may let others bind."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            yield node.id
        case ast.arg():
            yield node.arg
        case ast.alias():
            yield (node.asname or node.name).partition(".")[0]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            yield node.name or ""
        case ast.MatchAs() | ast.MatchStar():
            yield node.name or ""
        case ast.MatchMapping():
            yield node.rest or ""
        case ast.Global() | ast.Nonlocal():
            yield from node.names
