"""Where states lie for the parameter trees and partition rules of trainers that others use.

The facts are the names of leaves, the order of their dimensions and the rules from logical axes to
axes of the mesh. Lengths are scaled down.
"""

import math
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.linen import spmd
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
from gradxform.distributed import state_sharding, state_specs
from gradxform.leaves import flatten_with_names

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

LENGTHS = {
    "embed": 32,
    "mlp": 48,
    "vocab": 64,
    "layers": 3,
    "heads": 4,
    "q_heads": 4,
    "kv_heads": 4,
    "kv": 8,
    "kv_head_dim": 8,
    "joined_kv": 32,
    "relpos_buckets": 24,
    "norm": 32,
    "head_size": 8,
    "q_heads_per_group": 2,
}


def mesh_of(**lengths):
    auto = (AxisType.Auto,) * len(lengths)
    return jax.make_mesh(tuple(lengths.values()), tuple(lengths), axis_types=auto)


def is_axes(x):
    return type(x) is tuple and all(isinstance(name, str) for name in x)


def arrays(axes):
    """Parameters with these logical axes."""
    return jax.tree.map(
        lambda names: jnp.ones([LENGTHS[n] for n in names], jnp.float32), axes, is_leaf=is_axes
    )


def laid(axes, rules):
    """The partition specs of logical axes, by Flax's reading of the rules."""

    def spec(names):
        return P(*(spmd.logical_to_mesh_axes(names, rules) or ()))

    return jax.tree.map(spec, axes, is_leaf=is_axes)


def axes_of(entry):
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def short(spec):
    """The entries of a spec without those at the end that say nothing."""
    entries = [axes_of(entry) for entry in spec]
    while entries and not entries[-1]:
        entries.pop()
    return tuple(entries)


def ends(found, *names):
    """The entries for the one leaf whose path has these names in this order at its end."""
    (spec,) = [spec for path, spec in found.items() if path[-len(names) :] == names]
    return spec


def loose(function, *args, **kwargs):
    """Optax is not made for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return function(*args, **kwargs)


OPTIMIZERS: dict[str, Any] = {
    "adamw": gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(0.1, b2=0.95, weight_decay=0.1)),
    "adafactor": gx.adafactor(0.1, min_dim_size_to_factor=4),
    "sm3": gx.sm3(0.1),
    "novograd": gx.novograd(0.1),
    "shampoo": gx.step_by_shampoo(0.1),
    "optax.adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "optax.adafactor": optax.adafactor(0.1, min_dim_size_to_factor=4),
    "optax.sm3": optax.sm3(0.1),
    "optax.novograd": optax.novograd(0.1),
}


def check_valid(tx, params, specs, mesh):
    """The entries of the state's specs by path, after a check that they are good for programs."""
    found = loose(state_sharding, tx, params, specs)
    state = loose(jax.eval_shape, tx.init, params)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    found_at, _ = flatten_with_names(found)
    for (path, spec), x in zip(found_at, jax.tree.leaves(state), strict=True):
        assert len(spec) <= x.ndim, path
        names = [name for entry in spec for name in axes_of(entry)]
        assert len(names) == len(set(names)), path
        for n, entry in zip(x.shape, spec, strict=False):
            assert n % math.prod(mesh.shape[name] for name in axes_of(entry)) == 0, path
    places = jax.tree.map(lambda s: NamedSharding(mesh, s), found)
    loose(jax.jit(tx.init, out_shardings=places), params)
    manual = loose(state_specs, tx, params, specs, mesh=mesh)
    spread = jax.tree.map(lambda _: P(), params)
    spread = jax.tree.unflatten(jax.tree.structure(spread), spec_leaves(params, specs))
    # JAX takes zeros like a piece for zeros that differ, also where they lack what was divided.
    init = jax.shard_map(tx.init, mesh=mesh, in_specs=(spread,), out_specs=manual, check_vma=False)
    made = loose(jax.jit(init), params)
    paths = [path for path, _ in found_at]
    rows = zip(paths, *map(jax.tree.leaves, (made, state, manual, found)), strict=True)
    for path, x, whole, spec, other in rows:
        # Of a square matrix, a piece may have another longest side.
        if x.shape == whole.shape and not {"v_row", "v_col"} & set(path):
            assert short(spec) == short(other)
    return {path: short(spec) for path, spec in found_at}


def spec_leaves(params, specs):
    """The spec of every leaf of the parameters, where a spec may be for a box around the leaf."""
    given = dict(flatten_with_names(specs, lambda x: isinstance(x, P))[0])
    paths = [path for path, _ in flatten_with_names(params)[0]]
    return [given.get(path, given.get(path[:-1])) for path in paths]


# ------------------------------------------------------------------------------------- MaxText

MAXTEXT_RULES = [
    (name, tuple(axes))
    for name, axes in [
        ("mlp", ["fsdp_transpose", "tensor", "tensor_sequence", "autoregressive"]),
        ("vocab", ["tensor", "tensor_transpose", "tensor_sequence", "autoregressive"]),
        ("heads", ["tensor", "tensor_transpose", "tensor_sequence", "autoregressive"]),
        ("q_heads", ["tensor", "tensor_transpose", "tensor_sequence", "autoregressive"]),
        ("kv_heads", ["tensor", "tensor_transpose", "tensor_sequence", "autoregressive"]),
        (
            "embed",
            ["fsdp", "fsdp_transpose", "sequence", "tensor_transpose", "context", "expert"],
        ),
        ("embed", ["fsdp", "sequence", "tensor_transpose", "context", "expert"]),
        ("embed", ["fsdp", "fsdp_transpose", "sequence", "context", "expert"]),
        ("embed", ["fsdp", "sequence", "context", "expert"]),
        ("norm", ["tensor", "tensor_transpose"]),
        ("layers", ["stage"]),
        ("kv", []),
        ("kv_head_dim", []),
    ]
]
MAXTEXT_MESH = {
    name: {"fsdp": 4, "tensor": 2}.get(name, 1)
    for name in (
        *("data", "stage", "fsdp", "fsdp_transpose", "sequence", "context"),
        *("context_autoregressive", "tensor", "tensor_transpose", "tensor_sequence"),
        *("expert", "autoregressive"),
    )
}


def kernel(*axes):
    return {"kernel": axes}


MAXTEXT = {
    "params": {
        "decoder": {
            "decoder_norm": {"scale": ("norm",)},
            "layers": {
                "mlp": {
                    "wi_0": kernel("embed", "layers", "mlp"),
                    "wi_1": kernel("embed", "layers", "mlp"),
                    "wo": kernel("mlp", "layers", "embed"),
                },
                "post_self_attention_layer_norm": {"scale": ("norm", "layers")},
                "pre_self_attention_layer_norm": {"scale": ("norm", "layers")},
                "self_attention": {
                    "key": kernel("embed", "layers", "kv_heads", "kv_head_dim"),
                    "out": kernel("heads", "layers", "kv", "embed"),
                    "query": kernel("embed", "layers", "q_heads", "kv"),
                    "value": kernel("embed", "layers", "kv_heads", "kv_head_dim"),
                },
            },
            "logits_dense": kernel("embed", "vocab"),
        },
        "token_embedder": {"embedding": ("vocab", "embed")},
    }
}
# What Flax makes of them: rules in order, each for axes that no dimension has taken.
TENSOR = ("tensor", "tensor_transpose", "tensor_sequence", "autoregressive")
MLP = ("fsdp_transpose", "tensor", "tensor_sequence", "autoregressive")
BESIDE_TENSOR = ("fsdp", "fsdp_transpose", "sequence", "context", "expert")
BESIDE_MLP = ("fsdp", "sequence", "tensor_transpose", "context", "expert")
STAGE = ("stage",)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_decoder_of_maxtext_with_scanned_layers(name):
    """Llama-like layers, stacked along axis 1 (`param_scan_axis: 1`), trained by AdamW.

    Source: AI-Hypercomputer/maxtext, MaxText/configs/base.yml (`mesh_axes`, `logical_axis_rules`,
    `scan_layers`, `opt_type`) and, for names and logical axes of kernels, attentions.py,
    linears.py, normalizations.py and llama2.py in MaxText/layers/.
    """
    specs = laid(MAXTEXT, MAXTEXT_RULES)
    found = check_valid(OPTIMIZERS[name], arrays(MAXTEXT), specs, mesh_of(**MAXTEXT_MESH))
    wo, query = ("mlp", "wo", "kernel"), ("self_attention", "query", "kernel")
    if "adamw" in name:
        assert ends(found, "nu", "params", "token_embedder", "embedding") == (TENSOR, BESIDE_TENSOR)
        at = "mu", "params", "decoder", "layers"
        assert ends(found, *at, *wo) == (MLP, STAGE, BESIDE_MLP)
        assert ends(found, *at, *query) == (BESIDE_TENSOR, STAGE, TENSOR)
    if (
        "adafactor" in name
    ):  # wo: mlp 48, layers 3, embed 32; query: embed 32, layers, 4 heads, kv 8
        rows, columns = (
            ("params", "decoder", "layers", *wo),
            ("params", "decoder", "layers", *query),
        )
        assert ends(found, "v_row", *rows) == (STAGE, BESIDE_MLP)
        assert ends(found, "v_col", *rows) == (MLP, STAGE)
        assert ends(found, "v_row", *columns) == (STAGE, TENSOR)
        assert ends(found, "v_col", *columns) == (BESIDE_TENSOR, STAGE, TENSOR)
    if "novograd" in name:
        assert ends(found, "nu", "params", "decoder", "layers", *wo) == ()


# ----------------------------------------------------------------------------------------- T5X

T5X_RULES = [
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("kv", None),
    ("joined_kv", "model"),
    ("embed", "data"),
    ("relpos_buckets", None),
    ("abspos_buckets", None),
    ("length", None),
    ("layers", None),
    ("stack", None),
    ("mlp_activations", None),
]
ATTENTION = {k: kernel("embed", "joined_kv") for k in ("query", "key", "value")}
ATTENTION |= {"out": kernel("joined_kv", "embed")}
GATED = {
    "wi_0": kernel("embed", "mlp"),
    "wi_1": kernel("embed", "mlp"),
    "wo": kernel("mlp", "embed"),
}
SCALE = {"scale": ("embed",)}
RELPOS = {"rel_embedding": ("heads", "relpos_buckets")}
T5X = {
    "token_embedder": {"embedding": ("vocab", "embed")},
    "encoder": {
        "relpos_bias": RELPOS,
        "layers_0": {
            "pre_attention_layer_norm": SCALE,
            "attention": ATTENTION,
            "pre_mlp_layer_norm": SCALE,
            "mlp": GATED,
        },
        "encoder_norm": SCALE,
    },
    "decoder": {
        "relpos_bias": RELPOS,
        "layers_0": {
            "pre_self_attention_layer_norm": SCALE,
            "self_attention": ATTENTION,
            "pre_cross_attention_layer_norm": SCALE,
            "encoder_decoder_attention": ATTENTION,
            "pre_mlp_layer_norm": SCALE,
            "mlp": GATED,
        },
        "decoder_norm": SCALE,
        "logits_dense": kernel("embed", "vocab"),
    },
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_t5_1_1_of_t5x(name):
    """T5 1.1 with parameters divided along two dimensions; T5X trains it by Adafactor.

    Query kernels are square, as in the base size: 12 heads of 64 and 768 features.

    Source: google-research/t5x, t5x/partitioning.py (`standard_logical_axis_rules` for
    `parameter_partitioning_dims=2`) and t5x/examples/t5/{network,layers}.py.
    """
    specs = laid(T5X, T5X_RULES)
    found = check_valid(OPTIMIZERS[name], arrays(T5X), specs, mesh_of(data=2, model=4))
    data, model = ("data",), ("model",)
    attention = ("encoder", "layers_0", "attention")
    query, out = (*attention, "query", "kernel"), (*attention, "out", "kernel")
    if "adamw" in name:
        assert ends(found, "mu", *query) == (data, model)
        assert ends(found, "nu", "encoder", "relpos_bias", "rel_embedding") == (model,)
    if "adafactor" in name:
        assert (ends(found, "v_row", *query), ends(found, "v_col", *query)) == ((data,), (model,))
        assert (ends(found, "v_row", *out), ends(found, "v_col", *out)) == ((model,), (data,))
        assert ends(found, "v", *SCALE_OF_ENCODER) == (data,)
    if name == "optax.sm3":
        assert (ends(found, "mu", *query, "0"), ends(found, "mu", *query, "1")) == (
            (data,),
            (model,),
        )
    if name == "shampoo":
        wi = "encoder", "layers_0", "mlp", "wi_0", "kernel"
        assert [ends(found, "statistics", *wi, k) for k in "01"] == [(data,), (model,)]


SCALE_OF_ENCODER = ("encoder", "encoder_norm", "scale")


# ------------------------------------------------------------------------------------- Levanter


@jax.tree_util.register_pytree_with_keys_class
class Named:
    """An array with names for its axes, in the form of haliax's `NamedArray`."""

    def __init__(self, array, axes):
        self.array, self.axes = array, axes

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("array"), self.array),), self.axes

    @classmethod
    def tree_unflatten(cls, axes, arrays):
        (array,) = arrays
        return cls(array, axes)


def named(*axes):
    return Named(jnp.ones([LENGTHS[name] for name in axes]), axes)


class Module(eqx.Module):
    """Any module: its parts by name."""

    parts: dict[str, Any]


class Stacked(eqx.Module):
    """A block whose arrays have an axis of layers."""

    stacked: Module


def linear(*axes):
    return Module({"weight": named(*axes)})


LEVANTER_AXES = {"vocab": "model", "mlp": "model", "heads": "model", "embed": "data"}


def levanter():
    attention = Module(
        {
            "q_proj": linear("layers", "kv_heads", "q_heads_per_group", "head_size", "embed"),
            "k_proj": linear("layers", "kv_heads", "head_size", "embed"),
            "v_proj": linear("layers", "kv_heads", "head_size", "embed"),
            "o_proj": linear("layers", "embed", "heads", "head_size"),
        }
    )
    mlp = Module(
        {
            "gate_proj": linear("layers", "mlp", "embed"),
            "up_proj": linear("layers", "mlp", "embed"),
            "down_proj": linear("layers", "embed", "mlp"),
        }
    )
    block = {"self_attn": attention, "mlp": mlp, "input_layernorm": linear("layers", "embed")}
    block |= {"post_attention_layernorm": linear("layers", "embed")}
    transformer = Module({"layers": Stacked(Module(block)), "norm": linear("embed")})
    embeddings = Module({"token_embeddings": linear("vocab", "embed")})
    return Module(
        {
            "transformer": transformer,
            "embeddings": embeddings,
            "lm_head": linear("vocab", "embed"),
        }
    )


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_stacked_modules_of_levanter(name):
    """A Llama of Equinox modules with named arrays, whose blocks are one module with a layer axis.

    Arrays with names stand here for haliax's. The specs are one for each of them, around the array.

    Source: stanford-crfm/levanter, src/levanter/models/llama.py, and the settings `axis_resources`
    and `parameter_axis_resources` that its documentation gives for training.
    """
    params = levanter()
    specs = jax.tree.map(
        lambda x: P(*(LEVANTER_AXES.get(n) for n in x.axes)),
        params,
        is_leaf=lambda x: isinstance(x, Named),
    )
    found = check_valid(OPTIMIZERS[name], params, specs, mesh_of(data=2, model=4))
    data, model = ("data",), ("model",)
    up = ("mlp", "parts", "up_proj", "parts", "weight", "array")
    if "adamw" in name:
        (spec,) = [s for path, s in found.items() if "mu" in path and path[-len(up) :] == up]
        assert spec == ((), model, data)
    if "adafactor" in name:  # layers 3, mlp 48, embed 32
        (row,) = [s for path, s in found.items() if "v_row" in path and path[-len(up) :] == up]
        (column,) = [s for path, s in found.items() if "v_col" in path and path[-len(up) :] == up]
        assert (row, column) == (((), data), ((), model))


# ----------------------------------------------------------------------------------------- Flax


class Linen(nn.Module):
    """A kernel and a bias with names of mesh axes, and an array without."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.normal()
        w = self.param("w", nn.with_partitioning(init, ("data", "model")), (16, 16))
        b = self.param("b", nn.with_partitioning(nn.initializers.zeros, ("model",)), (16,))
        return (
            jnp.dot(x, jnp.asarray(w)) + jnp.asarray(b)[None] + self.param("c", init, (8, 16))[:1]
        )


class Nnx(nnx.Module):
    """The same."""

    def __init__(self, rngs):
        init = nnx.initializers.normal()
        cut = nnx.with_partitioning(init, ("data", "model"))
        zeros = nnx.with_partitioning(nnx.initializers.zeros, ("model",))
        self.linear = nnx.Linear(16, 16, kernel_init=cut, bias_init=zeros, rngs=rngs)
        self.c = nnx.Param(init(rngs.params(), (8, 16)))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["linen", "linen unboxed", "nnx"])
def test_the_metadata_of_flax(kind, name):
    """Boxes with names, plain arrays beside specs of boxes, and variables with a sharding."""
    mesh = mesh_of(data=2, model=4)
    if kind == "nnx":
        with jax.set_mesh(mesh):
            params = nnx.state(Nnx(nnx.Rngs(0)), nnx.Param)
        specs = nnx.get_partition_spec(params)
        w, b = ("linear", "kernel"), ("linear", "bias")
    else:
        params = Linen().init(jax.random.key(0), jnp.ones((2, 16)))
        specs = nn.get_partition_spec(params)
        params = nn.unbox(params) if kind == "linen unboxed" else params
        w, b = ("params", "w"), ("params", "b")
    found = check_valid(OPTIMIZERS[name], params, specs, mesh)
    data, model = ("data",), ("model",)
    if "adamw" in name:
        assert ends(found, "mu", *w) == (data, model) and ends(found, "nu", *b) == (model,)
    if "adafactor" in name:
        assert (ends(found, "v_row", *w), ends(found, "v_col", *w)) == ((data,), (model,))
        assert ends(found, "v", *b) == (model,)
    if "novograd" in name:
        assert ends(found, "nu", *w) == () and ends(found, "mu", *w) == (data, model)
    if name == "sm3":
        assert ends(found, "mu", *w) == () and ends(found, "nu", *w) == (data, model)


BOXED = {
    "adafactor": lambda: gx.adafactor(0.01, min_dim_size_to_factor=8),
    "soap": lambda: gx.soap(0.01),
    "came": lambda: gx.came(0.01),
    "8 bits": lambda: gx.quantize_state(gx.adam(0.01)),
}


def check_trained(name, got, expected):
    """Require parameters to be equal, or equally far from 0 after SOAP.

    There are fewer examples than columns: which basis eigenvectors of 0 have is left to roundings.
    """
    for a, b in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        if name == "soap":
            a, b = (np.linalg.norm(x) for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=0.2)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def sharded_as(x, spec):
    return x.sharding.is_equivalent_to(NamedSharding(x.sharding.mesh, spec), x.ndim)


def trained_linen(tx, mesh, boxed):
    """Train as Flax's guides do: the state lies as its boxes say."""
    x = jax.random.normal(jax.random.key(1), (8, 16))
    model = Linen()
    params = model.init(jax.random.key(0), x)["params"]
    params = params if boxed else nn.unbox(params)

    def init(params):
        return params, tx.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: jnp.mean((model.apply({"params": p}, x) - 1.0) ** 2))(params)
        return gx.apply_gradients(tx, grads, state, params)

    if boxed:
        specs = nn.get_partition_spec(jax.eval_shape(init, params))
        places = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda s: isinstance(s, P)
        )
        params, state = jax.jit(init, out_shardings=places)(params)
    else:
        params, state = init(params)
    first = state
    for _ in range(3):
        params, state = step(params, state)
    assert jax.tree.structure(state) == jax.tree.structure(first)
    return nn.unbox(params), first


@pytest.mark.parametrize("name", BOXED)
def test_linen_trains_boxed_parameters_over_eight_devices(name):
    tx, mesh = BOXED[name](), mesh_of(data=2, model=4)
    expected, _ = trained_linen(tx, mesh, boxed=False)
    got, state = trained_linen(tx, mesh, boxed=True)
    check_trained(name, got, expected)
    if name == "adafactor":
        (row,) = (s.v_row for s in jax.tree.leaves(state, is_leaf=has_rows) if has_rows(s))
        assert row["w"].names in (("data",), ("model",))
        assert sharded_as(row["w"].value, P(*row["w"].names))


def has_rows(x):
    return hasattr(x, "v_row")


def trained_nnx(tx, names):
    init = nnx.initializers.normal()
    if names:
        init = nnx.with_partitioning(init, names)
    model = nnx.Linear(16, 16, kernel_init=init, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    first = nnx.to_flat_state(nnx.state(optimizer, nnx.OptState))
    x = jax.random.normal(jax.random.key(1), (8, 16))

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda m: jnp.mean((m(x) - 1.0) ** 2))(model)
        optimizer.update(model, grads)

    for _ in range(3):
        step(model, optimizer)
    return model, first


@pytest.mark.parametrize("name", BOXED)
def test_nnx_trains_named_variables_over_eight_devices(name):
    tx, mesh = BOXED[name](), mesh_of(data=2, model=4)
    expected, _ = trained_nnx(tx, None)
    with jax.set_mesh(mesh):
        got, slots = trained_nnx(tx, ("data", "model"))
    check_trained(name, *(nnx.to_pure_dict(nnx.state(m)) for m in (got, expected)))
    named = [(slot.get_metadata().get("out_sharding"), slot.get_value()) for _, slot in slots]
    named = [(names, x) for names, value in named if names for x in jax.tree.leaves(value)]
    assert named and all(len(names) <= x.ndim and sharded_as(x, P(*names)) for names, x in named)


def test_the_sharding_of_an_optimizer_has_the_dimensions_of_the_slot():
    """Variables may say how their slots are to lie: `optimizer_sharding`."""
    mesh = mesh_of(data=2, model=4)
    with jax.set_mesh(mesh):
        kernel = nnx.Param(jnp.ones((16, 8)), optimizer_sharding=("data", "model"))
        state = gx.scale_by_factored_rms(min_dim_size_to_factor=4).init({"w": kernel})
    row, whole = state.v_row["w"], gx.trace(0.9).init({"w": kernel}).trace["w"]
    assert row.get_metadata()["optimizer_sharding"] == ("model",) and row.shape == (8,)
    assert whole.get_metadata()["optimizer_sharding"] == ("data", "model")
