"""Bridges to other libraries; each is imported only when it is used."""

from typing import Any

from gradxform.base import Transform, check_transform
from gradxform.errors import name_of


def as_optax(tx: Transform) -> Any:
    """Return `tx` as a real `optax.GradientTransformationExtraArgs`.

    Needed only where a library checks for that class or would drop extra arguments of anything
    else, as `optax.chain` does; elsewhere our transforms can be used as they are. Equal transforms
    give equal, hashable and picklable results.

    Args:
      tx: a transform of this library.

    Raises:
      ImportError: if optax is not installed.
      TypeError: if `tx` is no transform of this library.
    """
    try:
        import optax
    except ImportError as error:
        raise ImportError("as_optax: optax is not installed; install gradxform[optax].") from error
    check_transform("as_optax", tx, "tx")
    if not isinstance(tx, Transform):
        raise TypeError(f"as_optax: {name_of(tx)} is not a transform of this library.")
    return optax.GradientTransformationExtraArgs(tx.init, tx.update)
