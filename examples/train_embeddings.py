"""Train word embeddings on the standard library's sources with dense, lazy and catching-up Adam.

    python examples/train_embeddings.py
    python examples/train_embeddings.py --methods lazy,catch-up --steps 4000
    python examples/train_embeddings.py --vocabulary 20000 --dim 64 --words yield,regex,socket

The model is skip-gram with negative sampling, on two tables of 40000 words. A batch touches a few
thousand of them. Dense Adam moves every row at every step. The other two methods use only the
gradients of the touched rows, from the same Flax model and loss: `lazy_adam`, and
`lazy_adam(..., catch_up=True)`, which makes up for the steps that a row missed. All methods see the
same batches.

The figure `embeddings.png` in --out shows the loss on pairs from held-out passages, against steps
and against seconds. The seconds are those of the steps, without compilation and measurements. For
`catch-up`, rows are brought up to date before each measurement, by one update with gradients of
zero.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from extras import require

require("flax", "matplotlib", "rich")  # before they are imported

import jax
import numpy as np
from command_line import Parser, Refused, did_you_mean, one_line, positive, whole
from embeddings_corpus import Corpus, texts
from embeddings_figure import Curve, draw
from embeddings_model import METHODS, SkipGram, Trainer, loss_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

WORDS = "import,list,socket,json,encode,Decimal"
MEASURED = 25  # the number of measurements; more in a long run
AT_ONCE = 2**21  # the number of words in the batches that are prepared at once
WINDOW = 50  # at most
NEIGHBORS = 5
COMMON = 20  # the least count of a neighbor: the vectors of rarer words are not trained enough


class Diverged(Exception):
    """The loss is no longer finite: one line on stderr and exit code 1."""


# ---------------------------------------------------------------------------------- the training


def train(
    args: argparse.Namespace, corpus: Corpus, console: Console
) -> tuple[dict[str, Curve], dict[str, Any]]:
    """Train with every method, in turns, on the same batches; return curves and parameters."""
    most = max(1, AT_ONCE // (args.batch_size * (1 + args.negatives)))
    every = min(math.ceil(args.steps / MEASURED), most)  # the number of steps in a call
    sampling = args.window, args.negatives, args.seed
    held_out = jax.device_put(corpus.held_out_pairs(*sampling))
    batches = corpus.batches(every, args.batch_size, *sampling)
    some = next(batches, None)
    if some is None or not len(held_out.centre):
        raise Refused(f"--batch-size {args.batch_size}: the text does not have so many pairs.")
    model = SkipGram(len(corpus.words), args.dim)
    loss = loss_of(model)
    evaluate = jax.jit(loss)
    params = model.init(jax.random.key(args.seed), held_out)
    start = float(evaluate(params, held_out))
    curves = {name: Curve([0], [0.0], [start]) for name in args.methods}
    trainers: dict[str, Trainer] = {}
    with progress(console) as bar:
        rows = {
            name: bar.add_task(f"{name:8}", total=args.steps, numbers="compiling")
            for name in args.methods
        }
        for name in args.methods:
            method = METHODS[name]
            trainers[name] = Trainer(method, loss, params, args.learning_rate, some)
            bar.update(rows[name], numbers="")
        for done in range(0, args.steps, every):
            count = min(every, args.steps - done)
            batch = jax.block_until_ready(jax.device_put(some))
            for name, trainer in trainers.items():
                trained = trainer.train(batch, count)
                measured = float(evaluate(trainer.params, held_out))
                check_finite(name, trained + measured, done + count)
                curves[name].add(done + count, trainer.seconds, measured)
                numbers = f"loss {trained:.3f}, held-out {measured:.3f}, {trainer.seconds:.1f} s"
                bar.update(rows[name], completed=done + count, numbers=numbers)
            if not console.is_terminal:
                print(line(done + count, args.steps, curves), flush=True)
            some = next(batches)
    return curves, {name: trainer.params for name, trainer in trainers.items()}


def progress(console: Console) -> Progress:
    """Return a display with a bar for each method; it is disabled for a log."""
    return Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=16),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        console=console,
        disable=not console.is_terminal,
    )


def line(step: int, steps: int, curves: dict[str, Curve]) -> str:
    """Return the held-out losses of all methods on one line, for a log."""
    losses = "  ".join(f"{name} {curve.losses[-1]:.3f}" for name, curve in curves.items())
    return f"step {step:>{len(str(steps))}}/{steps}  held-out loss  {losses}"


def check_finite(name: str, loss: float, step: int) -> None:
    """Stop if a loss is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss of {name} is {loss} by step {step}; lower --learning-rate.")


# ----------------------------------------------------------------------------------- the results


def results(curves: dict[str, Curve]) -> Table:
    """Return the table of results: the loss of each method, and its speed."""
    result = Table()
    result.add_column("method")
    for column in ("held-out loss", "seconds", "steps per second"):
        result.add_column(column, justify="right")
    for name, curve in curves.items():
        steps, seconds = curve.steps[-1], curve.seconds[-1]
        result.add_row(name, f"{curve.losses[-1]:.3f}", f"{seconds:.1f}", f"{steps / seconds:.0f}")
    return result


def neighbors(params: Any, corpus: Corpus, words: Sequence[str]) -> Table:
    """Return the table of the nearest words to each word, by the cosine of their embeddings."""
    table = np.asarray(params["params"]["centre"]["embedding"])
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-30)
    common = np.sum(corpus.counts >= COMMON)  # words are in order of frequency
    result = Table("word", "nearest")
    for word in words:
        cosine = table[:common] @ table[corpus.numbers[word]]
        nearest = [i for i in np.argsort(-cosine) if corpus.words[i] != word][:NEIGHBORS]
        result.add_row(word, ", ".join(f"{corpus.words[i]} {cosine[i]:.2f}" for i in nearest))
    return result


# ------------------------------------------------------------------------------ the command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = Parser(
        "train_embeddings.py", description=(__doc__ or "").split("\n")[0], allow_abbrev=False
    )

    def add(flag: str, default: Any, kind: Callable[[str], Any], metavar: str, text: str) -> None:
        text = f"{text} (default: %(default)s)".strip()
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)

    add("--methods", ",".join(METHODS), str, "A,B", f"of {', '.join(METHODS)}")
    add("--steps", 1000, whole(1), "N", "")
    add("--batch-size", 1024, whole(1), "N", "pairs in a step")
    add("--dim", 128, whole(1), "N", "numbers in an embedding")
    add("--learning-rate", 0.005, positive, "RATE", "of all methods")
    add("--vocabulary", 40000, whole(2), "N", "the most frequent words, at most")
    add("--negatives", 5, whole(1), "N", "random words for each pair")
    add("--window", 5, whole(1), "N", "words on either side")
    add("--words", WORDS, str, "A,B", "whose neighbors to print")
    add("--seed", 0, whole(0), "N", "")
    add("--out", Path("runs/embeddings"), Path, "DIR", "")
    args = parser.parse_strictly(argv)
    args.methods = list(dict.fromkeys(split(args.methods)))
    for name in args.methods:
        if name not in METHODS:
            hint = did_you_mean(name, METHODS) or f"There are {', '.join(METHODS)}."
            raise Refused(f"no method named {name!r}. {hint}")
    if args.window > WINDOW:
        raise Refused(f"--window {args.window}: must be at most {WINDOW}.")
    if not args.methods:
        raise Refused("name at least one method.")
    return args


def split(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def known(text: str, corpus: Corpus) -> list[str]:
    """Return the words with neighbors to print; refuse words that are not in the vocabulary."""
    words = list(dict.fromkeys(split(text)))
    if text == WORDS:
        return [word for word in words if word in corpus.numbers]
    for word in words:
        if word not in corpus.numbers:
            hint = did_you_mean(word, corpus.words)
            raise Refused(f"--words: {word!r} is not in the vocabulary. {hint}".strip())
    return words


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Train as the command line says."""
    args = parse(argv)
    corpus = Corpus(texts(), args.vocabulary)
    words = known(args.words, corpus)
    args.out.mkdir(parents=True, exist_ok=True)
    tables = f"2 tables of {len(corpus.words)} words x {args.dim}"
    print(f"{len(corpus.text)} words of the standard library's sources; {tables}")
    curves, params = train(args, corpus, console)
    console.print(results(curves))
    if words:
        best = min(curves, key=lambda name: curves[name].losses[-1])
        print(f"Neighbors by {best}, with their cosines:")
        console.print(neighbors(params[best], corpus, words))
    path = args.out / "embeddings.png"
    draw(path, curves, f"Skip-gram embeddings, {tables}, {args.batch_size} pairs a step")
    print(f"{summary(curves)}; wrote {path}")


def summary(curves: dict[str, Curve]) -> str:
    """Return the results of all methods on one line."""
    each = (f"{c.losses[-1]:.3f} in {c.seconds[-1]:.1f} s by {name}" for name, c in curves.items())
    return f"Held-out loss {', '.join(each)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    try:
        start(argv, Console())
    except (Refused, OSError) as error:
        return fail(f"error: {one_line(error)}", 2)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE" not in str(error):
            raise
        return fail("error: not enough memory; ask for smaller tables or batches.", 2)
    except Diverged as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return fail("interrupted; no figure was written.", 130)
    return 0


def fail(message: str, code: int) -> int:
    """Print the error on one line; return the exit code."""
    print(f"train_embeddings.py: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
