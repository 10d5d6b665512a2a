"""The loops of docs/distributed.md train in every mode, with the numbers of a simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from docs.site import blocks
from tests.distributed.modes import MODES

PAGE = blocks.DOCS / "distributed.md"
CODE = [block.code for block in blocks.find(PAGE.read_text()) if block.language == "python"]
SETUP, LOOP = CODE[:2]
TWO_PROGRAMS, RESIZING, ON_PAPER = (
    next(code for code in CODE if what in code)
    for what in ("def with_sync(", "gd.resize_replicas(", "def between(")
)
START = {"w": np.linspace(-1, 1, 3, dtype=np.float32)}
BATCHES = np.random.default_rng(0).normal(size=(23, 16, 3)).astype(np.float32)


def scope():
    """Return the names of the page's setup, with batches that the simulation has too."""
    inside = {}
    exec(SETUP, inside)
    return inside | {"batches": list(BATCHES), "params": START}


def simulated(n):
    """The parameters of all replicas after the loop, one replica after the other."""
    tx = gx.adam(1e-2)
    many = [(START, tx.init(START)) for _ in range(n)]
    for t, batch in enumerate(BATCHES, 1):
        for i, part in enumerate(np.split(batch, n)):
            params, state = many[i]
            x = part.astype(np.float64)
            g = 2 / len(x) * x.T @ (x @ params["w"].astype(np.float64) - x[:, 0])
            updates, state = tx.update({"w": g.astype(np.float32)}, state, params)
            many[i] = {"w": np.asarray(params["w"] + updates["w"])}, state
        if t % 10 == 0:
            mean = {"w": np.mean([params["w"] for params, _ in many], axis=0)}
            many = [(mean, state) for _, state in many]
    return np.stack([params["w"] for params, _ in many])


@pytest.mark.parametrize("mode", list(MODES))
def test_the_loop_trains_in_every_mode(mode):
    assert len(LOOP.strip().splitlines()) <= 25
    made = ", ".join(f"{k}={v!r}" for k, v in MODES[mode].items())
    code = LOOP.replace('mode="shard_map")  # or', f"{made})  # or")
    assert made in code
    inside = scope()
    exec(code, inside)
    np.testing.assert_allclose(inside["params"]["w"], simulated(8), rtol=0, atol=1e-5)
    assert int(inside["state"].global_step) == 2


def test_two_programs_exchange_and_resume_with_another_number_of_replicas():
    inside = scope()
    exec(LOOP.replace("for batch in batches:", "for batch in ():"), inside)
    exec(TWO_PROGRAMS, inside)
    np.testing.assert_allclose(inside["params"]["w"], simulated(8), rtol=0, atol=1e-5)
    exec(RESIZING, inside)
    mean = np.mean(inside["params"]["w"], axis=0)
    np.testing.assert_allclose(inside["carry"]["params"]["w"], [mean] * 3, rtol=1e-6)


def test_the_bytes_on_paper_are_those_of_compiled_programs(capsys):
    paper = {}
    exec(ON_PAPER, paper)
    slices, chips, axes = 2, 4, ("dcn", "ici")
    mesh = jax.make_mesh((slices, chips), axes, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    replicas = gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True, check_vma=False)
    params = {"w": jnp.ones((512, 256), jnp.bfloat16)}
    n = params["w"].size
    for bytes_each, compress in (2, None), (1, gd.int8()):
        how = {"inner_axes": ("ici",), "shard_anchor": True, "compress": compress}
        tx = gd.diloco(gd.zero1(gx.adamw(1e-3), "ici"), "dcn", **how)
        args = replicas.init(lambda: params, tx=tx)
        step = replicas.wrap(lambda p, s, tx=tx: tx.step(p, s, p, sync=True))
        found = gd.hlo.collectives(step.lower(*args).compile())
        crossing = [
            one for one in found if any(len({d // chips for d in g}) > 1 for g in one.groups)
        ]
        message = sum(one.sent for one in crossing)
        assert message == pytest.approx(paper["between"](n, chips, slices, bytes_each), rel=0.04)
        fabric = sum(one.sent for one in found) - message
        assert fabric == pytest.approx(paper["inside"](n, chips), rel=1e-6)
    capsys.readouterr()
