"""Calls of `migrate_state` that must be refused."""

import jax.numpy as jnp
import optax

import gradxform as gx

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
    ("_migrate(ADAM, scale_by_nadam(), trace(0.9).init(PARAMS))",
     ValueError, NOT_ITS_STATE + "the root lacks 'count', which a ScaleByAdamState holds."),
    ("_migrate(ADAM, ADAM, jnp.zeros(()))",
     TypeError, NOT_ITS_STATE + "the root is", "expected a ScaleByAdamState"),
    ("_migrate(chain(trace(0.9), ADAM), ADAM, (trace(0.9).init(PARAMS),))",
     ValueError, "not one of chain for these parameters: the root lacks '1'"),
    ("_migrate(ADAM, ADAM, ADAM.init(PARAMS | {'w': jnp.ones((3, 5))}))",
     ValueError, NOT_ITS_STATE + ".mu['w'] has shape (3, 5), expected (3, 4)."),
    ("_migrate(ADAM, ADAM, ADAM.init(PARAMS | {'c': jnp.ones(2)}))",
     ValueError, NOT_ITS_STATE + ".mu has 'c'"),
    ("_migrate(ADAM, ADAM, jax.tree.map(lambda x: jnp.stack([x]), ADAM.init(PARAMS)))",
     ValueError, "has shape (1,), expected ().",
     "A state with an axis of replicas is migrated for each of them"),
    ("_migrate(0.1, ADAM, ())", TypeError, "migrate_state: tx must have init and update"),
    ("_migrate(ADAM, scale_by_lion)",
     TypeError, "migrate_state: new_tx is the class scale_by_lion, not a transform; call it"),
    ("_migrate(ADAM, TWO)",
     ValueError,
     "migrate_state: 1 state of scale_by_adam in the old state, at 'the root', but 2 in the new "
     "one, at '0' and '1'.", "match={'0': 'the root', '1': None}; None begins anew."),
    ("_migrate(TWO, ADAM)", ValueError,
     "2 states of scale_by_adam in the old state, at '0' and '1', but 1", "match={'the root'"),
    ("_migrate(chain(scale_by_adam(), scale_by_radam()), scale_by_lion())", ValueError,
     "in the old state, at '0' and '1', but 1 in the new one", "match={'the root': '0'}"),
    ("_from_groups()",
     ValueError,
     "migrate_state: the root (scale_by_adam) goes on from several states, which differ: "
     "inner_states.b.inner_state.count is 7, inner_states.a.inner_state.count is 5.",
     "match={'count': 'inner_states.b.inner_state.count'}."),
    ("_from_groups(scale_by_learning_rate(FALLING))", ValueError,
     "a count at 1.count, and the old state has counts that differ", "is 5", "pass step="),
    ("_migrate(masked(ADAM, {'w': True, 'b': False}), ADAM)",
     ValueError,
     "migrate_state: the root (scale_by_adam) goes on from the old state, which has nothing "
     "there for 'b'", "partition(...)", "match={'mu.b': None, 'nu.b': None}."),
    ("_migrate(scale_by_ggt(window=2), scale_by_ggt(window=3))",
     ValueError,
     "migrate_state: buffer.b has shape (3, 4), but buffer.b of the old state has (2, 4). To "
     "begin it anew, pass match={'buffer.b': None}."),
    ("_migrate(ADAM, ADAM, match={'count': 'mu.b'})",
     ValueError, "count has shape (), but mu.b of the old state has (4,)."),
    ("_migrate(scale_by_nadam(), scale_by_nadam(), match={'count': 'mu_product'})",
     TypeError, "count has dtype int32, but mu_product of the old state has float32."),
    ("_migrate(ADAM, TWO, match={'2': '0'})",
     ValueError, "migrate_state: match names '2', but the new state does not have an array there."),
    ("_migrate(TWO, TWO, match={'0.mu': '0.mv'})", ValueError,
     "match names '0.mv', but the old state does not have an array there. Did you mean", "'0.mu'"),
    ("_migrate(ADAM, trace(0.9), match={'the root': 'the root'})", ValueError,
     "match says 'the root': 'the root', but the two do not have a name in common", "'trace.b'"),
    ("_migrate(ADAM, ADAM, match=['mu'])", TypeError, "match must be a dict", "['mu']"),
    ("_migrate(ADAM, ADAM, match={0: '1'})", TypeError, "match must be a dict", "0: '1'"),
    ("_migrate(sgd(0.1), sgd(FALLING))",
     ValueError,
     "migrate_state: the new state has a count at 1.count, and the old state does not count its "
     "steps; pass step=, the number of steps that the run has taken"),
    ("_migrate(ADAM, ADAM, step=-1)", ValueError, "step must be a whole number", "-1"),
    # counts are int32, and 2**40 would begin a schedule at 0
    *((f"_migrate(ADAM, ADAM, step={step})", ValueError,
       "migrate_state: step must be an integer of 32 bits, at most 2**31 - 1", words)
      for step, words in (
          ("2**40", "1099511627776"), ("2**31", "2147483648"), ("np.int64(2**40)", "1099511627776"),
          ("np.asarray(2**40)", "1099511627776"))),
    ("_migrate(ADAM, ADAM, step=1.5)", ValueError, "step must be a whole number", "1.5"),
    ("_migrate(ADAM, ADAM, step=True)", ValueError, "step must be a whole number", "True"),
    ("_migrate(UNLIKE, ADAM)",
     ValueError,
     "migrate_state: cannot tell whether the root (ScaleByAdamState) is of scale_by_adam or of ",
     ", whose slots mean something else.", "Give gradxform's transform for the same call"),
]  # fmt: skip
