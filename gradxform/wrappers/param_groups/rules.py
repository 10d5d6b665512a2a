"""Rules of `param_groups` from the literature: layer-wise decay of the rates, and muP."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.errors import must_be, require_choice, shown
from gradxform.leaves import Path, is_hole, path_str, shape_of, with_paths
from gradxform.leaves.masks import Mask, check_patterns
from gradxform.types import Params
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.param_groups.param_group import param_group

__all__ = [
    "layerwise_decay",
    "mup",
]


_OPTIMIZERS = ("adam", "sgd")


class Multiplied(NamedTuple):
    """One line of the table that `GroupRules` prints."""

    path: str
    shape: tuple[int, ...]
    kind: str  # "hidden", "output", ...
    learning_rate: float  # the multiplier


class GroupRules(tuple[param_group, ...]):
    """A tuple of rules for `param_groups` that prints as a table of the parameters.

    Args:
      rules: the rules.
      table: a line for every parameter.
    """

    table: tuple[Multiplied, ...]

    def __new__(cls, rules: Iterable[param_group], table: Iterable[Multiplied]) -> "GroupRules":
        """Make a tuple of the rules."""
        group_rules = super().__new__(cls, rules)
        group_rules.table = tuple(table)
        return group_rules

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.table

    def __repr__(self) -> str:
        head = ("parameter", "shape", "kind", "learning rate")
        lines = [
            head,
            *((x.path, str(x.shape), x.kind, _multiplier_in_table(x)) for x in self.table),
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = (
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        title, *body = rows
        return "\n".join([title, "-" * (sum(widths) + 2 * len(widths) - 2), *body])


def _multiplier_in_table(line: Multiplied) -> str:
    return f"x {line.learning_rate:.4g}"


def _shapes(params: Params) -> dict[Path, tuple[int, ...]]:
    return {path: shape_of(p) for path, p in with_paths(params) if not is_hole(p)}


def _group_rules(table: list[Multiplied]) -> GroupRules:
    """Return one rule for every kind and multiplier other than 1."""
    groups: dict[tuple[str, float], list[str]] = {}
    for x in table:
        if x.learning_rate != 1:
            groups.setdefault((x.kind, x.learning_rate), []).append(re.escape(x.path))
    rules = [
        param_group(f"^(?:{'|'.join(paths)})$", factor, label=f"{kind} x {factor:.4g}")
        for (kind, factor), paths in groups.items()
    ]
    return GroupRules(rules, table)


# The names that models give to input embeddings, and to tokens and positions beside them. A head
# may be called `unembed`, or `cls` as the module of BERT; `cls` is a token where it is an array.
INPUTS = (
    r"(?<!un)embed|(?:^|[/_])emb(?:_|/|$)"
    r"|(?:^|/)(?:cls|\w+_tokens?)$"
    r"|(?:^|/)(?:wte|wpe|stem|patchify|rel_pos_bias)(?:/|$)"
)


@with_checked_arguments
def layerwise_decay(
    params: Params,
    decay: float,
    layers: str = r"(?:layers?|blocks?)[_/](\d+)",
    embeddings: str | None = INPUTS,
    *,
    stacks: Sequence[str] | None = None,
    head: bool | None = None,
) -> GroupRules:
    """Return rules for rates that decay from the head down to the embeddings.

    With L layers, numbered i = 0, ..., L - 1 from the input, the learning rates are multiplied by

        decay^(L - i) in layer i, decay^(L + 1) in the embeddings, 1 in all else, such as the head

    Of a model without a head, whose parameters are all in layers and embeddings, the last layer has
    the full rate: decay^(L - 1 - i) in layer i, and decay^L in the embeddings.

    For fine-tuning with `param_groups(adamw(...), layerwise_decay(params, 0.75))`. Parameters
    stacked over the layers, as by `nn.scan`, have one rate for all of them.

    The papers have one stack of layers. Numbers in several places, as in `encoder/layer_0` and
    `decoder/layer_0`, are an error unless you say what they mean:

        stacks=("^encoder", "^decoder")                 one after the other, L is the sum
        layers=r"(?:encoder|decoder)/layer_([0-9]+)"    equal numbers are equally deep
        layers=r"encoder/layer_([0-9]+)"                only these are layers

    Args:
      params: the parameters, or their shapes and dtypes.
      decay: in (0, 1].
      layers: a regular expression with one group, the number of the layer, searched in paths such
        as `encoder/layers_3/kernel`.
      embeddings: a regular expression for the embeddings, searched in the paths outside of layers.
        Defaults to what ViT, BERT, CLIP, GPT and timm models call theirs: paths with `embed` or
        `pos_emb`, tokens such as `cls_token`, `cls` of Flax, `wte`, `stem`. None: there are none.
      stacks: regular expressions for stacks of layers, in order from the input, searched in the
        paths of layers. Defaults to one stack. Keyword-only.
      head: whether the model has a head above the last layer, also where its parameters are not
        among these. Defaults to whether there is a parameter outside of layers and embeddings.
        Keyword-only.

    Raises:
      TypeError: if `head` is not a boolean or None.
      ValueError: if `decay` is out of range; if an expression is not one, lacks its group, or
        matches no parameter; if layers are numbered in several places of one stack, or a layer is
        not in exactly one of `stacks`.

    Reference: Clark et al., ELECTRA, 2020, Appendix A; Bao et al., BEiT, 2022.
    """
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
        raise ValueError(f"layerwise_decay: decay must be in (0, 1], got {shown(decay)}.")
    in_layers = _compiled_layerwise_pattern("layers", layers)
    if in_layers.groups != 1:
        raise ValueError(
            "layerwise_decay: layers must have one group, the number of the layer, as in "
            f"'layers_(\\d+)'; got {layers!r} with {in_layers.groups}."
        )
    shapes = _shapes(params)
    names = {path: "/".join(path) for path in shapes}
    hits = {path: hit for path in names if (hit := in_layers.search(names[path])) is not None}
    _require_layerwise_match("layers", layers, hits, names)
    number_of: dict[Path, int] = {}
    # The layers of a stack are counted on from those of the stack before it.
    for stack in [hits] if stacks is None else _layerwise_stacks(stacks, hits, names):
        number_of |= _layerwise_numbers_of_stack(stack, 1 + max(number_of.values(), default=-1))
    below = set()
    if embeddings is not None:
        is_embedding = _compiled_layerwise_pattern("embeddings", embeddings)
        below = {p for p in names if p not in number_of and is_embedding.search(names[p])}
        if embeddings != INPUTS:  # a model may lack what the default looks for
            _require_layerwise_match("embeddings", embeddings, below, names)
    if head is not None and not isinstance(head, bool):
        raise TypeError(must_be("layerwise_decay", "head", "True, False or None", head))
    if head is None:
        head = any(path not in number_of and path not in below for path in names)
    count = max(number_of.values()) + head
    table = []
    for path, name in names.items():
        if path in number_of:
            power, kind = count - number_of[path], f"layer {number_of[path]}"
        else:
            power, kind = (count + 1, "embeddings") if path in below else (0, "other")
        table.append(Multiplied(name, shapes[path], kind, float(decay) ** power))
    return _group_rules(table)


def _layerwise_numbers_of_stack(hits: Mapping[Path, re.Match[str]], first: int) -> dict[Path, int]:
    """Return the numbers of the layers of one stack, whose layer 0 is number `first`."""
    before: dict[str, Path] = {}
    for path, hit in hits.items():
        if hit[1] is None or not hit[1].isdigit():
            raise ValueError(
                f"layerwise_decay: the group of layers must match a number, in {path_str(path)} it "
                f"matches {hit[1]!r}."
            )
        before.setdefault(hit.string[: hit.start()], path)
    if len(before) > 1:
        one, other = list(before.values())[:2]
        raise ValueError(
            f"layerwise_decay: {path_str(one)} and {path_str(other)} are numbered in different "
            "places, so that their depths may differ. Name the stacks in order with stacks=, or "
            "let layers match all of the path up to the number."
        )
    return {path: first + int(hit[1]) for path, hit in hits.items()}


def _layerwise_stacks(
    stacks: Sequence[str], hits: Mapping[Path, re.Match[str]], names: dict[Path, str]
) -> list[dict[Path, re.Match[str]]]:
    """Return the layers of each stack."""
    if isinstance(stacks, str) or not isinstance(stacks, Sequence) or not stacks:
        raise TypeError(
            "layerwise_decay: stacks must be a tuple of regular expressions in order, such as "
            f"('encoder', 'decoder'), got {shown(stacks)}."
        )
    patterns = [_compiled_layerwise_pattern("stacks", stack) for stack in stacks]
    for path in hits:
        matches = [x.pattern for x in patterns if x.search(names[path])]
        if len(matches) != 1:
            stated = " and ".join(map(repr, matches)) or "none"
            raise ValueError(
                f"layerwise_decay: the layer of {path_str(path)} must be in one of stacks, it is "
                f"in {stated}."
            )
    layers_by_stack = [{p: hit for p, hit in hits.items() if x.search(names[p])} for x in patterns]
    for stack, matches in zip(stacks, layers_by_stack, strict=True):
        _require_layerwise_match("stacks", stack, matches, {path: names[path] for path in hits})
    return layers_by_stack


def _compiled_layerwise_pattern(argument: str, pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"layerwise_decay: {argument} must be a regular expression, got {shown(pattern)}: "
            f"{error}."
        ) from None


def _require_layerwise_match(
    argument: str, pattern: str, hits: Any, names: dict[Path, str]
) -> None:
    if not hits:
        listed = ", ".join(map(repr, list(names.values())[:8]))
        raise ValueError(
            f"layerwise_decay: {argument}, {pattern!r}, matches none of the parameters {listed}."
        )


@with_checked_arguments
def mup(
    base_params: Params,
    params: Params,
    optimizer: str = "adam",
    *,
    output_multiplier: bool = False,
    inputs: Mask | None = None,
) -> GroupRules:
    """Return rules for rates that carry over from a small model to a wide one: muP.

    Tune the learning rate with the small model, and train the wide one at the same rate with
    `param_groups(adam(lr), mup(base_params, params))`. Which dimensions grow, and by how much, is
    read from the shapes: a dimension of n in the small model that is m n in the wide one.

        parameters                 grow in                 adam    sgd
        input weights and biases   the last dimension      1       m
        hidden weights             two: inputs, outputs    1 / m   1          m of the inputs
        output weights             another dimension       1 / m   1 / m
        all others                 none                    1       1

    With `output_multiplier` your model divides its output by m (Table 8), and output weights have
    the multipliers 1 (adam) and m (sgd). muP also prescribes the variances at initialization, of
    1 / inputs for hidden weights and 1 / inputs^2 for output weights (with `output_multiplier` 1,
    independent of the width), and attention scaled by 1 / d, not by 1 / sqrt(d). These are the
    model's. "adam" stands for all optimizers whose step does not depend on the gradient's scale.
    A decoupled weight decay that is multiplied by the rate shrinks with it.

    Args:
      base_params: the parameters of the small model, or their shapes and dtypes.
      params: those of the wide model, with the same paths.
      optimizer: "adam" or "sgd".
      output_multiplier: whether the model divides its output by m. Keyword-only.
      inputs: a mask of parameters that count as inputs or biases whichever dimension grows, such as
        biases of shape (heads, size) where the heads grow. Keyword-only.

    Raises:
      ValueError: if the two trees differ in more than sizes, a dimension shrinks, or a parameter
        grows in more than two dimensions.

    Reference: Yang et al., Tensor Programs V: Tuning Large Neural Networks via Zero-Shot
      Hyperparameter Transfer, 2022, Tables 3 and 8.
    """
    require_choice("mup", "optimizer", optimizer, _OPTIMIZERS)
    if inputs is not None and not isinstance(inputs, Mask):
        raise TypeError(must_be("mup", "inputs", "a mask such as path_matches('bias$')", inputs))
    check_patterns("mup", inputs, params)
    old, new = _shapes(base_params), _shapes(params)
    for path in [*old, *new]:
        if path not in old or path not in new:
            lacks = "base_params" if path not in old else "params"
            raise ValueError(
                f"mup: {lacks} has no parameter {path_str(path)}; the other model has one."
            )
    leaves = dict(with_paths(params))
    table = []
    for path, shape in new.items():
        is_input = inputs is not None and inputs.test(path, leaves[path])
        kind, growth = _mup_kind_and_growth(path, old[path], shape, is_input)
        # The powers of the growth, for adam and for sgd: the table in the docstring.
        powers = {"input": (0, 1), "hidden": (-1, 0), "output": (-1, -1), "fixed": (0, 0)}
        if output_multiplier:  # Table 8 of the paper, in place of Table 3
            powers["output"] = (0, 1)
        power = powers[kind][_OPTIMIZERS.index(optimizer)]
        table.append(Multiplied("/".join(path), shape, kind, growth**power))
    return _group_rules(table)


def _mup_kind_and_growth(
    path: Path, old: tuple[int, ...], new: tuple[int, ...], is_input: bool
) -> tuple[str, float]:
    """Return the kind of a parameter, and by how much its inputs (or its only dimension) grow."""
    if len(old) != len(new):
        raise ValueError(
            f"mup: {path_str(path)} has {len(old)} dimensions in base_params and {len(new)} in "
            "params."
        )
    growing = [d for d, (n, m) in enumerate(zip(old, new, strict=True)) if n != m]
    if any(new[d] < old[d] for d in growing):
        raise ValueError(
            f"mup: {path_str(path)} shrinks from {old} in base_params to {new} in params; is "
            "base_params the small model?"
        )
    if len(growing) > 2:
        raise ValueError(
            f"mup: {path_str(path)} grows in {len(growing)} dimensions, from {old} to {new}; only "
            "inputs and outputs may, so keep the number of layers or the size of a head."
        )
    if not growing:
        return "fixed", 1.0
    if 0 in old:
        raise ValueError(
            f"mup: {path_str(path)} is empty in base_params, with shape {old}; a dimension of 0 "
            "cannot grow."
        )
    # Inputs are the first of two growing dimensions, as in a kernel of shape (inputs, outputs).
    growth = new[growing[0]] / old[growing[0]]
    if is_input or growing == [len(new) - 1]:
        return "input", growth
    return ("hidden" if len(growing) == 2 else "output"), growth
