"""Every public name of the installed Optax is here, is looked up there, or is an exception."""

import functools
import importlib
import subprocess
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform._names import optax as forwards
from tests.environment import limit
from tests.interop.test_optax_modules import public

optax = pytest.importorskip("optax")

pytestmark = pytest.mark.numeric

# Names of Optax that gradxform does not have, each with the reason.
EXCEPTIONS: dict[str, str] = {
    f"experimental.aggregating.{name}": "a name of Python's that Optax's module imports"
    for name in ("Any", "NamedTuple", "Protocol", "Sequence")
}


def modules():
    """The public modules of Optax, by their names in it; `optax` itself is the empty string."""
    names, rest = [], [("", optax)]
    while rest:
        name, module = rest.pop()
        names.append(name)
        for k, part in vars(module).items():
            own = f"{module.__name__}.{k}", f"{module.__name__}._{k}"
            if isinstance(part, types.ModuleType) and part.__name__ in own and k[0] != "_":
                rest.append((f"{name}.{k}".lstrip("."), part))
    return sorted(names)


def exists(name):
    """Whether gradxform has a name, in a module or as one."""
    module, _, attribute = f"gradxform.{name}".rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", modules())
def test_every_public_name_of_optax_is_here_or_looked_up_or_an_exception(module):
    if module and not exists(module):
        assert module in EXCEPTIONS, f"optax.{module} is new"
        return
    parts = module.split(".") if module else []
    for name in public(functools.reduce(getattr, parts, optax)):
        full = f"{module}.{name}".lstrip(".")
        known = exists(full) + (full in EXCEPTIONS)
        assert known, f"optax.{full} is neither here, nor looked up, nor an exception"
        assert known == 1, f"{full} is here: take it out of EXCEPTIONS"


def test_a_name_that_is_looked_up_is_optaxs_and_nothing_of_ours():
    for name in forwards.NAMES:
        assert getattr(gx, name) is getattr(optax, name)
    for name in forwards.MODULES:
        ours, theirs = (importlib.import_module(f"{lib}.{name}") for lib in ("gradxform", "optax"))
        assert getattr(gx, name) is ours
        assert dir(ours) == sorted(public(theirs))
        assert all(getattr(ours, k) is getattr(theirs, k) for k in public(theirs))
    own = set(gx.__all__)
    assert not own & (forwards.NAMES | forwards.MODULES)
    assert not forwards.NAMES & set(dir(gx))


def test_an_optimizer_of_optax_with_a_search_runs_in_our_chain():
    def loss(params):
        return jnp.sum(gx.losses.squared_error(params["w"], jnp.full(2, 3.0)))

    tx, params = gx.chain(optax.lbfgs()), {"w": jnp.ones(2)}
    state = tx.init(params)
    value_and_grad = gx.value_and_grad_from_state(loss)
    for _ in range(3):
        value, grad = value_and_grad(params, state=state)
        extra = {"value": value, "grad": grad, "value_fn": loss}
        updates, state = tx.update(grad, state, params, **extra)
        params = gx.apply_updates(params, updates)
    np.testing.assert_allclose(params["w"], 3.0, atol=1e-3)


def test_a_name_that_nobody_has_is_an_error_with_the_nearest():
    with pytest.raises(AttributeError, match=r"'gradxform' has no attribute 'adma'.*'adam'"):
        _ = gx.adma
    with pytest.raises(AttributeError, match=r"Did you mean 'huber_loss'"):
        _ = gx.hubber_loss
    with pytest.raises(AttributeError, match=r"'optax.losses' has no attribute 'huber'"):
        _ = gx.losses.huber
    with pytest.raises(ImportError, match="cannot import name 'hubber_loss'"):
        from gradxform import hubber_loss  # noqa: F401
    assert not hasattr(gx, "wrappers") or "wrappers" in sys.modules["gradxform"].__dict__


WITHOUT = """
import sys
sys.modules["optax"] = None  # as if it were not installed
import gradxform as gx
from gradxform import *
assert "huber_loss" not in globals() and "losses" not in globals() and "losses" not in dir(gx)
for look_up in (
    lambda: gx.huber_loss,
    lambda: gx.losses.huber_loss,
    lambda: exec("from gradxform import l2_loss"),
    lambda: exec("from gradxform.losses import l2_loss"),
):
    try:
        look_up()
    except ImportError as error:
        assert "install Optax" in str(error), error
    else:
        raise SystemExit("no error")
import gradxform.losses
try:
    gx.adma
except AttributeError as error:
    assert "adam" in str(error)
"""


def test_without_optax_the_error_says_what_to_install():
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=limit(6, 60))
