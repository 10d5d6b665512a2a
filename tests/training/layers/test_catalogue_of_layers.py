"""Every transform of the catalogue updates layers as the ordinary step does, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.base import GradientTransformation
from gradxform.testing.promise import check_close
from tests.catalogue import CASES
from tests.training.layers.models import drawn

pytestmark = [pytest.mark.long, pytest.mark.numeric]

LAYERS, WIDTH = 3, 6
# Rows whose options name other parameters, and one whose gradients have an axis of examples.
OTHERS = {"param_groups", "stacked", "variable_clipping", "average_per_element_updates"}


def rows():
    """One row of each class whose steps need no arguments of their own."""
    seen = {}
    for name, case in CASES.items():
        if (
            isinstance(case.tx, GradientTransformation)
            and not case.extra
            and name.partition("/")[0] not in OTHERS
        ):
            seen.setdefault(type(case.tx), name)
    return sorted(seen.values())


def params():
    return {
        "embed": drawn(0, 4, WIDTH),
        "layers": {"b": drawn(2, LAYERS, WIDTH), "w": drawn(1, LAYERS, WIDTH, WIDTH)},
        "out": drawn(3, WIDTH),
    }


def loss(params, tokens):
    def block(p, x):
        return x + jnp.tanh(x @ p["w"] + p["b"][None])

    x = gx.scan_layers(block, params["layers"], params["embed"][tokens])
    return jnp.mean((x @ params["out"]) ** 2)


def trained(tx, kind):
    step = gx.make_step(tx, loss, update_in_backward=kind)
    p = params()
    s = jax.jit(tx.init)(p)
    for _ in range(3):
        p, s, _ = step(p, s, jnp.arange(4))
    return p, s


@pytest.mark.parametrize("name", rows())
def test_layers_go_where_the_ordinary_step_leads(name):
    for wrap in (lambda tx: tx, lambda tx: gx.stacked(tx, "layers")):
        try:
            tx = wrap(CASES[name].tx)
            ours = trained(tx, True)
        except ValueError as error:
            if not str(error).startswith(("make_step:", "stacked:")):
                raise
            refusal = str(error)
            continue
        others = trained(tx, False)
        assert jax.tree.structure(ours) == jax.tree.structure(others)
        for (path, x), y in zip(
            jax.tree.leaves_with_path(ours[0]), jax.tree.leaves(others[0]), strict=True
        ):
            scale = float(np.max(np.abs(np.asarray(y)))) or 1.0
            check_close(jax.tree_util.keystr(path), x / scale, y / scale, 2e-5)
        return
    pytest.skip(refusal)
