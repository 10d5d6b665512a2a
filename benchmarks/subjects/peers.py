"""Optimizers of matrices of other libraries, if they are installed, and ours with equal numbers."""

import contextlib
import importlib
import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import PartitionSpec

import gradxform as gx


class Peer(NamedTuple):
    """A module with an optimizer of another library.

    Attributes:
      module: the module that is imported.
      package: the distribution that has it, as pip names it; None for a single file.
      source: what pip installs, or where the file is.
    """

    module: str
    package: str | None
    source: str


KRON = Peer("distributed_kron", "distributed-kron", "distributed-kron")
PSGDAX = Peer("psgdax", "psgdax", "psgdax")
SOAP = Peer("soap_jax", "soap_jax", "git+https://github.com/haydn-jones/SOAP_JAX")
SHAMPOO = Peer(
    "precondition.distributed_shampoo",
    "precondition-opt",
    "git+https://github.com/google-research/precondition",
)
DION = Peer("dion_reference_optax", None, "pull request 9 of https://github.com/microsoft/dion")


class Match(NamedTuple):
    """An optimizer of ours, and a peer's, with equal numbers wherever both have them.

    Attributes:
      rule: the name of ours, and what is unusual.
      peer: where theirs is.
      ours: makes ours.
      theirs: makes theirs, from the module of the peer.
      form: which of several forms of the peer this is.
    """

    rule: str
    peer: Peer
    ours: Callable[[], Any]
    theirs: Callable[[Any], Any]
    form: str = ""

    @property
    def label(self) -> str:
        """The name of the peer, with its form."""
        name = self.peer.module.split(".")[0]
        return f"{name}, {self.form}" if self.form else name


RATE, PERIOD = 1e-3, 10
# What both forms of PSGD Kron are told: products in float32, as ours are.
_KRON = {
    "b1": 0.9,
    "preconditioner_lr": 0.1,
    "preconditioner_init_scale": 1.0,
    "precond_update_precision": "float32",
    "precond_grads_precision": "float32",
}


def _psgd(share: float) -> Any:
    return gx.psgd_kron(RATE, preconditioner_update_probability=share, deterministic=True)


def _kron(rule: str, share: float) -> Match:
    """Return a match that fits at this share of the steps."""

    def theirs(module: Any) -> Any:
        return module.kron(
            RATE,
            preconditioner_update_probability=share,
            merge_small_dims=False,
            partition_grads_into_blocks=False,
            **_KRON,
        )

    return Match(rule, KRON, lambda: _psgd(share), theirs)


def _psgdax(mode: str) -> Match:
    """Return a match that fits at every step; "EQ" is the rule of ours."""

    def theirs(module: Any) -> Any:
        return module.kron(
            RATE,
            preconditioner_update_probability=1.0,
            preconditioner_mode=mode,
            max_skew_triangular=math.inf,
            whiten_grad=False,  # the average is whitened
            track_lipschitz=False,
            grad_clip_max_amp=1.1,
            **_KRON,
        )

    return Match("psgd_kron", PSGDAX, lambda: _psgd(1.0), theirs, mode)


def _soap() -> Match:
    numbers = {"weight_decay": 0.0, "precondition_frequency": PERIOD}
    return Match(
        "soap",
        SOAP,
        lambda: gx.soap(RATE, **numbers),
        lambda module: module.soap(RATE, **numbers),
    )


def _shampoo(rule: str, block: int, eigh: bool = False) -> Match:
    numbers: dict[str, Any] = {
        "start_preconditioning_step": 0,
        "preconditioning_compute_steps": PERIOD,
    }

    def ours() -> Any:
        root = "eigh" if eigh else "auto"
        return gx.distributed_shampoo(RATE, block, inverse_root=root, **numbers)

    def theirs(module: Any) -> Any:
        return module.distributed_shampoo(
            RATE,
            block,
            best_effort_shape_interpretation=False,  # or small matrices become vectors
            generate_training_metrics=False,
            eigh=eigh,
            **numbers,
        )

    return Match(rule, SHAMPOO, ours, theirs)


def _dion() -> Match:
    def theirs(module: Any) -> Any:
        # Its default decomposition does not return orthonormal columns.
        tx = module.dion(RATE, rank_fraction=0.25, mu=0.95, weight_decay=0.0, qr_method="qr")

        def init(params: Any) -> Any:
            # It makes a Python integer of an array, which a trace refuses.
            with jax.ensure_compile_time_eval():
                return tx.init(params)

        return optax.GradientTransformation(init, tx.update)

    return Match("dion", DION, lambda: gx.dion(RATE, 0.25, 0.95, weight_decay=0.0), theirs)


MATCHES: tuple[Match, ...] = (
    _kron("psgd_kron", 1.0),
    _kron("psgd_kron, one fit in 10 steps", 0.1),
    _psgdax("EQ"),
    _psgdax("Q0.5EQ1.5"),
    _soap(),
    _shampoo("distributed_shampoo, blocks of 128", 128),
    _shampoo("distributed_shampoo, blocks of 1024", 1024),
    _shampoo("distributed_shampoo, eigenvectors", 128, eigh=True),
    _dion(),
)


def one_of_each() -> tuple[Match, ...]:
    """Return the first match of each peer, for a smoke run."""
    firsts: dict[Peer, Match] = {}
    for match in MATCHES:
        firsts.setdefault(match.peer, match)
    return tuple(firsts.values())


def load(peer: Peer, folder: Path | None = None) -> ModuleType:
    """Import the module of a peer.

    Args:
      peer: which one.
      folder: where to look for it after the environment, so that the environment's JAX is used.

    Raises:
      ImportError: if it is not there, or needs what is not there.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    with _subscripted():
        return importlib.import_module(peer.module)


@contextlib.contextmanager
def _subscripted() -> Iterator[None]:
    """Let annotations say `PartitionSpec[str]`, as those of distributed_kron 2.0.0 do."""
    spec: Any = PartitionSpec
    if hasattr(spec, "__class_getitem__"):
        yield
        return
    spec.__class_getitem__ = classmethod(lambda cls, _: cls)
    try:
        yield
    finally:
        del spec.__class_getitem__


def version(peer: Peer) -> str | None:
    """Return the version of an installed peer; None for a file."""
    try:
        return importlib.metadata.version(peer.package) if peer.package else None
    except importlib.metadata.PackageNotFoundError:  # files without their metadata
        return None
