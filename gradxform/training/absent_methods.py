"""What takes the place of methods that optimizers of TensorFlow and Keras have and a holder lacks.

They are of variables, graphs and sessions, of which there are none here. `docs/doors.md` has the
same table.
"""

_VARIABLES = "arrays are values here, not variables: set opt.state, or write a slot with set_slots"
_SLOTS = "a rule names its slots in its State, and init makes them; see ArrayRule"
_SCALE = "metrics(opt.state)['loss_scale'] is the scale"
_FINITE_STEPS = "metrics(opt.state)['finite_steps'] is the count"
_REPLICAS = "replicas of one program neither queue nor wait; leave it out"

# By the name of the method or attribute; messages begin with "here, ".
INSTEAD = {
    # Keras 3.
    "apply": "apply_gradients(grads, params) returns the new parameters",
    "stateless_apply": "tx.update(grads, state, params) is stateless, and apply_updates adds to it",
    "build": "the first parameters that come make the state, or Optimizer(tx, params)",
    "built": "opt.state is None before the first parameters",
    "assign": _VARIABLES,
    "assign_add": _VARIABLES,
    "assign_sub": _VARIABLES,
    "add_variable": _SLOTS,
    "add_variable_from_reference": _SLOTS,
    "add_optimizer_variables": _SLOTS,
    "update_step": "the step of one array is the rule of an ArrayRule",
    "exclude_from_weight_decay": (
        "give these parameters an optimizer without a decay, with MultiOptimizer or partition; "
        "recipes such as adamw take weight_decay_mask"
    ),
    "finalize_variable_values": "eval_params(opt.state, params) returns the average",
    "from_config": "compat.keras.get(config) returns the transform; put it in an Optimizer",
    "load_own_variables": "set_weights(weights) takes what get_weights() returned",
    "save_own_variables": "get_weights() returns the arrays",
    "scale_loss": (
        "minimize and make_step scale the loss of a loss_scale, and scaled_loss(loss, opt.state) "
        "does by hand; a loss_scale_factor is a number to multiply by"
    ),
    # Keras 2.11 to 2.15.
    "jit_compile": "minimize and the steps of make_step are always compiled",
    "aggregate_gradients": "tower around the optimizer averages over replicas",
    # TensorFlow 2.8 and before.
    "get_updates": "minimize(loss_fn, params) takes the step",
    "add_weight": _SLOTS,
    "add_slot": _SLOTS,
    "inner_optimizer": "opt.tx.inner is the transform inside",
    "get_scaled_loss": "scaled_loss(loss, opt.state) scales by hand; minimize does it by itself",
    "get_unscaled_gradients": "the update divides the gradients by the scale",
    "loss_scale": _SCALE,
    "dynamic_scale": _SCALE,
    "dynamic_counter": _FINITE_STEPS,
    "step_counter": _FINITE_STEPS,
    # TensorFlow 1 and its contrib.
    "swapping_saver": "save what swap(opt.state, params) returns",
    "get_chief_queue_runner": _REPLICAS,
    "get_init_tokens_op": _REPLICAS,
    "get_init_op": _REPLICAS,
    "make_session_run_hook": _REPLICAS,
}
