"""Traits: the facts that one transform may know of another, all in one list.

Wrappers that change, move, average or divide what they hold read them. A trait that is declared
wrongly or left out breaks the promise that its row names. `docs/traits.md` shows the list.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, get_args

from gradxform._names.deferred import annotations_of

__all__ = ["Trait", "Traits", "RuleTraits", "GuardTraits", "traits_of"]


class Trait(NamedTuple):
    """The entry of a trait in the list, beside its name, its type and its default."""

    sentence: str  # what a transform says by it
    declared_by: str  # who must declare it
    read_by: str  # the modules that ask for it
    kept_by: str  # the promise that it breaks where it is wrong, or the file of tests
    type: str = ""  # its type, where the annotation is Any because a property may take its place


class Traits:
    """The facts that a transform declares of itself, each with a default."""

    # --------------------------------------------------------------------------- how far it looks

    locality: Annotated[
        Any,
        Trait(
            'How far a change of one entry reaches: "entry", "row", "array" or "tree".',
            "Rules. Wrappers and chains derive it from their parts.",
            "base/rule, base/transformation, distributed/shares/reach, engine/rows, engine/run, "
            "wrappers/compose",
            "looks_no_further_than_it_says",
            "str",
        ),
    ] = "tree"
    asks_for_sums: Annotated[
        ClassVar[bool],
        Trait(
            "All that it needs of the whole tree are sums that are right for shards too, such as "
            "those of `engine.sum_of_squares`.",
            "Rules and wrappers that look at the whole tree, for `zero1`.",
            "distributed/shares/reach",
            "tests/distributed/zero/test_catalogue.py",
        ),
    ] = False
    sees_pieces: Annotated[
        ClassVar[bool],
        Trait(
            "It looks at whole arrays or matrices only through the engine (`array_sums`, ...), "
            "which adds or gathers the pieces that devices have.",
            "Rules that look at whole arrays, for `zero1`.",
            "distributed/shares/reach, engine/lift",
            "tests/distributed/zero/test_catalogue.py",
        ),
    ] = False
    handles_rows: Annotated[
        ClassVar[bool],
        Trait(
            "Its `update` knows what to do with a `RowSparse`. Others are not called with one.",
            "Wrappers and transforms without a rule; rules that refuse them.",
            "base/rule",
            "touches_rows_or_refuses",
        ),
    ] = False
    why_no_rows: Annotated[
        ClassVar[str | None],
        Trait(
            "Why `update` refuses a `RowSparse`, where its locality is not the reason.",
            "Transforms that refuse them.",
            "base/rule",
            "touches_rows_or_refuses",
        ),
    ] = None

    # ------------------------------------------------------------------- where the parameters are

    follows: Annotated[
        Any,
        Trait(
            "The slots that are copies of the parameters, and move with them, whatever moves them.",
            "Transforms that keep such a slot.",
            "base/transformation, wrappers/parts, wrappers/stored/wrapper",
            "copies_move_with_the_parameters",
            "tuple[str, ...]",
        ),
    ] = ()
    copies: Annotated[
        ClassVar[tuple[str, ...]],
        Trait(
            "The slots that begin as copies of the parameters, and do not move with them. A rule "
            "measures how far they are apart, so that no storage rounds them.",
            "Rules that keep such a slot.",
            "wrappers/stored/wrapper",
            "says_which_slots_are_copies",
        ),
    ] = ()
    holds: Annotated[
        ClassVar[tuple[tuple[str, str], ...]],
        Trait(
            "For each transform in it, the field that holds it, and the field of the state that "
            "holds its state.",
            "Wrappers, unless they define `moved` and `inner_states`.",
            "base/transformation, training/loss_scales, wrappers/checks, wrappers/parts",
            "what_is_inside_is_told_of_moves",
        ),
    ] = ()
    undoes_moves: Annotated[
        ClassVar[bool],
        Trait(
            "Its steps lead to a place that does not depend on where the parameters are.",
            "Transforms that go on from a place of their own, such as a center.",
            "wrappers/parts",
            "says_where_its_steps_lead",
        ),
    ] = False
    sets_params: Annotated[
        Any,
        Trait(
            "Its updates lead to a place where the parameters must be, such as a set: what comes "
            "after it must not change them.",
            "Projections, bounds of norms, masters.",
            "base/rule, wrappers/changed_steps",
            "says_where_its_steps_lead",
            "bool",
        ),
    ] = False
    leaves_path: Annotated[
        Any,
        Trait(
            "The parameters between some of its updates are not those of the run. A string says "
            "what takes the place of their average.",
            "Transforms that try points, and may reject them.",
            "wrappers/average",
            "says_where_its_steps_lead",
            "bool | str",
        ),
    ] = False
    records_params: Annotated[
        ClassVar[bool],
        Trait(
            "It records where the parameters go: a chain tells it what becomes of its updates.",
            "Averages.",
            "wrappers/parts",
            "says_where_its_steps_lead",
        ),
    ] = False

    # ------------------------------------------------------------------------ what its updates are

    keeps_updates: Annotated[
        Any,
        Trait(
            "It returns the updates that it gets, as a part that only looks at them does.",
            "Parts without a rule.",
            "training/loss_scales, wrappers/changed_steps",
            "says_what_its_updates_are",
            "bool",
        ),
    ] = False
    needs_overflows: Annotated[
        Any,
        Trait(
            "It adapts to gradients that are not finite, and so must get them.",
            "Loss scales that adapt.",
            "wrappers/changed_steps",
            "tests/wrappers/test_loss_scale.py",
            "bool",
        ),
    ] = False
    zeros_unless: Annotated[
        Any,
        Trait(
            "The field of the state that is 0 after every update that is not all zeros; None "
            "without such a field.",
            "Transforms that gather gradients, so that `zero1` gathers parameters only after a "
            "step.",
            "distributed/zero/gather",
            "says_what_its_updates_are",
            "str | None",
        ),
    ] = None
    exact_updates: Annotated[
        ClassVar[bool],
        Trait(
            "Its updates are float32 for parameters of fewer bits, and must stay so.",
            "Masters.",
            "tables/describe, wrappers/parts",
            "narrow_parameters_have_wide_slots",
        ),
    ] = False
    begins_small: Annotated[
        ClassVar[bool],
        Trait(
            "Its first steps are so small that 16-bit parameters round them away, and later steps "
            "grow with the distance moved: without masters, the parameters never move.",
            "Rules that find their step size from the distance moved.",
            "tables/describe",
            "narrow_parameters_have_wide_slots",
        ),
    ] = False
    is_one_run: Annotated[
        Any,
        Trait(
            "It is all rules that run over the leaves together, so that its `update_params` takes "
            "parameters which are stored in another form, and returns them so.",
            "Rules without an `update` of their own. Chains and storage derive it.",
            "wrappers/one_pass",
            "tests/engine/test_one_pass.py",
            "bool",
        ),
    ] = False
    only_stores: Annotated[
        ClassVar[bool],
        Trait(
            "It changes only how a state is kept, so that a chain takes its rules among its own.",
            "Wrappers that store states in another form or memory.",
            "wrappers/compose",
            "tests/engine/test_one_pass.py",
        ),
    ] = False
    exchanges: Annotated[
        Any,
        Trait(
            "The mesh axes between whose devices `update` itself exchanges something. Before "
            "something runs it under a condition, the devices must agree on that along them.",
            "Distributed transforms, and wrappers with an `axis_name`.",
            "distributed/matrices/shard_matrices, distributed/programs/measures, "
            "distributed/specs/state_specs, wrappers/agree, wrappers/checks, wrappers/sam",
            "names_the_axes_that_it_needs",
            "tuple[str, ...]",
        ),
    ] = ()
    divides: Annotated[
        Any,
        Trait(
            "The mesh axes over whose devices its state is divided, so that each has a part.",
            "Distributed transforms that keep less on each of several devices.",
            "distributed/specs/slot_dims, distributed/specs/state_specs, distributed/wire/axis",
            "names_the_axes_that_it_needs",
            "tuple[str, ...]",
        ),
    ] = ()
    takes_whole: Annotated[
        ClassVar[bool],
        Trait(
            "It needs whole parameters on each of the devices that divide its state, and gives "
            "all of them the same updates.",
            "Whoever cuts and gathers arrays itself.",
            "distributed/specs/state_specs",
            "names_the_axes_that_it_needs",
        ),
    ] = False

    # -------------------------------------------------------------- what `migrate_state` must know

    averages_of: Annotated[
        ClassVar[tuple[tuple[str, str], ...]],
        Trait(
            "The slots that are decaying averages, each with what is averaged: another rule's "
            "average of the same goes on in it. Sums, maxima and averages with weights of their "
            "own are not named.",
            "Rules that keep little else: another slot, which begins at 0, would seem to be as old "
            "as the average.",
            "run_states/migration/layout, run_states/migration/pairs",
            "says_what_its_state_holds",
        ),
    ] = ()
    step_fields: Annotated[
        ClassVar[tuple[str, ...]],
        Trait(
            "The fields of the state that count the steps of the run.",
            "Transforms that count them under another name, or something else under this one.",
            "base/first_state, run_states/metrics, run_states/migration/layout, "
            "run_states/migration/pairs, run_states/migration/sources",
            "says_what_its_state_holds",
        ),
    ] = ("count",)
    counts_inner_steps: Annotated[
        ClassVar[bool],
        Trait(
            "Its `step_fields` count the steps of the transform inside, which may have taken some "
            "before the wrapper begins.",
            "Wrappers that take several gradients for a step.",
            "run_states/migration/layout, run_states/migration/sources",
            "says_what_its_state_holds",
        ),
    ] = False
    set_by: Annotated[
        Any,
        Trait(
            "The fields of the state that begin with the value of an attribute, or with the values "
            "of a dict, each with that attribute: where a state goes on under a transform with "
            "another value, it takes that.",
            "Transforms that have a seed or a hyperparameter in their state.",
            "run_states/migration/sources",
            "says_what_its_state_holds",
            "tuple[tuple[str, str], ...]",
        ),
    ] = ()


class RuleTraits(Traits):
    """The facts that only an `ArrayRule` declares of itself."""

    State: Annotated[
        Any,
        Trait(
            "The class of the state that `init` returns; a property where that depends on the "
            "fields. Where it is None, `init` is run to find it.",
            "Rules with a state.",
            "base/first_state, base/rule, base/transformation, leaves/states",
            "follows_its_reference",
            "type | None",
        ),
    ] = None
    unused_slots: Annotated[
        Any,
        Trait(
            "The slots that it does without, and its count: they are None in the state, and `rule` "
            "gets and returns None in the place of a slot.",
            "Rules that keep a slot, or a count, with an option only.",
            "base/first_state, engine/one_leaf, leaves/states",
            "follows_its_reference",
            "tuple[str, ...]",
        ),
    ] = ()
    needs_params: Annotated[
        ClassVar[bool],
        Trait(
            "Its rule reads the parameters.",
            "Rules that do.",
            "engine/run, experimental/process",
            "asks_for_params_by_name",
        ),
    ] = False
    handles_complex: Annotated[
        ClassVar[bool],
        Trait(
            "Its rule is right for complex numbers. Others refuse them.",
            "Rules for which that is so.",
            "engine/lift",
            "turns_with_complex_numbers_or_refuses",
        ),
    ] = False
    rule_locality: Annotated[
        ClassVar[str | None],
        Trait(
            "How far `rule` itself looks, if only `prepare` looks as far as `locality`.",
            "Rules whose `prepare` does.",
            "engine/rows",
            "touches_rows_or_refuses",
        ),
    ] = None
    by_entry_after_sums: Annotated[
        ClassVar[bool],
        Trait(
            "With the results of `array_sums` known, `rule` computes its update entry by entry, so "
            "that tiles of it can be made where they are used.",
            "Rules whose update stored slots may follow, for TPUs.",
            "engine/one_leaf",
            "tests/engine/test_one_pass.py",
        ),
    ] = False


class GuardTraits(Traits):
    """What a `Guard`, which decides whether a step is taken, says to the guards around it."""

    looks_at_gradients: Annotated[
        Any,
        Trait(
            "It decides by how large the gradients are, or whether they are finite.",
            "Guards that do.",
            "wrappers/checks",
            "what_is_inside_takes_the_inner_steps",
            "bool",
        ),
    ] = False
    passes_gradients: Annotated[
        Any,
        Trait(
            "Its inner transform gets the gradients of the same step, scaled at most: what is "
            "known of them holds inside, too.",
            "Guards that gather gradients.",
            "wrappers/checks",
            "what_is_inside_takes_the_inner_steps",
            "bool",
        ),
    ] = True
    flags_vary: Annotated[
        Any,
        Trait(
            "Its flags depend on extra arguments, which may differ between devices that have "
            "shards of the gradients.",
            "Guards whose flags follow from their state.",
            "wrappers/checks",
            "what_is_inside_takes_the_inner_steps",
            "bool",
        ),
    ] = True


def traits_of(*kinds: type[Traits]) -> Mapping[str, Trait]:
    """Return the traits that some classes may declare, by name, in order; by default all."""
    rows: dict[str, Trait] = {}
    for base in (b for kind in kinds or (RuleTraits, GuardTraits) for b in reversed(kind.__mro__)):
        if issubclass(base, Traits):
            rows |= {k: row for k, x in annotations_of(base).items() if (row := _trait_in(x))}
    return rows


def _trait_in(annotation: Any) -> Trait | None:
    """Return the entry in the annotation of an attribute, at any depth of it."""
    if isinstance(annotation, Trait):
        return annotation
    return next((row for x in get_args(annotation) if (row := _trait_in(x))), None)
