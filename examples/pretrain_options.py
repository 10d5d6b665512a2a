"""What `pretrain.py`, `low_memory.py` and `train_deep.py` share: options, text and model."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from command_line import Parser, Refused, did_you_mean, whole
from finetune_model import HEADS, Transformer
from finetune_text import Text, read

PARTS = "argparse,ast,asyncio,collections,concurrent,dataclasses,email,http,importlib,inspect,json"


class Options:
    """The options of an example; its own are added before those of the text and the model."""

    def __init__(self, example: str, doc: str | None) -> None:
        self.example = example
        about = (doc or "").split("\n")[0]
        self.parser = Parser(f"{example}.py", description=about, allow_abbrev=False)

    def add(
        self, flag: str, default: Any, kind: Callable[[str], Any], metavar: str, text: str
    ) -> None:
        """Add an option; its help ends with its default."""
        text = f"{text} (default: %(default)s)".strip()
        self.parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)

    def parse(
        self, argv: Sequence[str] | None, width: int, layers: int = 2, batch_size: int = 16
    ) -> argparse.Namespace:
        """Add the options of the text and the model, and parse all.

        Args:
          argv: the command line.
          width: the default width of the model.
          layers: its default number of layers.
          batch_size: the default number of windows in a step.
        """
        self.add("--text", PARTS, str, "A,B", "parts of the standard library")
        self.add("--batch-size", batch_size, whole(1), "N", "windows in a step")
        self.add("--length", 64, whole(2), "N", "characters in a window")
        self.add("--layers", layers, whole(1), "N", "")
        self.add("--width", width, whole(1), "N", f"a multiple of {HEADS}")
        self.add("--seed", 0, whole(0), "N", "")
        self.add("--out", Path("runs") / self.example, Path, "DIR", "")
        args = self.parser.parse_strictly(argv)
        if args.width % HEADS:
            raise Refused(
                f"--width {args.width}: must be a multiple of {HEADS}, the heads of a layer."
            )
        return args


def split(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen(what: str, text: str, known: Iterable[str]) -> list[str]:
    """Return the names between commas, each once; `what` is their kind, for messages."""
    names = list(dict.fromkeys(split(text)))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"There are {', '.join(known)}."
            raise Refused(f"no {what} named {name!r}. {hint}")
    if not names:
        raise Refused(f"name at least one {what}.")
    return names


class Begun(NamedTuple):
    """The text and the model of a run."""

    text: Text
    model: Transformer
    params: Any
    size: str  # of the model, in words


def begun(args: argparse.Namespace) -> Begun:
    """Read the text, make the model and the folder for results, and say how large both are."""
    text = Text(read(split(args.text)), args.length, args.batch_size, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model = Transformer(args.layers, args.width)
    params = model.init(jax.random.key(args.seed), text.held_out[:1, :-1])["params"]
    count = sum(x.size for x in jax.tree.leaves(params))
    size = f"{args.layers} layers of width {args.width}, {count} parameters"
    print(f"{len(text.training)} characters of the standard library's sources; {size}")
    return Begun(text, model, params, size)
