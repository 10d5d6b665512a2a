"""The generated parts of the home page: its figure, its counts, and the loop beside Optax's."""

import difflib
import json
import re

from docs.site import pictures
from docs.site.measure import FILE
from gradxform.commands.catalog import KINDS, registered_parts

# What the training loop of the page is with Optax.
OPTAX = (
    (r"import gradxform as gx", "import optax"),
    (r"\bgx\.", "optax."),
    (r"mask=optax\.ndim_at_least\(2\)", "mask=lambda p: jax.tree.map(lambda x: x.ndim >= 2, p)"),
)


def figure() -> str:
    """Return the picture of the measured runs."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    series = [
        (name, color, points)
        for (name, points), color in zip(
            found["runs"].items(), (pictures.OTHER, pictures.LINE, pictures.OURS), strict=True
        )
    ]
    title = (
        "Held-out loss against seconds: Optax, and gradxform with dense and row-sparse gradients"
    )
    return pictures.curves(
        series, title, "seconds", "held-out loss", log_y=False, size=(440, 280), legend=190
    )


def caption() -> str:
    """Return what the figure shows, and how it was measured."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    seconds = {name: points[-1][0] for name, points in found["runs"].items()}
    listed = ", ".join(f"`{name}` {s:.1f} s" for name, s in seconds.items())
    steps, rows, width = found["steps"], found["rows"], found["width"]
    return (
        f"{steps} steps on a table of {rows:,} rows of {width}, from the first call, with the time "
        f"that compiling takes: {listed}. Measured on {found['date']} ({found['machine']}) with "
        f"`{found['command']}`, which you can run in a checkout."
    )


def loop_beside_optax(markdown: str) -> str:
    """Return the difference between the first program of the page and the same with Optax."""
    code = re.search(r"```python\n(.*?)```", markdown, re.DOTALL)
    assert code is not None
    ours = code[1].splitlines()
    theirs = code[1]
    for pattern, replacement in OPTAX:
        theirs = re.sub(pattern, replacement, theirs)
    lines = [line.rstrip("\n") for line in difflib.unified_diff(theirs.splitlines(), ours, n=1)]
    return "\n".join(line for line in lines[2:] if not line.startswith("@@"))


def completed(markdown: str) -> str:
    """Return the home page with its generated parts."""
    for kind in KINDS:
        markdown = markdown.replace(f"{{{{ {kind} }}}}", str(len(_own(kind))))
    markdown = markdown.replace("{{ caption }}", caption())
    return markdown.replace("{{ diff }}", loop_beside_optax(markdown))


def _own(kind: str) -> list[str]:
    return [e.name for e in registered_parts(kind) if ":" not in e.name]
