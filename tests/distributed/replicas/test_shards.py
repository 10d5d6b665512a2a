"""Parameters in shards inside of a replica: averages, compressions and fragments of the pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SLICES, SHAPE, STEPS = 2, (32, 32), 9  # square, so that a dimension is not told by its length
INNER = "x", "y"
ADAM = gx.adam(0.1)
METHODS = {
    "diloco": lambda **how: gd.diloco(ADAM, "dcn", period=4, **how),
    "model_average": lambda **how: gd.model_average(ADAM, "dcn", period=4, **how),
    "elastic_average": lambda **how: gd.elastic_average(
        ADAM, "dcn", period=4, rho=0.0, moving_rate=0.3, **how
    ),
    "agn": lambda **how: gd.agn(ADAM, "dcn", period=4, **how),
}
FORMS = {
    "whole": {},
    "int8": {"compress": gd.int8(16)},
    "sign": {"compress": gd.sign(16)},
    "powersgd": {"compress": gd.powersgd(2)},
    "wire_dtype": {"wire_dtype": "bfloat16"},
}
FRAGMENTS = {
    "fragments": {"fragments": 4},
    "fragments in 8 bits": {"fragments": 2, "compress": gd.int8(16)},
    "fragments of low rank": {"fragments": 2, "compress": gd.powersgd(2)},
    "fragments that wait": {"fragments": 2, "delay": 1, "blend": 0.5},
}
SPECS = {"rows": P("x"), "columns": P(None, "y"), "both": P("x", "y"), "together": P(("x", "y"))}
CASES = [("diloco", form, where) for form in ("int8", "fragments in 8 bits") for where in SPECS]
CASES += [("diloco", form, "rows") for form in ("powersgd", "fragments of low rank")]
CASES += [("diloco", form, "both") for form in (*FORMS, *FRAGMENTS) if "8" not in form]
CASES += [(name, "int8", "both") for name in METHODS if name != "diloco"]


def pod(check_vma=True):
    mesh = jax.make_mesh((SLICES, 2, 2), ("dcn", *INNER), axis_types=(AxisType.Auto,) * 3)
    return gd.Replicas(("dcn",), inner_axes=INNER, mesh=mesh, manual=True, check_vma=check_vma)


def start():
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


def targets():
    return np.random.default_rng(1).normal(size=(STEPS, SLICES, *SHAPE)).astype(np.float32)


def advance(tx):
    return lambda p, s, goal: tx.step({"w": p["w"] - goal["w"]}, s, p)


def pieces_of(spec, sizes):
    """The slices of the whole array that devices have, one for each that differs."""
    entries = [e if isinstance(e, tuple) else () if e is None else (e,) for e in (*spec, None)]
    counts = [int(np.prod([sizes[name] for name in entry])) for entry in entries[:2]]
    for i in range(counts[0]):
        for j in range(counts[1]):
            rows, columns = (n // k for n, k in zip(SHAPE, counts, strict=True))
            yield np.s_[..., i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]


@pytest.mark.parametrize(("name", "form", "where"), CASES, ids="-".join)
def test_each_piece_trains_as_a_parameter_of_its_own(name, form, where):
    tx, spec = METHODS[name](**(FORMS | FRAGMENTS)[form]), SPECS[where]
    r = pod(check_vma=where != "columns")
    params, state = r.init(lambda: {"w": jnp.asarray(start())}, tx=tx, specs={"w": spec})
    step = r.wrap(advance(tx))
    for goal in targets():
        params, state = step(params, state, r.place({"w": goal}, {"w": spec}))
    ours = r.gather(params)["w"]
    alone = gd.Replicas("dcn", n=SLICES)
    init, step = alone.wrap(tx.init), alone.wrap(advance(tx))
    for piece in pieces_of(spec, {"x": 2, "y": 2}):
        p = alone.replicate({"w": jnp.asarray(start()[piece])})
        s = init(p)
        for goal in targets():
            p, s = step(p, s, alone.place({"w": goal[piece]}))
        np.testing.assert_allclose(ours[piece], alone.gather(p)["w"], rtol=1e-4, atol=1e-4)


def test_slots_of_fragments_lie_as_the_rows_of_their_parameter():
    tx = METHODS["diloco"](fragments=4)
    for spec in SPECS.values():
        _, state = pod().init(lambda: {"w": jnp.ones(SHAPE)}, tx=tx, specs={"w": spec})
        for x in jax.tree.leaves(state.outer):
            assert x.sharding.spec == P("dcn", *spec)
