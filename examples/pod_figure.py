"""The table and the figure of `train_pod.py`."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pod_checkpoints import History
from pod_options import Options
from rich.table import Table

BLUE, ORANGE, GREY = "#1f77b4", "#d95f02", "#4d4d4d"


def title(options: Options) -> str:
    """Return a title for the run."""
    layers = f"{options.layers} layer{'s' * (options.layers > 1)}"
    size = f"{layers} of width {options.width}"
    return f"{name_of(options)}: the next character of Python sources, {size}"


def name_of(options: Options) -> str:
    """Return a name for the run."""
    period = f" every {options.period} steps" if options.period else ""
    code = "" if options.compress == "none" else f", {options.compress}"
    return f"{options.method}{period}{code}"


def table(options: Options, history: History) -> Table:
    """Return the results of a run."""
    last = {name: values[-1] for name, values in history.items()}
    pods = [
        f"{slices:.0f} x {devices:.0f} from step {step:.0f}"
        for step, slices, devices in zip(
            history["began"], history["slices"], history["devices"], strict=True
        )
    ]
    rows = {
        "held-out loss": f"{last['losses']:.3f}, at the start {history['losses'][0]:.3f}",
        "steps": f"{last['steps']:.0f}",
        "slices x devices": ", ".join(pods),
        "sent between slices": f"{last['sent'] / 1e6:.2f} MB by each device",
        "in a step, mean": f"{last['sent'] / max(1, last['steps']):,.0f} bytes",
        "steps left out": f"{last['skipped']:.0f}, whose gradients were not finite",
    }
    result = Table("", name_of(options), title=title(options), title_justify="left")
    for row in rows.items():
        result.add_row(*row)
    return result


def draw(path: Path, runs: dict[str, History], title: str) -> None:
    """Draw the held-out loss against the steps, and against what went between slices.

    Args:
      path: the path of the figure.
      runs: the histories, by name; that of this run is the first.
      title: the title of the figure.
    """
    figure = Figure(figsize=(11, 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12)
    by_steps, by_bytes = figure.subplots(1, 2, sharey=True)
    for (name, history), color in zip(runs.items(), (BLUE, ORANGE), strict=False):
        sent = [x / 1e6 for x in history["sent"]]
        label = f"{name}, {history['losses'][-1]:.3f}"
        by_steps.plot(history["steps"], history["losses"], color=color, label=label)
        by_bytes.plot(sent[1:], history["losses"][1:], color=color, marker=".")
        _mark(by_steps, by_bytes, history, color)
    by_steps.set(xlabel="step", ylabel="held-out loss, nats a character")
    by_steps.legend(frameon=False, title="run, loss at the end", alignment="left")
    by_bytes.set(xlabel="MB that a device has sent between slices")
    if any(len(history["sent"]) > 1 and history["sent"][1] > 0 for history in runs.values()):
        by_bytes.set_xscale("log")
    for axis in (by_steps, by_bytes):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _mark(by_steps: Axes, by_bytes: Axes, history: History, color: str) -> None:
    """Mark where other slices went on."""
    pods = list(zip(history["began"], history["slices"], history["devices"], strict=True))
    for step, slices, devices in pods[1:]:
        at = history["steps"].index(step)
        words = f"{slices:.0f} x {devices:.0f} devices go on"
        for axis, x in ((by_steps, step), (by_bytes, history["sent"][at] / 1e6)):
            axis.axvline(x, color=color, linestyle=":", linewidth=1)
            axis.plot(x, history["losses"][at], "o", color=color)
        by_steps.annotate(
            words,
            (step, history["losses"][at]),
            xytext=(6, 12),
            textcoords="offset points",
            color=GREY,
            fontsize=9,
        )
