"""What a user writes, checked by pyright in standard mode (`make lint`) and run by a test.

Lines with `pyright: ignore` are mistakes that a checker must find: it reports an ignore that is
not needed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import gradxform as gx
import gradxform.losses
from gradxform.distributed import hlo
from gradxform.slots import zeros_like
from gradxform.types import Array, Decay, Params, Slot

# ------------------------------------------------------------------------------------- recipes

adamw: gx.GradientTransformation = gx.adamw(1e-3)
clipped: gx.GradientTransformation = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(1e-3))
polyak: gx.GradientTransformationExtraArgs = gx.polyak_sgd(1.0)
by_functions: gx.GradientTransformation = gx.GradientTransformation(
    lambda params: (), lambda updates, state, params=None: (updates, state)
)
matched: gx.Mask = gx.path_matches("kernel$")
sent: float = hlo.wire_bytes([]).per_step
init, update = adamw


# --------------------------------------------------------------------------- rules of one's own


class ScaleBySignMomentumState(NamedTuple):
    mu: Slot


@gx.transform(name="user:scale_by_sign_momentum")
class scale_by_sign_momentum(gx.ArrayRule):
    """Replace the update by the sign of a momentum."""

    b1: Decay = 0.9

    State = ScaleBySignMomentumState
    locality = "entry"

    def init(self, params: Params) -> ScaleBySignMomentumState:
        return ScaleBySignMomentumState(mu=zeros_like(params))

    def rule(self, g: Array, m: Array, p: Array | None) -> tuple[Array, Array]:
        m = self.b1 * m + (1 - self.b1) * g
        return jnp.sign(m), m


@gx.transform(name="user:divide_by_loss")
class divide_by_loss(gx.ArrayRule):
    """Divide the update by the loss."""

    locality = "entry"

    def prepare(
        self, updates: None, state: gx.EmptyState, params: Params | None, *, value: Array
    ) -> tuple[gx.EmptyState, Array]:
        return state, value

    def rule(self, g: Array, p: Array | None, value: Array) -> Array:
        return g / value


@gx.transform
class double(gx.Transform):
    """Double the update."""

    def init(self, params: Params) -> gx.EmptyState:
        return gx.EmptyState()

    def update(
        self, updates: gx.Updates, state: gx.OptState, params: Params | None = None, **extra: object
    ) -> tuple[gx.Updates, gx.OptState]:
        return jax.tree.map(lambda u: 2 * u, updates), state


mine: gx.GradientTransformation = gx.chain(
    scale_by_sign_momentum(b1=0.8), divide_by_loss(), double(), gx.scale_by_learning_rate(0.1)
)


# ------------------------------------------------------------------------------- training loops


def loss_of(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.sum((params["w"] * x - 1.0) ** 2)


@jax.jit
def step(
    params: dict[str, jax.Array], state: gx.OptState, x: jax.Array
) -> tuple[dict[str, jax.Array], gx.OptState, jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, state = mine.update(grads, state, params, value=loss)
    return gx.apply_updates(params, updates), state, loss


def huber(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(gradxform.losses.huber_loss(x, y))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)


def train_flax(tx: gx.GradientTransformation) -> float:
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    recipe = nnx.Optimizer(model, gx.adamw(1e-3), wrt=nnx.Param)
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(jnp.ones((2, 3))) ** 2))(model)
    optimizer.update(model, grads)
    recipe.update(model, grads)
    return float(loss)


def train() -> list[float]:
    params = {"w": jnp.zeros(3)}
    state = mine.init(params)
    losses = []
    for _ in range(3):
        params, state, loss = step(params, state, jnp.ones(3))
        losses.append(float(loss))
    return losses


# ------------------------------------------------------------------------------------- mistakes


def mistakes() -> None:
    gx.adamw("fast")  # pyright: ignore[reportArgumentType]
    gx.adamw(1e-3, beta1=0.9)  # pyright: ignore[reportCallIssue]
    gx.clip("x")  # pyright: ignore[reportArgumentType]
    scale_by_sign_momentum(b2=0.9)  # pyright: ignore[reportCallIssue]
    gx.adma(1e-3)  # pyright: ignore[reportAttributeAccessIssue]
    adamw.udpate({}, ())  # pyright: ignore[reportAttributeAccessIssue]
    wrong: int = gx.sgd(0.1)  # pyright: ignore[reportAssignmentType]
    del wrong
