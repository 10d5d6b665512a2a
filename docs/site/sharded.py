"""The table of matrix rules on eight devices; `python -m docs.site.sharded` writes it anew.

A row is a rule in one form: ours, Optax's, that of its authors, or the rule without a plan, for
which the compiler chooses what devices send. Its figures are counted in the compiled step, and
where authors' code does not run in JAX, they follow from shapes. The page keeps the figures, and a
test compiles the steps again.
"""

import functools
import importlib.metadata
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import gradxform as gx
from benchmarks.sections.wire import on_devices
from benchmarks.subjects import author_forms
from benchmarks.subjects.sharded import (
    DEVICES,
    LAYERS,
    WIDTH,
    in_shares,
    program,
    shapes,
    shapes_apart,
)
from benchmarks.timing.staging import static_costs
from docs.site.cache import ROOT
from gradxform.testing import hlo
from tests import quick_compiling

PAGE = ROOT / "docs" / "distributed.md"
BEGIN, END = "<!-- matrix rules: begin -->", "<!-- matrix rules: end -->"
RATE, HEADS = 0.02, 8
TREE = shapes(LAYERS, WIDTH)
SHARED, ALONE, AUTHORS = "`shard_matrices`", "`jax.jit` alone", "authors: "


class Row(NamedTuple):
    """A rule in one form."""

    rule: str
    form: str
    figures: Callable[[], "Figures"]

    @property
    def by_compiler(self) -> bool:
        """Whether the compiler chooses what devices send."""
        return self.form != SHARED and not self.form.startswith(AUTHORS)


class Figures(NamedTuple):
    """What a step sends and holds, as the page shows it."""

    collectives: str
    sent: str
    temporaries: str


def optimizers() -> dict[str, Callable[[], Any]]:
    """Return what makes the optimizer of each rule.

    These have every `MatrixRule` in them but the one that needs the inputs of layers. Two look at
    whole matrices by other means: Shampoo, for arrays of any rank, and GaLore.
    """
    return {
        "muon": lambda: gx.muon(RATE),
        "normuon": lambda: gx.normuon(RATE),
        "adamuon": lambda: gx.adamuon(RATE),
        "adago": gx.adago,
        "muonclip": _muonclip,
        "scion": lambda: gx.scion(RATE),
        "orthogonalize_updates": gx.orthogonalize_updates,
        "dion": lambda: gx.dion(RATE),
        "dion2": lambda: gx.dion2(RATE, groups=DEVICES),
        "spectral_sphere": lambda: gx.spectral_sphere(RATE),
        "contra_muon": lambda: gx.contra_muon(RATE),
        "aurora": lambda: gx.aurora(RATE),
        "muown": lambda: gx.muown(RATE),
        "spel": lambda: gx.spel(RATE),
        "soap": gx.soap,
        "kl_shampoo": lambda: gx.kl_shampoo(RATE),
        "splus": gx.splus,
        "distributed_shampoo": lambda: gx.distributed_shampoo(RATE),
        "shampoo": gx.shampoo,
        "psgd_kron": lambda: gx.psgd_kron(RATE),
        "galore": lambda: gx.galore(RATE, rank=WIDTH // 4),
    }


def rows() -> list[Row]:
    """Return the rows of the table, in order, without their figures."""
    gathered = functools.partial(_of_authors, author_forms.muon_gathered)
    pairs = functools.partial(_of_formula, author_forms.in_pairs)
    others: dict[str, dict[str, Callable[[], Figures]]] = {
        "muon": {
            "`optax.contrib.muon`": functools.partial(_of_optax, "muon"),
            f"{AUTHORS}gathered": gathered,
            f"{AUTHORS}in pairs": pairs,
        },
        "normuon": {f"{AUTHORS}in pairs": pairs},
        "adamuon": {f"{AUTHORS}gathered": gathered},
        "muonclip": {f"{AUTHORS}gathered": gathered},
        "dion": {f"{AUTHORS}low rank": functools.partial(_of_authors, author_forms.dion_low_rank)},
        "dion2": {f"{AUTHORS}in pairs": functools.partial(pairs, share=0.25)},
        "distributed_shampoo": {
            f"{AUTHORS}roots gathered": functools.partial(_of_formula, author_forms.roots_gathered)
        },
        "galore": {
            "`optax.contrib.galore`": functools.partial(_of_optax, "galore", rank=WIDTH // 4)
        },
    }
    table = []
    for name, make in optimizers().items():
        figures = _of_muonclip if name == "muonclip" else functools.partial(_of_ours, make)
        table.append(Row(name, SHARED, figures))
        alone = functools.partial(_of_program, make, False)
        forms = others.get(name, {} if name == "orthogonalize_updates" else {ALONE: alone})
        table += [Row(name, form, figures) for form, figures in forms.items()]
    return table


# -------------------------------------------------------------------------------------- figures


def _of_ours(make: Callable[[], Any]) -> Figures:
    return _of_program(lambda: in_shares(make()), True)


def _muonclip() -> Any:
    layers = {f"layer{i}": gx.query_key(f"layer{i}/q", f"layer{i}/k", 1) for i in range(LAYERS)}
    return gx.muonclip(RATE, layers)


def _of_muonclip() -> Figures:
    """Return the figures of MuonClip, which needs queries and keys apart, and their logits."""
    tree = shapes_apart(LAYERS, WIDTH)
    logits = {f"layer{i}": jnp.ones(HEADS) for i in range(LAYERS)}
    make = lambda: in_shares(_muonclip(), tree)  # noqa: E731
    return _of_program(make, True, tree, {"max_logits": logits})


def _of_optax(name: str, **how: Any) -> Figures:
    import optax

    # Optax relies on promotions that the tests forbid.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return _of_program(lambda: getattr(optax.contrib, name)(RATE, **how), False)


@functools.cache  # several rules have one form
def _of_authors(form: Callable[[], Any]) -> Figures:
    return _of_program(form, True)


def _of_program(
    make: Callable[[], Any], by_hand: bool, tree: Any = None, extra: Any = None
) -> Figures:
    """Return the figures of a compiled step."""
    compiled, _, (grads, *_) = program(make(), by_hand, tree, extra)
    copy, wire = hlo.copy_bytes(grads), hlo.wire_bytes(compiled)
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for one in hlo.collectives(compiled):
        counts[one.conditional][one.kind] += one.times
    at_times = f"; {_listed(counts[True])}" if counts[True] else ""
    sent = f"{wire.always / copy:.3f}" + (f"; {wire.peak / copy:.3f}" if at_times else "")
    temporaries = static_costs(compiled)["temp"] / copy
    return Figures(_listed(counts[False]) + at_times, sent, f"{temporaries:.2f}")


def _of_formula(formula: Callable[..., author_forms.Formula], **how: Any) -> Figures:
    collectives, sent = formula(TREE, **how)
    return Figures(_listed(collectives), f"{sent:.3f}", "")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))


# ------------------------------------------------------------------------------------- the page


def read() -> dict[tuple[str, str], Figures]:
    """Return the figures of the page, by rule and form."""
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return {(rule.strip("`"), form): Figures(*figures) for rule, form, *figures in cells}


def versions_shown() -> str:
    """Return the versions of JAX and Optax whose programs the page shows."""
    return PAGE.read_text(encoding="utf-8").partition("\n\nCounted with ")[2].partition(".\n")[0]


def versions() -> str:
    """Return the versions of JAX and Optax that are installed."""
    return f"jax {jax.__version__}, Optax {importlib.metadata.version('optax')}"


def page(figures: list[Figures]) -> str:
    """Return the page with these figures of all rows."""
    lines = [
        f"| `{row.rule}` | {row.form} | {' | '.join(of_row)} |"
        for row, of_row in zip(rows(), figures, strict=True)
    ]
    head = "| rule | form | collectives | sent | temporaries |"
    table = "\n".join([head, "| --- | --- | --- | --- | --- |", *lines])
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    made = f"{BEGIN}\n{table}\n\nCounted with {versions()}.\n{END}"
    return f"{before}{made}{rest.partition(END)[2]}"


def main(argv: list[str]) -> None:
    """Write the page, from what a process with eight devices counts; or count here."""
    if argv == ["count"]:
        print(json.dumps([row.figures() for row in rows()]))
        return
    # As the tests compile, which look whether the page is right.
    os.environ["XLA_FLAGS"] = quick_compiling.xla_flags()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    found = on_devices("docs.site.sharded", "count")
    PAGE.write_text(page([Figures(*of_row) for of_row in found]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
