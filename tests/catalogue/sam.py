"""Rows for `gradxform/wrappers/sam.py`."""

import jax

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

CLIMB = gx.chain(gx.normalize(), gx.sgd(0.2))
NORMALIZED = with_lr(0.2, ref.normalize_by_update_norm(1.0, 0.0))
STRETCHED = with_lr(0.3, ref.normalize_adaptively(0.1))


def quartic(params, i):
    """The gradient of a loss that depends on the step of the period."""
    return jax.tree.map(lambda p: p * p * p + (0.5 + i) * p, params)


def quartic_reference(ps, i):
    return [p**3 + (0.5 + i) * p for p in ps]


GRAD_FN = {"grad_fn": quartic}

WRAPPERS: dict[str, Case] = {
    "sam": Case(
        gx.sam(gx.adam(0.1), CLIMB),
        ref.sam(with_lr(0.1, ADAM), NORMALIZED, 2),
        rows=False,
    ),
    "sam/three, kept": Case(
        gx.sam(gx.adam(0.1), gx.adam(0.2), 3, reset_state=False),
        ref.sam(with_lr(0.1, ADAM), with_lr(0.2, ADAM), 3, reset=False),
        rows=False,
    ),
    "sam/opaque": Case(
        gx.sam(gx.adam(0.1), gx.adam(0.2), 3, opaque_mode=True),
        ref.sam_at_once(with_lr(0.1, ADAM), with_lr(0.2, ADAM), 3, quartic_reference),
        extra=GRAD_FN,
        rows=False,
    ),
    "sam/adaptive": Case(
        gx.asam(gx.adam(0.1), 0.3, 0.1),
        ref.sam(with_lr(0.1, ADAM), STRETCHED, 2),
        rows=False,
        huge_ok=1 / 8,  # it stretches gradients
    ),
}


OPAQUE = gx.sam(gx.sgd(0.1), CLIMB, opaque_mode=True)
REFUSED = [
    ("sam(sgd, CLIMB)", TypeError, "sam: optimizer is the function sgd", "call it"),
    ("sam(sgd(0.1), 0.05)", TypeError, "sam: adv_optimizer must have init and upd"),
    ("sam(sgd(0.1), CLIMB, 0)", ValueError, "sam: sync_period must be at least 1, got 0."),
    ("sam(sgd(0.1), CLIMB, batch_axis_name='data')",
     ValueError, "sam: batch_axis_name='data' does nothing without opaque_mode=True"),
    ("asam(sgd(0.1), -0.5)", ValueError, "asam: rho must be at least 0, got -0.5."),
    ("asam(sgd(0.1), eta=-0.5)",
     ValueError, "normalize_adaptively: eta must be at least 0, got -0.5."),
    ("one_step(OPAQUE)",
     TypeError, "sam: opaque_mode needs the extra argument 'grad_fn'", "got None"),
    ("one_step(OPAQUE, grad_fn=lambda p, i: (0.0, p))",
     ValueError, "sam: grad_fn must return the gradients alone", "jax.value_and_grad"),
    ("one_step(OPAQUE, grad_fn=lambda p, i: {'v': p['w']})",
     ValueError, "sam: the updates have a leaf ['w'], the gradients of grad_fn have none"),
    ("one_step(OPAQUE, grad_fn=lambda p, i: {'w': jnp.ones(3)})",
     ValueError, "sam: gradient of ['w'] has shape (2, 3)", "(3,)"),
    ("OPAQUE.update({'w': jnp.ones(2)}, sam(sgd(0.1), CLIMB).init({'w': jnp.ones(2)}), {'w': "
     "jnp.ones(2)})",
     ValueError,
     "sam: the state was made with opaque_mode=False, this transform has opaque_mode=True"),
    ("sam(sgd(0.1), CLIMB).update({'w': jnp.ones(2)}, EmptyState())",
     ValueError, "sam: needs the parameters"),
    ("one_step(sam(sgd(0.1), CLIMB, opaque_mode=True, batch_axis_name='data'), grad_fn=lambda p, "
     "i: p)",
     NameError, "sam: the axis 'data' is not bound here."),
    ("one_step(asam(sgd(0.1)), COMPLEX)", TypeError, "normalize_adaptively", "comp"),
]  # fmt: skip
