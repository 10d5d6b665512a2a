"""Rows of the optimizers of `torch.optim`."""

from docs.site.from_pytorch.row import Row
from tests.interop.recordings import rows

L2 = "L2: the decay is part of the gradient"


ROWS = [
    Row("SGD(lr)", "gx.sgd(lr)", 1e-12, "torch.SGD"),
    Row("SGD(lr, momentum=0.9)", "gx.sgd(lr, momentum=0.9)", 1e-12, "torch.SGDm"),
    Row(
        "SGD(lr, momentum=0.9, nesterov=True)",
        "gx.sgd(lr, momentum=0.9, nesterov=True)",
        1e-12,
    ),
    Row(
        "SGD(lr, momentum=0.9, dampening=d)",
        "gx.chain(gx.scale_by_schedule(gx.piecewise_constant_schedule(1.0, {1: 1 - d})), "
        "gx.sgd(lr, momentum=0.9))",
        1e-12,
        notes="PyTorch does not dampen the first gradient",
    ),
    Row(
        "SGD(lr, momentum=0.9, weight_decay=w)",
        "gx.chain(gx.add_decayed_weights(w), gx.sgd(lr, momentum=0.9))",
        1e-12,
        notes=f"{L2}; so for every class but AdamW, Adafactor and Muon",
    ),
    Row(
        "SGD(lr, maximize=True)",
        "gx.chain(gx.scale(-1.0), gx.sgd(lr))",
        1e-12,
        notes="so for every class",
    ),
    Row("Adam(lr)", "gx.adam(lr)", 1e-12, "torch.Adam"),
    Row(
        "Adam(lr, weight_decay=w)",
        "gx.chain(gx.add_decayed_weights(w), gx.adam(lr))",
        1e-11,
        notes=L2,
    ),
    Row(
        "Adam(lr, weight_decay=w, decoupled_weight_decay=True)",
        "gx.adamw(lr, weight_decay=w)",
        1e-11,
    ),
    Row(
        "Adam(lr, amsgrad=True)",
        "gx.amsgrad(lr, correct_after=True, eps_before_correction=False)",
        1e-11,
        notes="PyTorch corrects the bias after the maximum; Optax, and the default here, before it",
    ),
    Row(
        "AdamW(lr)",
        "gx.adamw(lr, weight_decay=1e-2)",
        1e-11,
        "torch.AdamW",
        "PyTorch's default decay is 1e-2, here 1e-4 as in Optax",
    ),
    Row(
        "AdamW(lr, amsgrad=True)",
        "gx.amsgrad(lr, correct_after=True, eps_before_correction=False, weight_decay=1e-2)",
        1e-11,
    ),
    Row(
        "NAdam(lr)",
        "gx.nadam(lr, schedule_decay=0.004)",
        1e-12,
        "torch.NAdam",
        "PyTorch calls it `momentum_decay`",
    ),
    Row(
        "NAdam(lr, weight_decay=w, decoupled_weight_decay=True)",
        "gx.decoupled_weight_decay(gx.nadam(lr, schedule_decay=0.004), w, learning_rate=lr)",
        1e-11,
    ),
    Row(
        "RAdam(lr)",
        "gx.radam(lr, eps_before_correction=True)",
        1e-11,
        "torch.RAdam",
        "without it, eps is added to the corrected root, as in Optax",
    ),
    Row(
        "RAdam(lr, weight_decay=w, decoupled_weight_decay=True)",
        "gx.radam(lr, eps_before_correction=True, weight_decay=w)",
        1e-11,
    ),
    Row("Adamax(lr)", "gx.adamax(lr)", 1e-12, "torch.Adamax"),
    Row(
        "Adamax(lr, weight_decay=w)",
        "gx.chain(gx.add_decayed_weights(w), gx.adamax(lr))",
        1e-11,
        notes=L2,
    ),
    Row(
        "Adagrad(lr)",
        "gx.adagrad(lr, initial_accumulator_value=0.0, eps=1e-10, eps_in_sqrt=False)",
        1e-12,
        "torch.Adagrad",
        "eps is outside the root in PyTorch",
    ),
    Row(
        "Adagrad(lr, lr_decay=d)",
        "gx.adagrad(gx.inverse_time_decay(lr, 1, d), initial_accumulator_value=0.0, eps=1e-10, "
        "eps_in_sqrt=False)",
        1e-12,
    ),
    Row(
        "Adadelta(lr)", "gx.adadelta(lr)", 1e-12, "torch.Adadelta", "PyTorch's default rate is 1.0"
    ),
    Row(
        "Adadelta(weight_decay=w)",
        "gx.chain(gx.add_decayed_weights(w), gx.adadelta(1.0))",
        1e-12,
        notes=L2,
    ),
    Row(
        "RMSprop(lr)",
        "gx.rmsprop(lr, decay=0.99, eps_in_sqrt=False)",
        1e-12,
        "torch.RMSprop",
        "PyTorch's `alpha` is 0.99, here 0.9",
    ),
    Row(
        "RMSprop(lr, centered=True, momentum=0.9)",
        "gx.rmsprop(lr, decay=0.99, eps_in_sqrt=False, centered=True, momentum=0.9)",
        1e-12,
    ),
    Row(
        "Rprop(lr)",
        "gx.rprop(lr, delayed=False)",
        1e-12,
        "torch.Rprop",
        "with `delayed`, Optax's form, the sizes of steps change one step later",
    ),
    Row(
        "Adafactor(lr)",
        "gx.adafactor(lr, min_dim_size_to_factor=0)",
        1e-12,
        "torch.Adafactor",
        "PyTorch factors every matrix, and kernels of convolutions over their places; here kernels "
        "are factored over their two longest axes, and are not compared. A rate above 1 / sqrt(t) "
        "is cut there: give a schedule. `eps[0]` is a lower bound there, and added here",
        leaves=("matrix", "vector", "scalar"),
    ),
    Row(
        "Adafactor(lr, weight_decay=w)",
        "gx.decoupled_weight_decay(gx.adafactor(lr, min_dim_size_to_factor=0), weight_decay, "
        "learning_rate=lr)",
        1e-11,
        "torch.Adafactor.w",
        "decoupled: the rate multiplies the decay, and the size of the parameter does not",
        leaves=("matrix", "vector", "scalar"),
    ),
    Row(
        "SparseAdam(lr)",
        "gx.lazy_adam(lr, eps_before_correction=True)",
        1e-12,
        "torch.SparseAdam",
        "with [row-sparse gradients](../sparse.md)",
        inputs=rows,
    ),
    Row(
        "ASGD(lr)",
        "gx.stochastic_weight_average(gx.chain(gx.add_decayed_weights(1e-4), "
        "gx.sgd(lambda n: lr / (1 + 1e-4 * lr * n) ** 0.75)), start=10**6)",
        1e-11,
        "torch.ASGD",
        "`gx.eval_params(state, params)` is PyTorch's average `ax`, of which `start` is `t0` + 2",
    ),
    Row(
        'ASGD(lr).state[p]["ax"]',
        "gx.stochastic_weight_average(gx.chain(gx.add_decayed_weights(1e-4), "
        "gx.sgd(lambda n: lr / (1 + 1e-4 * lr * n) ** 0.75)), start=10**6)",
        1e-11,
        "torch.ASGD",
        evaluated="aux/ax",
    ),
    Row(
        "Muon(lr)",
        "gx.muon(lr, debias=False, eps=0.0, weight_decay=0.1)",
        1e-11,
        "torch.Muon",
        "for the matrices; PyTorch's norm is at least 1e-7. Without `debias=False`, the look ahead "
        "has Adam's corrections, as in Optax",
    ),
    Row(
        'Muon(lr, adjust_lr_fn="match_rms_adamw", nesterov=False)',
        "gx.muon(lr, debias=False, eps=0.0, weight_decay=0.1, nesterov=False, consistent_rms=0.2)",
        1e-11,
        leaves=("matrix",),
    ),
    Row(
        "LBFGS()",
        "gx.lbfgs()",
        None,
        notes="the same directions, but PyTorch scales the first step by the sum of \\|g\\|, here "
        "by its norm, and its line search (`strong_wolfe`) tries other step sizes; see "
        "[Line search](../line_search.md)",
    ),
]
