"""Tables of the errors of a transform whose state is stored in fewer bits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import check_transform
from gradxform.errors import shown
from gradxform.leaves import dtype_of, flatten_with_names, path_str
from gradxform.leaves.storage import fetched, is_stored
from gradxform.tables.text_table import Column, Line, Table
from gradxform.types import OptState, Params, SupportsTransform, Updates
from gradxform.wrappers import quantize_state, state_dtype

Storage = Callable[[Any], Any]

# In a block of 256 entries, one can be at most 16 times the root of the mean square.
OUTLIER = 8.0


def storages_of(block: int = 256, min_size: int = 4096) -> dict[str, Storage]:
    """Return the storages that `check_storage` tries, by name, as wrappers of a transform."""

    def bits(n: int, code: str = "float") -> Storage:
        return lambda tx: quantize_state(tx, n, block, code, min_size)

    return {
        "bfloat16": lambda tx: state_dtype(tx, jnp.bfloat16),
        "bfloat16, by chance": lambda tx: state_dtype(tx, stochastic=True, key=0),
        "8 bits": bits(8),
        "8 bits, dynamic": bits(8, "dynamic"),
        "4 bits": bits(4),
        "4 bits, dynamic": bits(4, "dynamic"),
        "4 bits, rank1": bits(4, "rank1"),
    }


@dataclass(frozen=True)
class StorageFinding:
    """The effect of one storage on a transform.

    Args:
      storage: its name.
      bytes_per_parameter: of the state, as stored.
      update_error: the root mean square of the difference in the last update, relative to that of
        the update without a storage.
      state_error: the same for the slots after the last step, of the worst one.
      refusal: why the transform cannot be stored so; None if it can.
    """

    storage: str
    bytes_per_parameter: float = 0.0
    update_error: float = 0.0
    state_error: float = 0.0
    refusal: str | None = None


@dataclass(frozen=True)
class Outliers:
    """The blocks of a slot in which one entry is far larger than the others.

    Args:
      slot: the path of the array in the state.
      blocks: the number of its blocks.
      with_outlier: the number of those whose largest entry exceeds 8 times the root of the mean
        square.
      largest: that ratio of the worst block.
    """

    slot: str
    blocks: int
    with_outlier: int
    largest: float


@dataclass(frozen=True, repr=False)
class StorageReport:
    """The effects of storages on a transform; prints as a table.

    Args:
      subject: the transform, as printed.
      steps: the number of steps that were taken.
      findings: one for each storage.
      outliers: one for each array of the state that has blocks with an outlier, the worst first.
    """

    subject: str
    steps: int
    findings: tuple[StorageFinding, ...]
    outliers: tuple[Outliers, ...]

    def __getitem__(self, storage: str) -> StorageFinding:
        for finding in self.findings:
            if finding.storage == storage:
                return finding
        raise KeyError(f"no storage named {storage!r}; there are {[*self._names]}.")

    @property
    def _names(self) -> list[str]:
        return [finding.storage for finding in self.findings]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        heads = ["storage", "bytes a parameter", "error of the update", "of the state"]
        columns = [Column(head, right=i > 0) for i, head in enumerate(heads)]
        lines = []
        for finding in self.findings:
            figures = ["-"] * 3
            if finding.refusal is None:
                errors = f"{finding.update_error:.2%}", f"{finding.state_error:.2%}"
                figures = [f"{finding.bytes_per_parameter:.2f}", *errors]
            lines.append(Line([[cell] for cell in (finding.storage, *figures)]))
        steps = f"{self.steps} step" + ("" if self.steps == 1 else "s")
        text = [f"{self.subject}, after {steps}", Table(columns, lines).as_text()]
        text += [f"{f.storage}: {f.refusal}" for f in self.findings if f.refusal is not None]
        if self.outliers:
            text.append(f"blocks with an entry above {OUTLIER:g} times the root mean square:")
        text += [
            f"  {o.slot}: {o.with_outlier} of {o.blocks}, up to {o.largest:.1f} times"
            for o in self.outliers
        ]
        return "\n".join(text)


def check_storage(
    tx: SupportsTransform,
    params: Params,
    grads: Updates | Sequence[Updates],
    *,
    storages: Mapping[str, Storage] | None = None,
    block: int = 256,
    min_size: int = 4096,
) -> StorageReport:
    """Run a transform with its state in each storage, and report the errors.

        print(check_storage(my_transform(0.9), params, grads))

    Every run gets the same gradients and the same parameters, which take the steps of the run
    without a storage. So the errors are those of the storage alone. The report also lists the slots
    that have blocks with an outlier, whose other entries are rounded most: leave these slots out
    with `which`, or take smaller blocks.

    Args:
      tx: the transform.
      params: the parameters.
      grads: the gradients of one step, or a sequence of those of several.
      storages: wrappers by name, in place of `storages_of(block, min_size)`.
      block: the entries of a block, a power of two from 2; also for the search for outliers.
      min_size: arrays with fewer entries are not stored, at least 0.

    Raises:
      TypeError: if `tx` is not a transform.
      ValueError: if there are no gradients, or they do not have the structure of the parameters.
    """
    check_transform("check_storage", tx, "tx")
    steps = _gradients_of_steps(params, grads)
    plain_updates, plain, way = _run_steps(tx, params, steps, None)
    size = sum(np.size(x) for x in jax.tree.leaves(params))
    findings = []
    for name, storage in (storages or storages_of(block, min_size)).items():
        try:
            stored = storage(tx)
            updates, state, _ = _run_steps(stored, params, steps, way)
        except (TypeError, ValueError) as error:
            findings.append(StorageFinding(name, refusal=str(error)))
            continue
        bytes_per_parameter = sum(x.nbytes for x in jax.tree.leaves(state)) / max(size, 1)
        update_error = _relative_error(
            [*jax.tree.leaves(updates)], [*jax.tree.leaves(plain_updates)]
        )
        pairs = zip(_arrays_of_state(state), _arrays_of_state(plain), strict=True)
        # A single 0 stands for an array of integers, which is never stored.
        errors = (_relative_error([x], [y]) for x, y in pairs if np.size(y) > 1)
        state_error = max(errors, default=0.0)
        findings.append(StorageFinding(name, bytes_per_parameter, update_error, state_error))
    outliers = _outliers(plain, block, min_size)
    return StorageReport(repr(tx), len(steps), tuple(findings), tuple(outliers))


def _gradients_of_steps(params: Params, grads: Any) -> list[Updates]:
    """Return the gradients of each step."""
    structure = jax.tree.structure(params)
    if jax.tree.structure(grads) == structure:
        return [grads]
    steps = list(grads) if isinstance(grads, list | tuple) else []
    if not steps or any(jax.tree.structure(g) != structure for g in steps):
        raise ValueError(
            "check_storage: grads must be gradients with the structure of the parameters, or a "
            f"sequence of those of several steps, got {shown(grads)}."
        )
    return steps


def _run_steps(
    tx: Any, params: Params, steps: Sequence[Updates], way: Sequence[Params] | None
) -> tuple[Updates, OptState, list[Params]]:
    """Return the last update, the last state, and the parameters of each step.

    Args:
      tx: the transform.
      params: the parameters to begin with.
      steps: the gradients of each step.
      way: the parameters of each step; None if they take the steps of the updates.
    """
    state, update, updates = jax.jit(tx.init)(params), jax.jit(tx.update), params
    points = []
    for i, g in enumerate(steps):
        params = params if way is None else way[i]
        points.append(params)
        updates, state = update(g, state, params)
        if way is None:
            params = jax.tree.map(lambda p, u: jnp.asarray(p + u, p.dtype), params, updates)
    return updates, state, points


def _arrays_of_state(state: OptState) -> list[np.ndarray]:
    """Return the arrays of a state as a rule sees them."""
    leaves = jax.tree.leaves(state, is_leaf=is_stored)
    arrays = [fetched(x).load() if is_stored(x) else x for x in leaves]
    return [np.asarray(x, np.float64) if _is_floating(x) else np.zeros(1) for x in arrays]


def _is_floating(x: Any) -> bool:
    return jnp.issubdtype(dtype_of(x), jnp.floating)


def _relative_error(new: Sequence[Any], old: Sequence[Any]) -> float:
    """Return the root of the sum of squared differences, relative to that of `old`."""
    pairs = [[np.asarray(x, np.float64) for x in pair] for pair in zip(new, old, strict=True)]
    off = sum(float(np.sum(np.square(a - b))) for a, b in pairs)
    of = sum(float(np.sum(np.square(b))) for _, b in pairs)
    return float(np.sqrt(off / of)) if of else 0.0


def _outliers(state: OptState, block: int, min_size: int) -> list[Outliers]:
    """Return the arrays of a state that have blocks with an outlier, the worst first."""
    outliers = []
    for path, x in flatten_with_names(state, is_stored)[0]:
        if is_stored(x) or not _is_floating(x) or not np.ndim(x) or np.size(x) < max(min_size, 1):
            continue
        x = np.asarray(x, np.float64)
        length = min(block, x.shape[-1])
        # The last block of a row may be shorter: padding must not count in its mean.
        padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % length)])
        counts = np.pad(np.ones(x.shape[-1]), (0, -x.shape[-1] % length)).reshape(-1, length)
        blocks = padded.reshape(-1, counts.shape[0], length)
        mean = np.sum(np.square(blocks), axis=-1) / np.sum(counts, axis=-1)
        top = np.max(np.abs(blocks), axis=-1)
        ratios = top / np.sqrt(np.where(mean > 0, mean, 1.0))
        many = int(np.sum(ratios > OUTLIER))
        if many:
            outliers.append(Outliers(path_str(path), ratios.size, many, float(np.max(ratios))))
    return sorted(outliers, key=lambda o: -o.largest)
