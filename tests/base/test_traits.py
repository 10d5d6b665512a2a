"""Traits: one list, and for each trait a promise that fails where it is wrong."""

import ast
import contextlib
import dataclasses
import re

import jax.numpy as jnp
import pytest

import gradxform as gx
import gradxform.distributed as gd
from docs.site import traits as page
from gradxform.base import ArrayRule, Transform
from gradxform.base.traits import GuardTraits, RuleTraits, Traits, traits_of
from gradxform.testing import PROMISES
from gradxform.testing.promise import Broken, Skipped
from gradxform.wrappers.checks import Guard
from tests.catalogue import CASES
from tests.catalogue.case import Case
from tests.catalogue.distributed import alone
from tests.environment import ROOT

PACKAGE = ROOT / "gradxform"
TRAITS = traits_of()
# What the promise of a trait cannot see of one that is left out, and why.
UNSEEN = {
    ("sets_params", "step_by_lbfgs"): "its steps need the loss as a function",
    ("sets_params", "step_by_lbfgsb"): "its steps need the loss as a function",
    ("sets_params", "qk_clip"): "its steps need the largest logits",
    ("sets_params", "master_weights"): "the row has parameters of 32 bits",
    ("sets_params", "stochastic_rounding"): "the row has parameters of 32 bits",
    ("sets_params", "kahan"): "it follows what something else has moved",
    ("sets_params", "overwriting_average"): "no row overwrites within seven steps",
    ("leaves_path", "step_by_lbfgs"): "its steps need the loss as a function",
    ("leaves_path", "step_by_lbfgsb"): "its steps need the loss as a function",
    ("undoes_moves", "step_by_ftrl"): "its first step takes back a part of a move only",
    ("zeros_unless", "skip_loss_spikes"): "the losses of the row do not rise",
    **{
        ("averages_of", f"scale_by_{name}"): "it keeps something else, too"
        for name in (
            *("amsgrad", "torch_amsgrad", "tf_amsgrad", "belief", "rectified_belief"),
            *("nadam", "adamax", "yogi", "acprop", "adabound", "padam"),
        )
    },
    ("begins_small", "scale_by_dog"): "the parameters of the rows are few and small",
    ("begins_small", "scale_by_dowg"): "the parameters of the rows are few and small",
    ("begins_small", "mechanize"): "the parameters of the rows are few and small",
    ("begins_small", "trac"): "the parameters of the rows are few and small",
    ("step_fields", "skip_loss_spikes"): "the losses of the row do not rise",
    ("step_fields", "drop_stale"): "a wrapper may count its own steps",
    ("keeps_updates", "monitor"): "a wrapper may pass dense gradients on",
    ("holds", "raw_gradient_norms"): "its own `moved` tells what it holds",
    ("set_by", "injected"): "its numbers are not fields",
    ("rule_locality", "adagc"): "it refuses row-sparse gradients either way",
}
# Traits that others declare too often to leave out each: they have promises of their own.
OFTEN = (
    *("locality", "handles_rows", "why_no_rows", "asks_for_sums", "sees_pieces", "State"),
    *("is_one_run", "only_stores"),
)
OF_LOSS_SCALE = ("needs_overflows",)  # of one class, whose tests construct what it forbids
OF_AXES = ("exchanges", "divides", "takes_whole")
OF_SPEED = ("by_entry_after_sums",)  # breaks no number where it is left out
WRONG = {"needs_params", "handles_complex", *OF_SPEED, *OF_AXES, *OF_LOSS_SCALE, *OFTEN}
BASES = (ArrayRule, Guard, Traits)


def declared():
    """Yield each trait with a class that declares it, and the rows of that class."""
    rows = {}
    for name, case in CASES.items():
        if isinstance(case.tx, Transform):
            rows.setdefault(type(case.tx), []).append(name)
    for trait in TRAITS:
        for kind, names in rows.items():
            owner = next((x for x in kind.__mro__ if trait in vars(x)), Traits)
            if trait not in WRONG and owner not in (*BASES, RuleTraits, GuardTraits):
                yield pytest.param(trait, kind, names, id=f"{trait}-{kind.__name__}")


def default_of(kind, trait):
    """What a class says that does not declare a trait."""
    return getattr(next(base for base in BASES if issubclass(kind, base)), trait)


@contextlib.contextmanager
def set_to(kind, trait, value):
    """Let a class say something else in a trait."""
    own = vars(kind).get(trait)
    setattr(kind, trait, value)
    try:
        yield
    finally:
        delattr(kind, trait) if own is None else setattr(kind, trait, own)


@pytest.mark.parametrize("trait, kind, names", list(declared()))
def test_a_trait_that_is_left_out_breaks_its_promise(trait, kind, names):
    if (trait, kind.__name__) in UNSEEN:
        pytest.skip(UNSEEN[trait, kind.__name__])
    if trait == "follows" and kind.moved is not Transform.moved:
        pytest.skip("its own `moved` moves the slot")
    if all(getattr(CASES[name].tx, trait) == default_of(kind, trait) for name in names):
        pytest.skip("no row needs it")
    promises = [PROMISES[TRAITS[trait].kept_by]]
    promises += [PROMISES["says_what_its_state_holds"]] if trait == "holds" else []
    with set_to(kind, trait, default_of(kind, trait)):
        for name in names:
            for promise in promises:
                # A copy of the case compiles anew what it does.
                with contextlib.suppress(Skipped):
                    try:
                        promise(dataclasses.replace(CASES[name]))
                    except Broken:
                        return
    pytest.fail(f"nothing breaks if {kind.__name__} does not declare {trait}")


def test_a_trait_that_is_declared_wrongly_breaks_its_promise():
    class Wrong(gx.ArrayRule):
        """Scale by 0.1, and say something else."""

        def rule(self, g, p):
            """Return 0.1 g."""
            return (jnp.real(g).astype(g.dtype) * jnp.asarray(0.1, g.dtype),)

    wrong = {
        "keeps_updates": (True, "says_what_its_updates_are"),
        "undoes_moves": (True, "says_where_its_steps_lead"),
        "handles_complex": (True, "turns_with_complex_numbers_or_refuses"),
        "exact_updates": (True, "narrow_parameters_have_wide_slots"),
        "begins_small": (True, "narrow_parameters_have_wide_slots"),
    }
    for trait, (value, promise) in wrong.items():
        kind = gx.transform(type(f"wrong_{trait}", (Wrong,), {trait: value, "__doc__": "Wrong."}))
        with pytest.raises(Broken, match=trait):
            PROMISES[promise](dataclasses.replace(CASES["scale"], tx=kind()))
        assert TRAITS[trait].kept_by == promise


def test_the_list_says_who_reads_each_trait_and_what_keeps_it():
    readers = {name: set() for name in TRAITS}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if place.startswith(("testing/", "base/traits")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = None
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = node.attr
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                name = getattr(node.args[1], "value", None)
            if name in readers:
                readers[name].add(place)
    for name, trait in TRAITS.items():
        says = set(trait.read_by.split(", "))
        assert says <= readers[name], f"{name}: {says - readers[name]} do not read it"
        assert trait.kept_by in PROMISES or (ROOT / trait.kept_by).is_file(), name
        assert re.fullmatch(r"[A-Z].*\.", trait.sentence), name


def test_the_page_for_authors_is_made_from_the_list():
    assert page.page() == page.PAGE.read_text(encoding="utf-8"), "run `make tables`"


WHOLE = {"w": 0, "b": None}
# Transforms that name axes, and one of the traits in which they do, with what would be wrong.
NAMING = [
    (gd.model_average(gx.sgd(0.1), "r", period=1), "exchanges", ("r", "x")),
    (gd.model_average(gx.sgd(0.1), "r", period=1, inner_axes=("x",)), "exchanges", ("r",)),
    (gd.elastic_average(gx.sgd(0.1), "r", period=1, rho=0.1), "exchanges", ()),
    (gd.agn(gx.sgd(0.1), "r", period=1), "exchanges", ()),
    (gd.outer(gx.sgd(0.1), gx.scale(-1.0), "r", period=1), "exchanges", ()),
    (gd.tower(gx.sgd(0.1), "r"), "exchanges", ()),
    (gd.sync_replicas(gx.sgd(0.1), "r"), "exchanges", ()),
    (gd.zero1(gx.sgd(0.1), "r"), "exchanges", ()),
    (gx.loss_scale(gx.sgd(0.1), axis_name="r"), "exchanges", None),  # a guard obeys its own
    (
        gx.sam(gx.sgd(0.1), gx.sgd(0.05), opaque_mode=True, batch_axis_name="r"),
        "exchanges",
        (),
    ),
    (gd.zero1(gx.adam(0.1), "r"), "divides", ()),
    (gd.zero1(gx.adam(0.1), "r"), "takes_whole", False),
    (gd.shard_matrices(gx.soap(0.1), "r", WHOLE), "divides", ()),
    (gd.shard_matrices(gx.soap(0.1), "r", WHOLE), "takes_whole", True),
    (
        gd.model_average(gx.sgd(0.1), "r", period=1, inner_axes=("x",), compress=gd.int8(2)),
        "divides",
        (),
    ),
    (
        gd.outer(gx.sgd(0.1), gx.scale(-1.0), "r", period=1, inner_axes=("x",), shard_anchor=True),
        "divides",
        (),
    ),
]


@pytest.mark.parametrize(
    "tx, trait, wrong", NAMING, ids=lambda x: x if isinstance(x, str) else type(x).__name__
)
def test_what_names_axes_breaks_its_promise_without_them(tx, trait, wrong):
    extra = {"grad_fn": lambda params, i: params} if isinstance(tx, gx.sam) else {}
    case = Case(alone(tx), extra=extra, tree={"w": jnp.ones((4, 4)), "b": jnp.ones(4)})
    promise = PROMISES[TRAITS[trait].kept_by]
    promise(case)
    if wrong is None:
        return
    with set_to(type(tx), trait, wrong), pytest.raises(Broken, match=trait):
        promise(dataclasses.replace(case))
