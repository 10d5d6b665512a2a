"""Recipes hand on what they take."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import gradxform.optimizers

FOLDER = Path(gradxform.optimizers.__file__).parent


def recipes():
    for file in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(x, ast.Name) and x.id == "optimizer" for x in node.decorator_list
            ):
                yield pytest.param(file.stem, node, id=node.name)


@pytest.mark.parametrize(("file", "recipe"), list(recipes()))
def test_every_argument_of_a_recipe_is_read_or_handed_on(file, recipe):
    # `with_arguments(part, locals())` takes what has a name of the part's, and no more.
    module = importlib.import_module(f"gradxform.optimizers.{file}")
    read = {x.id for body in recipe.body for x in ast.walk(body) if isinstance(x, ast.Name)}
    for call in (x for body in recipe.body for x in ast.walk(body) if isinstance(x, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id == "with_arguments":
            read |= set(inspect.signature(getattr(module, call.args[0].id)).parameters)
        elif any(k.arg is None and ast.unparse(k.value) == "locals()" for k in call.keywords):
            read |= set(inspect.signature(getattr(module, call.func.id)).parameters)
    of = recipe.args
    names = {x.arg for x in (*of.posonlyargs, *of.args, *of.kwonlyargs)}
    assert names <= read, names - read
