"""Rows for `gradxform/distributed/`, on one replica, where a wrapper does what `inner` does."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

import gradxform as gx
import gradxform.distributed as gd
from gradxform.base import locality_of, tell_moved
from tests.catalogue.case import ADAM, Case, with_lr

ADAM_STEP = with_lr(0.1, ADAM)


@gx.transform(name="tests:alone")
class alone(gx.Transform):
    """Run a transform that names an axis as the only replica along it."""

    inner: Any

    handles_rows = True

    @property
    def locality(self):
        return locality_of(self.inner)

    def init(self, params):
        return _alone(lambda: self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        return _updated(self.inner, updates, state, params, extra)

    def inner_states(self, state):
        return [((), self.inner)]

    def moved(self, state, old, new):
        return _alone(lambda: tell_moved(self.inner, state, old, new))


def _alone(function):
    stacked = jax.vmap(lambda _: function(), axis_name="replica")(jnp.zeros(1, jnp.int32))
    return jax.tree.map(lambda x: x[0], stacked)


@functools.partial(jax.jit, static_argnums=0)  # outside a trace, `cond` compiles at every call
def _updated(inner, updates, state, params, extra):
    return _alone(lambda: inner.update(updates, state, params, **extra))


def elastic(**more):
    return gd.elastic_average(gx.adam(0.1), "replica", moving_rate=0.0, rho=0.0, **more)


@gx.value(name="tests:first_cut")
class first_cut(gx.Value):
    """Cut the first dimension of every parameter."""

    def __call__(self, params):
        return jax.tree.map(lambda p: 0 if jnp.ndim(p) else None, params)


WRAPPERS: dict[str, Case] = {
    "model_average": Case(
        alone(gd.model_average(gx.adam(0.1), "replica", period=2)), ADAM_STEP, rows=False
    ),
    "model_average/center": Case(
        alone(gd.model_average(gx.adam(0.1), "replica", period=2, keep_center=True)),
        ADAM_STEP,
        rows=False,
    ),
    "elastic_average": Case(alone(elastic(period=2)), ADAM_STEP, rows=False),
    "elastic_average/sequential": Case(
        alone(elastic(period=2, order="sequential")), ADAM_STEP, rows=False
    ),
    # The period is longer than the run: at an exchange the center steps, not the replica.
    "agn": Case(alone(gd.agn(gx.adam(0.1), "replica", period=99)), ADAM_STEP, rows=False),
    "outer": Case(
        alone(gd.outer(gx.adam(0.1), gx.scale(-1.0), "replica", period=2)),
        ADAM_STEP,
        rtol=1e-4,
        rows=False,
    ),
    # The delayed exchange comes after the last step here.
    "outer/delay": Case(
        alone(gd.outer(gx.adam(0.1), gx.scale(-1.0), "replica", period=99, delay=98)),
        ADAM_STEP,
        rows=False,
    ),
    "tower": Case(alone(gd.tower(gx.adam(0.1), "replica")), ADAM_STEP),
    "sync_replicas": Case(
        alone(gd.sync_replicas(gx.adam(0.1), "replica")),
        ADAM_STEP,
    ),
    # With copies of 16-bit parameters, updates lead to the copies' rounding.
    "zero1": Case(
        alone(gd.zero1(gx.adam(0.1), "replica", master_dtype=None)), ADAM_STEP, rows=False
    ),
    "shard_matrices": Case(
        alone(gd.shard_matrices(gx.adam(0.1), "replica", first_cut())),
        ADAM_STEP,
        rows=False,
    ),
    "drop_stale": Case(gd.drop_stale(gx.adam(0.1), 0), ADAM_STEP, extra={"grad_step": 99}),
}


SOME = {"w": np.ones((3, 4), np.float32), "b": np.ones(4, np.float32)}
HALF = {"w": jnp.ones((4, 4), jnp.bfloat16)}


def specs_of(tx, specs=None, params=None):
    params = SOME if params is None else params
    return gd.state_specs(tx, params, specs, mesh=AbstractMesh((2, 2), ("x", "y")))


def measured(mesh, tx=None):
    tx = gd.tower(gx.sgd(0.1), "x") if tx is None else tx
    return gd.exchange_metrics(tx, tx.init(SOME), SOME, mesh, replicas=False)


def hidden(tx):
    """A transform in which nothing shows what it runs."""
    return gx.GradientTransformation(lambda params: tx.init(params), tx.update)


def small_pod():
    mesh = jax.make_mesh((1, 1), ("dcn", "ici"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True)


REFUSED = [
    ("gd.model_average(adam(0.1), '', period=2)", ValueError, "model_average", "axis"),
    ("gd.model_average(0.1, 'r')", TypeError, "model_average", "inner"),
    ("gd.model_average(adam(0.1), 'r', period=0)", ValueError, "period", "at least 1"),
    ("gd.elastic_average(adam(0.1), 'r')", ValueError, "rho", "learning_rate"),
    ("gd.elastic_average(adam(0.1), 'r', rho=0.0, order='both')",
     ValueError, "order", "'sequential'"),
    ("gd.diloco(adam(0.1), 'r', period=10, fragments=3)", ValueError, "fragments", "10"),
    ("gd.diloco(adam(0.1), 'r', shard_anchor=True)",
     ValueError, "outer", "shard_anchor", "inner_axes"),
    ("gd.diloco(adam(0.1), 'r', inner_axes=('x',), shard_anchor='x')",
     TypeError, "outer", "shard_anchor", "'x'"),
    ("gd.diloco(adam(0.1), 'r', inner_axes=('x',), shard_anchor=True, compress=gd.powersgd(4))",
     ValueError, "outer", "shard_anchor", "powersgd"),
    ("gd.outer(adam(0.1), lamb(0.1), 'r', inner_axes=('x',), shard_anchor=True)",
     ValueError, "outer", "shard_anchor", "each entry"),
    ("gd.outer(adam(0.1), sgd(1.0), 'r', period=4, fragments=2, warmup=1)",
     ValueError, "warmup", "fragments"),
    ("gd.diloco(adam(0.1), 'r', period=9, fragments=3, delay=3)", ValueError, "delay", "3"),
    ("gd.diloco(adam(0.1), 'r', delay=-1)", ValueError, "delay", "at least 0"),
    ("gd.diloco(adam(0.1), 'r', blend=0.5)", ValueError, "blend", "delay"),
    ("gd.diloco(adam(0.1), 'r', delay=1, blend=1.5)", ValueError, "blend", "1.5"),
    ("gd.outer(adam(0.1), sgd(1.0), 'r', period=4, delay=1, warmup=1)",
     ValueError, "delay", "warmup"),
    ("gd.tower(adam(0.1), ('x', 'x'))", ValueError, "axis", "different"),
    ("gd.tower(adam(0.1), 'r', reduction='max')", ValueError, "reduction", "'mean', 'sum'"),
    ("gd.sync_replicas(adam(0.1), 'r', replicas_to_aggregate=0)",
     ValueError, "replicas_to_aggregate", "at least 1"),
    ("gd.drop_stale(adam(0.1), -1)", ValueError, "staleness", "at least 0"),
    ("gd.zero1(adam(0.1), ())", ValueError, "zero1", "axes"),
    ("gd.zero1(lbfgs_steps(), 'r')", ValueError, "step_by_lbfgs", "the whole tree"),
    ("gd.zero1(adam(0.1), 'r', master_dtype='int32')",
     ValueError, "master_dtype", "floating", "int32"),
    ("specs_of(scale_by_adam)", TypeError, "state_specs", "tx is the class"),
    ("specs_of(adam(0.1), {'w': P()})", ValueError, "state_specs", "['b']", "sharding"),
    ("specs_of(adam(0.1), {'w': P(), 'b': P(None, 'x')})",
     ValueError, "['b'] of shape (4,)", "more entries"),
    ("specs_of(adam(0.1), {'w': P('x', 'x'), 'b': P()})",
     ValueError, "state_specs", "['w'] names 'x' twice"),
    ("gd.state_specs(adam(0.1), SOME, P('x'), mesh={'x': 2})",
     TypeError, "state_specs", "mesh must be a jax.sharding.Mesh", "{'x': 2}"),
    ("specs_of(adam(0.1), 'x')", TypeError, "state_specs", "PartitionSpec", "'x'"),
    ("gd.state_specs(adam(0.1), SOME, P('x'))", ValueError, "the mesh", "'x'", "set_mesh"),
    ("gd.state_specs(gd.zero1(adam(0.1), 'x'), SOME)", ValueError, "the mesh", "'x'"),
    ("specs_of(adam(0.1), P('z'))", ValueError, "lacks the axis 'z'", "x, y"),
    ("specs_of(gd.zero1(adam(0.1), 'z'))", ValueError, "lacks the axis 'z'", "x, y"),
    ("specs_of(adam(0.1), {'w': P('x'), 'b': P()})",
     ValueError, "['w'] of shape (3, 4)", "2 equal pieces along dimension 0"),
    ("specs_of(gd.model_average(adam(0.1), 'x'), P(None, 'x'))", ValueError, "more entries"),
    ("specs_of(gd.model_average(adam(0.1), 'x'), {'w': P(None, 'x'), 'b': P()})",
     ValueError, "['w']", "'x', the axis of replicas", "leave it out"),
    ("specs_of(gd.zero1(adam(0.1), 'x'), {'w': P(None, 'x'), 'b': P()})",
     ValueError, "['w']", "'x', the axis of zero1"),
    ("specs_of(hidden(gd.model_average(adam(0.1), 'x')))",
     ValueError, "ModelAverageState", "which axis", "gradxform.chain"),
    ("specs_of(hidden(gd.zero1(adam(0.1), 'x')))",
     ValueError, "part that divides it", "which axis"),
    ("specs_of(optax.chain(gd.zero1(adam(0.1), 'x')))",
     ValueError, "part that divides it", "which axis"),
    ("specs_of(gd.drop_stale(gd.tower(adam(0.1), 'x'), 0))", TypeError, "extra={", "grad_step"),
    ("specs_of(MultiSteps(gd.tower(adam(0.1), 'x'), 2))",
     ValueError, "acc_grads", "MultiSteps", "replicas='x'"),
    ("measured({'y': 2})", ValueError, "exchange_metrics", "lacks the axis 'x'", "tower", "y"),
    ("measured(4)", TypeError, "exchange_metrics", "mesh", "by name", "4"),
    ("measured({'x': 0})", TypeError, "exchange_metrics", "mesh", "by name"),
    ("measured({'x': 2}, partition({'a': gd.tower(sgd(0.1), 'x')}, 'a'))",
     ValueError, "exchange_metrics", "tower", "by themselves"),
    *((f"gd.{part}(adam(0.1), 'dcn', inner_axes=('ici', {axis!r}))",
       ValueError, "inner_axes", words)
      for part in ("model_average", "diloco", "agn")
      for axis, words in (
          ("dcn", "'dcn' is in axis and in inner_axes"), ("ici", "different names"))),
    ("gd.diloco(gd.zero1(adam(0.1), ('ici', 'dcn')), 'dcn')",
     ValueError, "outer", "zero1 inside of it", "'dcn', the axis of replicas"),
    ("gd.sync_replicas(adam(0.1), ('x', 'x'))", ValueError, "axis", "different"),
    *((f"gd.sync_replicas(adam(0.1), 'r', weighted={value!r})",
       TypeError, f"sync_replicas: weighted must be True or False, got {value!r}.")
      for value in (1, "mean", None)),
    *((f"gd.Replicas({axes})", kind, f"Replicas: {words}") for axes, kind, words in (
        ("'r', 2", TypeError, "inner_axes must be the name of a mesh a"),
        ("3", TypeError, "axis must be the name of a mesh axis, or a tuple of names,"),
        ("None", TypeError, "axis must be the name of a mesh axis, or a tuple of na"),
        ("('a', 'a')", ValueError, "axis must be the name of a mesh axis, or a tuple"),
        ("''", ValueError, "axis must be the name of a mesh axis"),
        ("()", ValueError, "axis must name at least one axis"),
        ("'a', 'a'", ValueError, "the axis 'a' is named twice"),
        ("manual='x'", TypeError, "manual must be True or False, got 'x'."),
        ("check_vma=1", TypeError, "check_vma must be True or False, got 1."))),
    *((f"gd.Replicas('r', n=2, mode='vmap').{call}", kind, f"Replicas: {words}")
      for call, kind, words in (
        ("wrap(sgd(0.1))", TypeError, "function must be a function for one repli"),
        ("init(sgd(0.1), HALF)", TypeError, "fn must be a function for one repli"),
        ("init(dict, tx=0.1)", TypeError, "tx must have init and update, as a tran"),
        ("wrap(max, static=0.5)", TypeError, "static must hold positions or names o"),
        ("wrap(max, keys=None)", TypeError, "keys must hold positions or names of"),
        ("split(HALF, over=2)", TypeError, "over must be the name of a mesh axis"),
        ("place({'w': 'x'})", TypeError, "parameter ['w'] is 'x', which is not an a"),
        ("replicate({'w': 'x'})", TypeError, "parameter ['w'] is 'x', which is not"),
        ("place(HALF)", ValueError, "['w'] of shape (4, 4) has no leading axis of 2"),
        ("unreplicate({'w': 2.0})", ValueError, "['w'] of shape () has no leading a"),
        ("sharding(inner='a')", TypeError, "inner must be a PartitionSpec, got 'a'."),
        ("sharding(2)", TypeError, "shared must be True or False, got 2."))),
    ("gd.local_view({'w': jnp.ones(2)}, 3)",
     TypeError, "local_view: axis must be the name of a mesh axis, or a tuple of names, got 3."),
    ("gd.scale_loss(jnp.ones(()), None)", TypeError, "scale_loss: axis must be the name"),
    ("gd.scale_loss(jnp.ones(()), 'r', 'men')", ValueError,
     "scale_loss: reduction must be one of 'mean', 'sum', got 'men'. Did you mean 'mean'?"),
    ("gd.state_specs(adam(0.1), {'w': jnp.ones(2)}, replicas=2)", TypeError,
     "state_specs: replicas must be the name of a mesh axis, or a tuple of names, got 2."),
    ("gd.state_specs(adam(0.1), {'w': jnp.ones(2)}, extra=jnp.ones(2))",
     TypeError, "state_specs: extra must be a dict, got an array of shape (2,)."),
    ("gd.resize_replicas({'w': jnp.ones((2, 2))}, 4, 'mean')",
     TypeError, "resize_replicas: policy must be a dict, got 'mean'."),
    ("gd.exchange_metrics(sgd(0.1), (), {}, {'r': 2}, replicas=2)",
     TypeError, "exchange_metrics: replicas must be True or False, got 2."),
    *((f"gd.{part}(adam(0.1), 'r', wire_dtype='float32').init(HALF)",
       ValueError, "wire_dtype float32 is wider than the parameter ['w'] of dtype bfloat16")
      for part in ("tower", "sync_replicas", "model_average", "diloco", "agn")),
    ("specs_of(gd.zero1(adam(0.1), 'x', wire_dtype='float32'), params=HALF)",
     ValueError, "zero1", "wire_dtype float32 is wider than the parameter ['w']"),
    *(("gd.Replicas('r', n=2, mode='vmap').wrap("
       f"gd.{part}(adam(0.1), 'r', compress=gd.powersgd(9)).init)({{'w': jnp.ones((2, 8, 40))}})",
       ValueError, "powersgd", "rank must be at most 8 for ['w'] of shape (8, 40), got 9")
      for part in ("tower", "diloco")),
    ("small_pod().init(lambda: SOME, specs={'w': P('dcn'), 'b': P()})",
     ValueError, "Replicas", "['w']", "'dcn'", "leave out"),
    ("small_pod().init(lambda: SOME, specs={'w': P()})",
     ValueError, "Replicas", "['b']", "lacks a sharding"),
    ("gd.int8(0)", ValueError, "int8", "block", "at least 1"),
    ("gd.int8(2.5)", TypeError, "int8", "block"),
    ("gd.float8('e3m4')", ValueError, "float8", "kind", "'e4m3'"),
    ("gd.sign(12)", ValueError, "sign", "block", "multiple of 8", "12"),
    ("gd.top_k(0.0)", ValueError, "top_k", "fraction", "(0, 1]"),
    ("gd.top_k(1.5)", ValueError, "top_k", "fraction", "1.5"),
    ("gd.top_k(0.01, 1 << 17)", ValueError, "top_k", "block", "65536"),
    ("gd.dct_top_k(0.0)", ValueError, "dct_top_k: fraction must be in (0, 1], got 0.0."),
    ("gd.dct_top_k(0.01, 1 << 17)",
     ValueError, "dct_top_k: block must be at most 65536, got 131072."),
    ("gd.demo(0.1, 'r', decay=1.5)", ValueError, "dct_top_k: decay must be in [0, 1], got 1.5."),
    ("gd.powersgd(0)", ValueError, "powersgd", "rank", "at least 1"),
    ("gd.tower(adam(0.1), 'r', compress='int8')",
     TypeError, "tower", "compress", "int8()", "'int8'"),
    ("gd.tower(adam(0.1), 'r', wire_dtype='bfloat16', compress=gd.int8())",
     ValueError, "tower", "wire_dtype or compress", "bfloat16"),
    ("gd.model_average(adam(0.1), 'r', wire_dtype='int8')",
     ValueError, "model_average", "wire_dtype", "floating", "int8"),
    ("gd.tower(adam(0.1), 'r', reduced='sum', compress=gd.sign())",
     ValueError, "tower", "compress", "reduced='sum'", "local_view"),
    *((f"gd.elastic_average(adam(0.1), 'r', rho=0.0, order='sequential', {name}={x})",
       ValueError, "elastic_average", name, "order='sequential'")
      for name, x in (
          ("compress", "gd.int8()"), ("wire_dtype", "'bfloat16'"), ("inner_axes", "('x',)"))),
    ("gd.agn(adam(0.1), 'r', order='sequential', compress=gd.int8())",
     ValueError, "agn", "compress", "Leave compress out"),
    ("gd.Replicas(mode='smap')", ValueError, "mode", "'shard_map'"),
    ("gd.Replicas(n=0)", ValueError, "n must be", "at least 1"),
    ("gd.Replicas(('a', 'b'), ('b',))", ValueError, "'b'", "twice", "inside a replica"),
    ("gd.Replicas(())", ValueError, "axis", "at least one"),
    ("gd.Replicas(('a', 'b'))", ValueError, "several axes", "need a mesh"),
    ("gd.Replicas(('a', 'b'), mode='vmap')", ValueError, "several axes", "'shard_map'"),
    ("gd.Replicas(manual=True)", ValueError, "manual=True", "inner_axes=()"),
    ("gd.Replicas(n=2, mode='vmap').abstract(dict)",
     ValueError, "Replicas", "abstract", "manual=True"),
    ("small_pod().abstract(dict, saved={'icy': 2})",
     ValueError, "Replicas", "saved", "'icy'", "Did you mean 'ici'"),
    ("small_pod().abstract(dict, saved={'dcn': 0})", ValueError, "saved", "'dcn'", "0"),
    ("small_pod().abstract(dict, saved=[1])", TypeError, "saved", "by name", "[1]"),
    ("gd.Replicas(mesh=jax.devices())", TypeError, "Replicas", "mesh must be", "Mesh"),
]  # fmt: skip
