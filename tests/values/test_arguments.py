"""What `help` prints: every argument described, once in the sources, and signatures to be read."""

import ast
import inspect
import re
import textwrap
import typing

import pytest

import gradxform as gx
from gradxform._names.signatures import spelled_annotation
from gradxform.commands import catalog
from gradxform.optimizers.optimizer import decayed_descent
from gradxform.types import Decay, ScalarOrSchedule, Schedule
from gradxform.values import docstrings
from gradxform.values.fields import range_words
from gradxform.values.registry import REGISTRY

ENTRIES = [e for e in catalog.registered_parts() if ":" not in e.name and e.kind != "masks"]
RECIPES = list(gx.OPTIMIZERS)


def tree_of(recipe):
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(gx.OPTIMIZERS[recipe]))).body
    return tree


def own_doc(recipe):
    """The docstring as its author wrote it."""
    return ast.get_docstring(tree_of(recipe))


def rules_of(recipe):
    """The registered parts that a recipe names, in its code or in its docstring."""
    tree = tree_of(recipe)
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    named -= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    named |= set(re.findall(r"`(\w+)`", own_doc(recipe)))
    return sorted(named & set(REGISTRY) - {recipe})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_help_describes_every_argument_in_order(entry):
    described = docstrings.doc_of(entry.part).arguments
    names = [a.name.lstrip("*") for a in entry.arguments]
    assert [name for name in described if name in names] == names
    assert all(described[name].strip() for name in names)


def repeated(own, rules):
    """The arguments that are described in the words of a rule."""
    texts = [
        docstrings.doc_of(part).arguments for part in (decayed_descent, *map(REGISTRY.get, rules))
    ]
    return [name for name, text in own.items() if any(t.get(name) == text for t in texts)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_describes_what_its_rules_do_not(recipe):
    own = docstrings.parse(own_doc(recipe)).arguments
    said = f"{repeated(own, rules_of(recipe))} repeats a rule: see the rule for it instead"
    assert not repeated(own, rules_of(recipe)), said


def test_a_repeated_description_is_seen():
    own = docstrings.doc_of(gx.scale_by_adam).arguments
    assert repeated({"b1": own["b1"], "b2": "else"}, rules_of("adam")) == ["b1"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_range_of_an_argument_is_that_of_its_rule(recipe):
    elsewhere = re.search(r"See\s(.*?)\sfor\sthe\s(?:other\s)?arguments\.", own_doc(recipe), re.S)
    sources = re.findall(r"`(\w+)`", elsewhere[1]) if elsewhere else []
    own = docstrings.parse(own_doc(recipe)).arguments
    described = docstrings.doc_of(gx.OPTIMIZERS[recipe]).arguments
    for name in set(described) - set(own):
        rules = [s for s in sources if name in docstrings.doc_of(REGISTRY[s]).arguments]
        if rules:
            assert range_words(REGISTRY[rules[0]], name) in described[name]
        else:  # in the words for an optional weight decay, which only its kind may leave out
            assert described[name] == docstrings.doc_of(decayed_descent).arguments[name]
            assert inspect.signature(gx.OPTIMIZERS[recipe]).parameters[name].default is None
    assert "arguments." not in inspect.getdoc(gx.OPTIMIZERS[recipe]).partition("Args:")[2]


def test_a_docstring_is_completed():
    def recipe(learning_rate, b1=0.9, decay=0.5, beta=0.1, *, mask=None):
        """Descend.

        With a note.

        Args:
          beta: a number that
            needs two lines.
          learning_rate: the rate; it multiplies the decay too.

        See `trace`, `ema` and
        `add_decayed_weights` for the other arguments.

        Reference: Nobody.
        """

    text = docstrings.completed_doc(recipe)
    doc = docstrings.parse(text)
    assert list(doc.arguments) == ["learning_rate", "decay", "beta", "mask"]
    assert doc.arguments["beta"] == "a number that needs two lines."
    assert doc.arguments["decay"] == docstrings.doc_of(gx.trace).arguments["decay"]
    assert doc.notes == "With a note.\n\nSee also `trace`, `ema` and\n`add_decayed_weights`."
    assert doc.reference == "Nobody." and max(map(len, text.split("\n"))) <= 96
    recipe.__doc__ = "Descend.\n\nSee `scale` for the arguments.\n\nReference: Nobody."
    assert docstrings.completed_doc(recipe) == (
        "Descend.\n\nSee also `scale`.\n\nReference: Nobody."  # no argument in common
    )
    recipe.__doc__ = "Descend.\n\nSee `scale_by_lion` and `trace` for the arguments."
    doc = docstrings.parse(docstrings.completed_doc(recipe))
    assert doc.reference == docstrings.doc_of(gx.scale_by_lion).reference  # the first one's
    for text in (None, "Descend.", "See `trace` for the update rule."):
        recipe.__doc__ = text
        assert docstrings.completed_doc(recipe) == text


def test_a_range_that_a_rule_does_not_say_in_words_is_added():
    @gx.transform(name="tests:ranged")
    class ranged(gx.ArrayRule):
        """Do nothing.

        Args:
          b1: the decay. Keyword-only.
          b2: the other decay, in [0, 1).
        """

        b1: Decay = 0.9
        b2: Decay = 0.9

    items = docstrings._items_of_args(ranged)
    assert items == {
        "b1": "  b1: the decay. Must be in [0, 1).",
        "b2": "  b2: the other decay, in [0, 1).",
    }


# ---------------------------------------------------------------------------------- signatures

UGLY = ("jaxlib", "Mark", "Annotated", "typing", "collections", "*args", "Range(", "gradxform.")
# Aliases and protocols: nobody calls them.
TYPES = {name for name in gx.__all__ if getattr(gx, name) is getattr(gx.types, name, None)}


@pytest.mark.parametrize("name", sorted(set(gx.__all__) - (TYPES - {"MaskedNode"})))
def test_signatures_can_be_read(name):
    part = getattr(gx, name)
    if callable(part):
        text = str(inspect.signature(part)).replace("'gradxform'", "")  # a default of that text
        assert not [words for words in UGLY if words in text], text


def test_names_stand_for_annotations():
    assert str(inspect.signature(gx.chain)) == "(*transforms)"
    assert str(inspect.signature(gx.scale_by_learning_rate)) == (
        "(learning_rate: NonNegativeOrSchedule, *, flip_sign: bool = True)"
    )
    text = str(inspect.signature(gx.sgd))
    assert "learning_rate: ScalarOrSchedule, momentum: UnitInterval | None = None" in text
    assert "accumulator_dtype: DType = None" in text and text.endswith("-> chain")
    assert str(inspect.signature(gx.global_norm)).endswith("-> Array")
    assert str(inspect.signature(gx.ArrayRule)) == "()"
    fields = "(count: Array, mu: Slot, nu: NonNegativeSlot)"
    assert str(inspect.signature(gx.ScaleByAdamState)) == fields


def test_the_signature_of_an_instance_is_that_of_its_call():
    assert list(inspect.signature(gx.constant_schedule(0.1)).parameters) == ["count"]


def test_annotations_stay_what_config_loaders_read():
    hints = typing.get_type_hints(gx.adamw, include_extras=True)
    assert hints["learning_rate"] == ScalarOrSchedule and hints["b1"] is float
    assert typing.get_type_hints(gx.scale_by_adam, include_extras=True)["b1"] == Decay
    parameters = inspect.signature(gx.adamw).parameters
    assert parameters["learning_rate"].annotation == ScalarOrSchedule
    assert parameters["b1"].annotation is float
    assert str(parameters["learning_rate"]) == "learning_rate: ScalarOrSchedule"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Schedule | None, "Schedule | None"),
        (ScalarOrSchedule | None, "ScalarOrSchedule | None"),
        (int | ScalarOrSchedule, "int | ScalarOrSchedule"),
        (typing.Optional[Decay], "Decay | None"),  # noqa: UP045
        (typing.Callable[[int], int], "Callable"),
        (tuple[Decay, ...], "tuple[Decay, ...]"),
        (typing.Literal["a", 1], "Literal['a', 1]"),
        (typing.Annotated[int, "mine"], "int"),
        (None, "None"),
        ("Any", "Any"),
    ],
)
def test_annotations_are_spelled_by_their_names(annotation, text):
    assert spelled_annotation(annotation) == text
