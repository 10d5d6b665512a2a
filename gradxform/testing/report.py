"""All promises tried on one transform, with a report."""

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import jax

from gradxform.base import GradientTransformation, check_transform
from gradxform.errors import did_you_mean, shown
from gradxform.testing.case import Case, inside, is_known_function
from gradxform.testing.promise import Broken, Skipped, shortened
from gradxform.testing.promises import PROMISES
from gradxform.testing.references import Reference, TreeReference
from gradxform.types import Params, PyTree, Updates

KEPT, BROKEN, SKIPPED = "kept", "broken", "skipped"


@dataclass(frozen=True)
class Finding:
    """The result of one promise.

    Args:
      promise: its name.
      status: "kept", "broken" or "skipped".
      reason: why it was skipped.
      leaf: the path of the leaf that breaks it, if there is one.
      expected: the promised result.
      got: the actual result.
      remedy: how to keep the promise.
      error: the exception, with its cause. None if the promise is kept.
    """

    promise: str
    status: str
    reason: str = ""
    leaf: str = ""
    expected: str = ""
    got: str = ""
    remedy: str = ""
    error: Exception | None = None

    def lines(self) -> Iterable[str]:
        """Yield the lines of the finding in a report."""
        yield f"  {self.status:8} {self.promise.replace('_', ' ')}"
        for name in ("reason", "leaf", "expected", "got", "remedy"):
            text = getattr(self, name)
            if text:
                yield textwrap.fill(
                    text,
                    width=92,
                    initial_indent=f"{'':13}{name:10}",
                    subsequent_indent=" " * 23,
                    break_long_words=False,
                    break_on_hyphens=False,
                )


@dataclass(frozen=True, repr=False)
class Report:
    """The results of all promises; prints as a table.

    Args:
      subject: the transform, as printed.
      findings: one for each promise, in the order of `PROMISES`.
    """

    subject: str
    findings: tuple[Finding, ...]

    def _of(self, status: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == status)

    @property
    def kept(self) -> tuple[Finding, ...]:
        """The promises that the transform keeps."""
        return self._of(KEPT)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The promises that the transform breaks."""
        return self._of(BROKEN)

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """The promises that do not apply to the transform, or were left out."""
        return self._of(SKIPPED)

    def __getitem__(self, promise: str) -> Finding:
        for finding in self.findings:
            if finding.promise == promise:
                return finding
        raise KeyError(f"no promise named {promise!r}.{did_you_mean(promise, PROMISES)}")

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        counts = [(len(self._of(s)), s) for s in (KEPT, BROKEN, SKIPPED)]
        summary = ", ".join(f"{n} {status}" for n, status in counts if n)
        lines = (line for finding in self.findings for line in finding.lines())
        return "\n".join([f"{self.subject}: {summary or 'nothing was checked'}", *lines])

    def raise_if_broken(self) -> "Report":
        """Return the report itself if nothing is broken.

        Raises:
          BrokenPromises: with the whole report, caused by the first broken promise.
        """
        if self.broken:
            raise BrokenPromises(self) from self.broken[0].error
        return self


class BrokenPromises(AssertionError):
    """Raised for a transform that breaks promises; its message is the report.

    Attributes:
      report: the `Report`.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(f"{len(report.broken)} broken\n{report}")
        self.report = report


def check(
    tx: Any,
    reference: Reference | TreeReference | None = None,
    *,
    params: PyTree = None,
    gradients: Callable[[Any, int], list[Any]] | None = None,
    extra: dict[str, Any] | Callable[[Updates, Params], dict[str, Any]] | None = None,
    rtol: float = Case.rtol,
    huge_ok: bool | float = 1 / 8,
    derivatives: Literal["both", "forward"] | None = None,
    rows: bool | None = None,
    examples: int | None = None,
    only: Iterable[str] | str = (),
    skip: Iterable[str] | str = (),
) -> Report:
    """Try all promises on a transform, and report which ones it keeps.

    Works in a test, a script or a notebook with any configuration of JAX, and takes a few seconds.
    `print(check(tx))` shows a table; `check(tx).raise_if_broken()` is a test.

    Args:
      tx: your transform, or any object with `init` and `update`.
      reference: its rule in NumPy. Without it, consistency is checked, but not the numbers.
      params: the parameters. Defaults to a matrix, a vector, a scalar and a 3-d array.
      gradients: a function `(params, steps) -> [gradients, ...]`. Defaults to normal ones.
      extra: the extra arguments of every update by name, or a function of updates and parameters
        that returns them.
      rtol: the tolerance to the reference in float32, relative to the movement.
      huge_ok: whether updates must be finite for gradients up to the largest number of their
        dtype; or a number, up to that share of it. Defaults to an eighth of it, which leaves room
        for sums.
      derivatives: which derivatives through an update must be finite where parameters, gradients
        or both are 0, and where entries are equal, and elsewhere must equal differences of updates
        in float64. By default none is asked for.
      rows: whether it must accept row-sparse gradients or refuse them. By default its locality
        decides.
      examples: how many gradients, along axis 0, an update takes. By default just one, without
        that axis.
      only: the names of the promises to try. Defaults to all.
      skip: the names of promises to leave out.

    Raises:
      ValueError: if `only` or `skip` has a name that is not a promise.
      TypeError: if `tx` is not a transform, or `reference` not a reference.
    """
    check_transform("check", tx, "tx")
    if reference is not None and not isinstance(reference, Reference | TreeReference):
        raise TypeError(
            f"check: reference must be a Reference or a TreeReference, got {shown(reference)}."
        )
    only, skip = _names(only, "only"), _names(skip, "skip")
    case = Case(
        tx,
        reference,
        rtol=rtol,
        pickles=isinstance(tx, GradientTransformation) and _has_only_values(tx),
        huge_ok=huge_ok,
        derivatives=derivatives,
        rows=rows,
        extra=extra,
        examples=examples,
        tree=params,
        draw=gradients,
    )
    names = [name for name in PROMISES if name in only or not only]
    return Report(_subject(tx), tuple(_try_promise(name, case, skip) for name in names))


def _try_promise(name: str, case: Case, skip: tuple[str, ...]) -> Finding:
    if name in skip:
        return Finding(name, SKIPPED, "left out by skip=")
    try:
        PROMISES[name](case)
    except Skipped as error:
        return Finding(name, SKIPPED, str(error), error=error)
    except Broken as error:
        return Finding(name, BROKEN, "", error.leaf, error.expected, error.got, error.remedy, error)
    return Finding(name, KEPT)


def _names(x: Iterable[str] | str, field: str) -> tuple[str, ...]:
    names = (x,) if isinstance(x, str) else tuple(x)
    for name in names:
        if name not in PROMISES:
            raise ValueError(
                f"check: {field}: no promise named {shown(name)}."
                f"{did_you_mean(name, PROMISES) or ' There are ' + ', '.join(PROMISES) + '.'}"
            )
    return names


def _has_only_values(tx: Any) -> bool:
    """Whether all parts compare, print and serialize; a function does if it is registered."""
    for x in inside(tx):
        if callable(x) and not hasattr(x, "registered_name") and not is_known_function(x):
            return False
        if isinstance(x, jax.Array):
            return False
    return True


def _subject(tx: Any) -> str:
    if not isinstance(tx, GradientTransformation):
        return type(tx).__name__
    return shortened(" ".join(repr(tx).split()), 200)
