"""Recipes hand on what they take."""

import ast
import importlib
import inspect
import typing
from pathlib import Path

import pytest

import gradxform as gx
from gradxform import optimizers

FOLDER = Path(optimizers.__file__).parent


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
            parts = [x for x in ast.walk(call.args[0]) if isinstance(x, ast.Name)]
            for part in (getattr(module, x.id) for x in parts if hasattr(module, x.id)):
                read |= set(inspect.signature(part).parameters)
        elif any(k.arg is None and ast.unparse(k.value) == "locals()" for k in call.keywords):
            read |= set(inspect.signature(getattr(module, call.func.id)).parameters)
    of = recipe.args
    names = {x.arg for x in (*of.posonlyargs, *of.args, *of.kwonlyargs)}
    assert names <= read, names - read


def made(recipe, **arguments):
    """What a recipe returns, with a learning rate of 0.1 where it needs one."""
    parameters = inspect.signature(recipe).parameters
    needed = {k: 0.1 for k, p in parameters.items() if p.default is p.empty and k.endswith("rate")}
    if "layers" in parameters:
        needed["layers"] = {"att": gx.query_key("q", "k", heads=1)}
    return recipe(**needed | arguments)


DECAYING = [
    recipe
    for recipe in (getattr(gx, parameter.id) for parameter in recipes())
    if {"weight_decay", "weight_decay_rate"} & inspect.signature(recipe).parameters.keys()
]


@pytest.mark.parametrize("recipe", DECAYING, ids=lambda recipe: recipe.__name__)
def test_a_decay_of_none_is_none_or_is_refused_by_its_name(recipe):
    name = "weight_decay" if recipe is not gx.adafactor else "weight_decay_rate"
    taken = inspect.signature(recipe).parameters[name].annotation
    if type(None) in typing.get_args(taken):
        assert made(recipe, **{name: None}) is not None
    else:
        words = rf"\b{name} must be a number( or a schedule)?, got None\."
        with pytest.raises(TypeError, match=words):
            made(recipe, **{name: None})


@pytest.mark.parametrize("recipe", DECAYING, ids=lambda recipe: recipe.__name__)
def test_the_mask_of_a_decay_has_two_names_and_one_in_help(recipe):
    parameters = inspect.signature(recipe).parameters
    assert "mask" not in parameters
    if "weight_decay_mask" not in parameters:
        return  # nothing is left out of its decay
    assert "  weight_decay_mask: " in recipe.__doc__
    name = "weight_decay" if recipe is not gx.adafactor else "weight_decay_rate"
    given, mask = {name: 0.1}, {"w": True, "b": False}
    tx = made(recipe, **given, mask=mask)
    assert tx == made(recipe, **given, weight_decay_mask=mask) != made(recipe, **given)
    with pytest.raises(TypeError, match="mask is another name of weight_decay_mask; give one"):
        made(recipe, **given, mask=mask, weight_decay_mask=mask)
