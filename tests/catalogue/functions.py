"""What the functions refuse that are not transforms."""

import jax.numpy as jnp

import gradxform as gx
import gradxform.losses

EXAMPLES = {"w": jnp.ones((3, 2)), "b": jnp.ones((3,))}

REFUSED = [
    (lambda: gx.safe_norm(jnp.ones(2), 0.0, ord=0), ValueError, ("safe_norm: ord", "got 0")),
    (
        lambda: gx.power_iteration(jnp.ones((2, 3))),
        ValueError,
        ("power_iteration: matrix must be square", "(2, 3)"),
    ),
    (lambda: gx.power_iteration(lambda v: v), ValueError, ("power_iteration: v0",)),
    (
        lambda: gx.power_iteration(jnp.eye(2), v0=jnp.ones(3)),
        ValueError,
        ("power_iteration: v0 must have shape (2,), got (3,).",),
    ),
    (
        lambda: gx.matrix_inverse_pth_root(jnp.eye(2), 0),
        ValueError,
        ("matrix_inverse_pth_root: p must be an integer of at least 1, got 0.",),
    ),
    (lambda: gx.matrix_inverse_pth_root(jnp.eye(2), 0.5), ValueError, ("p must be", "0.5")),
    (lambda: gx.matrix_inverse_pth_root(jnp.ones(3), 2), ValueError, ("square", "(3,)")),
    (
        lambda: gx.nnls(jnp.ones((2, 3)), jnp.ones(3), 5),
        ValueError,
        ("nnls: A must have shape (M, N)", "(2, 3)", "(3,)"),
    ),
    (lambda: gx.nnls(jnp.ones((2, 3)), jnp.ones(2), -1), ValueError, ("nnls: iters", "got -1")),
    (
        lambda: gx.multi_normal(jnp.ones(2), jnp.ones(3)),
        ValueError,
        ("multi_normal: loc of shape (2,) and log_scale of shape (3,)",),
    ),
    (lambda: gx.multi_normal(1j, 0.0), TypeError, ("multi_normal: loc must be real",)),
    (
        lambda: gx.value_and_grad_from_state(jnp.sum)(jnp.ones(2), state=gx.EmptyState()),
        ValueError,
        ("value_and_grad_from_state: state", "0 fields named 'value'", "store_grad=True"),
    ),
    (
        lambda: gx.unitwise_norm(jnp.ones((2,) * 6)),
        ValueError,
        ("unitwise_norm: no default unit", "axis="),
    ),
    (
        lambda: gx.unitwise_clip(jnp.ones(2), jnp.ones(()), jnp.ones(2)),
        ValueError,
        ("unitwise_clip: g_norm, max_norm and grad", "(2,), () and (2,)"),
    ),
    (
        lambda: gx.per_example_global_norm_clip(EXAMPLES, -1.0),
        ValueError,
        ("per_example_global_norm_clip: l2_norm_clip must be at least 0, got -1.0.",),
    ),
    (
        lambda: gx.per_example_global_norm_clip({"s": jnp.ones(())}, 1.0),
        ValueError,
        ("per_example_global_norm_clip: gradient of ['s']", "leading axis of examples"),
    ),
    (
        lambda: gx.per_example_layer_norm_clip(EXAMPLES | {"c": jnp.ones((4, 2))}, 1.0),
        ValueError,
        ("per_example_layer_norm_clip: gradient of ['c'] has 4 examples", "['b'] has 3"),
    ),
    (lambda: gx.hubber_loss, AttributeError, ("'gradxform'", "'hubber_loss'", "'huber_loss'")),
    (lambda: gradxform.losses.hubber_loss, AttributeError, ("optax.losses", "'huber_loss'")),
]
