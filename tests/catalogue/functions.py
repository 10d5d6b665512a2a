"""What the functions refuse that are not transforms."""

import jax.numpy as jnp

EXAMPLES = {"w": jnp.ones((3, 2)), "b": jnp.ones((3,))}

REFUSED = [
    ("safe_norm(jnp.ones(2), 0.0, ord=0)", ValueError, "safe_norm: ord", "got 0"),
    ("power_iteration(jnp.ones((2, 3)))",
     ValueError, "power_iteration: matrix must be square", "(2, 3)"),
    ("power_iteration(lambda v: v)", ValueError, "power_iteration: v0"),
    ("power_iteration(jnp.eye(2), v0=jnp.ones(3))",
     ValueError, "power_iteration: v0 must have shape (2,), got (3,)."),
    ("matrix_inverse_pth_root(jnp.eye(2), 0)",
     ValueError, "matrix_inverse_pth_root: p must be an integer of at least 1, got 0."),
    ("matrix_inverse_pth_root(jnp.eye(2), 0.5)", ValueError, "p must be", "0.5"),
    ("matrix_inverse_pth_root(jnp.ones(3), 2)", ValueError, "square", "(3,)"),
    ("nnls(jnp.ones((2, 3)), jnp.ones(3), 5)",
     ValueError, "nnls: A must have shape (M, N)", "(2, 3)", "(3,)"),
    ("nnls(jnp.ones((2, 3)), jnp.ones(2), -1)", ValueError, "nnls: iters", "got -1"),
    ("multi_normal(jnp.ones(2), jnp.ones(3))",
     ValueError, "multi_normal: loc of shape (2,) and log_scale of shape (3,)"),
    ("multi_normal(1j, 0.0)", TypeError, "multi_normal: loc must be real"),
    ("value_and_grad_from_state(jnp.sum)(jnp.ones(2), state=EmptyState())",
     ValueError, "value_and_grad_from_state: state", "0 fields named 'value'", "store_grad=True"),
    ("unitwise_norm(jnp.ones((2,) * 6))", ValueError, "unitwise_norm: no default unit", "axis="),
    ("unitwise_clip(jnp.ones(2), jnp.ones(()), jnp.ones(2))",
     ValueError, "unitwise_clip: g_norm, max_norm and grad", "(2,), () and (2,)"),
    ("per_example_global_norm_clip(EXAMPLES, -1.0)",
     ValueError, "per_example_global_norm_clip: l2_norm_clip must be at least 0, got -1.0."),
    ("per_example_global_norm_clip({'s': jnp.ones(())}, 1.0)",
     ValueError, "per_example_global_norm_clip: gradient of ['s']", "leading axis of examples"),
    ("per_example_layer_norm_clip(EXAMPLES | {'c': jnp.ones((4, 2))}, 1.0)",
     ValueError, "per_example_layer_norm_clip: gradient of ['c'] has 4 examples", "['b'] has 3"),
    ("gx.hubber_loss", AttributeError, "'gradxform'", "'hubber_loss'", "'huber_loss'"),
    ("gx.losses.hubber_loss", AttributeError, "optax.losses", "'huber_loss'"),
]  # fmt: skip
