"""Calls of `migrate_state` that must be refused."""

import jax
import jax.numpy as jnp
import optax

import gradxform as gx
from tests.catalogue.case import FALLING

PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}
ADAM, TWO = gx.scale_by_adam(), gx.chain(gx.scale_by_adam(), gx.scale_by_adam(0.8))
NOT_ITS_STATE = "migrate_state: the state is not one of scale_by_adam for these parameters: "


def _migrate(tx, new_tx, state=None, params=None, **options):
    params = PARAMS if params is None else params
    state = tx.init(params) if state is None else state
    return gx.migrate_state(state, tx, new_tx, params, **options)


def _groups():
    """Adam in two groups, of which one is older."""
    tx = gx.partition({"a": ADAM, "b": ADAM}, {"w": "a", "b": "b"})
    states = {
        label: s._replace(inner_state=s.inner_state._replace(count=jnp.asarray(count)))
        for (label, s), count in zip(tx.init(PARAMS).inner_states.items(), (5, 7), strict=True)
    }
    return tx, gx.PartitionState(states)


def _from_groups(*links):
    tx, state = _groups()
    new_tx = gx.chain(tx, *links) if links else ADAM
    return _migrate(tx, new_tx, state)


UNLIKE = optax.GradientTransformation(
    lambda params: optax.ScaleByAdamState(jnp.zeros((), jnp.int32), params, params),
    lambda updates, state, params=None: (updates, state),
)

REFUSED = [
    (  # another transform's state
        lambda: _migrate(ADAM, gx.scale_by_nadam(), gx.trace(0.9).init(PARAMS)),
        ValueError,
        (NOT_ITS_STATE + "the root lacks 'count', which a ScaleByAdamState holds.",),
    ),
    (
        lambda: _migrate(ADAM, ADAM, jnp.zeros(())),
        TypeError,
        (NOT_ITS_STATE + "the root is", "expected a ScaleByAdamState"),
    ),
    (  # another number of links
        lambda: _migrate(gx.chain(gx.trace(0.9), ADAM), ADAM, (gx.trace(0.9).init(PARAMS),)),
        ValueError,
        ("not one of chain for these parameters: the root lacks '1'",),
    ),
    (  # other parameters
        lambda: _migrate(ADAM, ADAM, ADAM.init(PARAMS | {"w": jnp.ones((3, 5))})),
        ValueError,
        (NOT_ITS_STATE + ".mu['w'] has shape (3, 5), expected (3, 4).",),
    ),
    (
        lambda: _migrate(ADAM, ADAM, ADAM.init(PARAMS | {"c": jnp.ones(2)})),
        ValueError,
        (NOT_ITS_STATE + ".mu has 'c'",),
    ),
    (  # the states of all replicas at once
        lambda: _migrate(ADAM, ADAM, jax.tree.map(lambda x: jnp.stack([x]), ADAM.init(PARAMS))),
        ValueError,
        (
            "has shape (1,), expected ().",
            "A state with an axis of replicas is migrated for each of them",
        ),
    ),
    (lambda: _migrate(0.1, ADAM, ()), TypeError, ("migrate_state: tx must have init and update",)),
    (
        lambda: _migrate(ADAM, gx.scale_by_lion),
        TypeError,
        ("migrate_state: new_tx is the class scale_by_lion, not a transform; call it",),
    ),
    (  # which of two?
        lambda: _migrate(ADAM, TWO),
        ValueError,
        (
            "migrate_state: 1 state of scale_by_adam in the old state, at 'the root', but 2 in the "
            "new one, at '0' and '1'.",
            "match={'0': 'the root', '1': None}; None begins anew.",
        ),
    ),
    (
        lambda: _migrate(TWO, ADAM),
        ValueError,
        ("2 states of scale_by_adam in the old state, at '0' and '1', but 1", "match={'the root'"),
    ),
    (
        lambda: _migrate(gx.chain(gx.scale_by_adam(), gx.scale_by_radam()), gx.scale_by_lion()),
        ValueError,
        ("in the old state, at '0' and '1', but 1 in the new one", "match={'the root': '0'}"),
    ),
    (  # groups that are not equally old
        lambda: _from_groups(),
        ValueError,
        (
            "migrate_state: the root (scale_by_adam) goes on from several states, which differ: "
            "inner_states.b.inner_state.count is 7, inner_states.a.inner_state.count is 5.",
            "match={'count': 'inner_states.b.inner_state.count'}.",
        ),
    ),
    (
        lambda: _from_groups(gx.scale_by_learning_rate(FALLING)),
        ValueError,
        ("a count at 1.count, and the old state has counts that differ", "is 5", "pass step="),
    ),
    (  # parameters that join a run
        lambda: _migrate(gx.masked(ADAM, {"w": True, "b": False}), ADAM),
        ValueError,
        (
            "migrate_state: the root (scale_by_adam) goes on from the old state, which has nothing "
            "there for 'b'",
            "partition(...)",
            "match={'mu.b': None, 'nu.b': None}.",
        ),
    ),
    (  # another shape, another kind of number
        lambda: _migrate(gx.scale_by_ggt(window=2), gx.scale_by_ggt(window=3)),
        ValueError,
        (
            "migrate_state: buffer.b has shape (3, 4), but buffer.b of the old state has (2, 4). "
            "To begin it anew, pass match={'buffer.b': None}.",
        ),
    ),
    (
        lambda: _migrate(ADAM, ADAM, match={"count": "mu.b"}),
        ValueError,
        ("count has shape (), but mu.b of the old state has (4,).",),
    ),
    (
        lambda: _migrate(gx.scale_by_nadam(), gx.scale_by_nadam(), match={"count": "mu_product"}),
        TypeError,
        ("count has dtype int32, but mu_product of the old state has float32.",),
    ),
    (  # what `match` says
        lambda: _migrate(ADAM, TWO, match={"2": "0"}),
        ValueError,
        ("migrate_state: match names '2', but the new state does not have an array there.",),
    ),
    (
        lambda: _migrate(TWO, TWO, match={"0.mu": "0.mv"}),
        ValueError,
        (
            "match names '0.mv', but the old state does not have an array there. Did you mean",
            "'0.mu'",
        ),
    ),
    (
        lambda: _migrate(ADAM, gx.trace(0.9), match={"the root": "the root"}),
        ValueError,
        (
            "match says 'the root': 'the root', but the two do not have a name in common",
            "'trace.b'",
        ),
    ),
    (lambda: _migrate(ADAM, ADAM, match=["mu"]), TypeError, ("match must be a dict", "['mu']")),
    (lambda: _migrate(ADAM, ADAM, match={0: "1"}), TypeError, ("match must be a dict", "0: '1'")),
    (  # a schedule without a step to begin at
        lambda: _migrate(gx.sgd(0.1), gx.sgd(FALLING)),
        ValueError,
        (
            "migrate_state: the new state has a count at 1.count, and the old state does not count "
            "its steps; pass step=, the number of steps that the run has taken",
        ),
    ),
    (lambda: _migrate(ADAM, ADAM, step=-1), ValueError, ("step must be a whole number", "-1")),
    (lambda: _migrate(ADAM, ADAM, step=1.5), ValueError, ("step must be a whole number", "1.5")),
    (lambda: _migrate(ADAM, ADAM, step=True), ValueError, ("step must be a whole number", "True")),
    (  # a state that may be Adam's or AdaMax's
        lambda: _migrate(UNLIKE, ADAM),
        ValueError,
        (
            "migrate_state: cannot tell whether the root (ScaleByAdamState) is of scale_by_adam or "
            "of ",
            ", whose slots mean something else.",
            "Give gradxform's transform for the same call",
        ),
    ),
]
