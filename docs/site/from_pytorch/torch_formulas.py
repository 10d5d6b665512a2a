"""What `torch.optim` computes, in NumPy float64, for configurations that were not recorded.

Each is a function of the first parameters and the list of gradients that returns the parameters
after each update, and has the switches of its class. Arrays are in PyTorch's layout.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Tree = dict[str, np.ndarray]
# The step of one array, from its parameter, its gradient, its slots and t = 1, 2, ...
Rule = Callable[[np.ndarray, np.ndarray, dict[str, Any], int], np.ndarray]


def steps_of(rule: Rule, params: Tree, grads: list[Tree]) -> list[Tree]:
    """Return the parameters after each update by a rule for one array."""
    slots, out = {leaf: {} for leaf in params}, []
    for t, gs in enumerate(grads, start=1):
        params = {leaf: rule(p, gs[leaf], slots[leaf], t) for leaf, p in params.items()}
        out.append(params)
    return out


def averaged(slots: dict[str, Any], name: str, decay: float, new: np.ndarray) -> np.ndarray:
    """Return the decaying average of `new`, from 0."""
    slots[name] = decay * slots.get(name, 0.0) + (1 - decay) * new
    return slots[name]


def decayed(
    p: np.ndarray, g: np.ndarray, lr: float, weight_decay: float, decoupled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameter and the gradient, of which one has the decay."""
    return (p * (1 - lr * weight_decay), g) if decoupled else (p, g + weight_decay * p)


def sgd(
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> Any:
    """Return the formula of `SGD`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        g = (-g if maximize else g) + weight_decay * p
        if momentum:
            b = g if t == 1 else momentum * slots["b"] + (1 - dampening) * g
            slots["b"] = b
            g = g + momentum * b if nesterov else b
        return p - lr * g

    return lambda params, grads: steps_of(rule, params, grads)


def adam(
    lr: float,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    amsgrad: bool = False,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Any:
    """Return the formula of `Adam` and, decoupled, of `AdamW`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        p, g = decayed(p, g, lr, weight_decay, decoupled_weight_decay)
        m, v = averaged(slots, "m", b1, g), averaged(slots, "v", b2, g * g)
        if amsgrad:
            v = slots["max"] = np.maximum(slots.get("max", 0.0), v)
        return p - lr * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)

    return lambda params, grads: steps_of(rule, params, grads)


def nadam(
    lr: float,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    momentum_decay: float = 0.004,
) -> Any:
    """Return the formula of `NAdam`."""

    def mu(t: int) -> float:
        return b1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        p, g = decayed(p, g, lr, weight_decay, decoupled_weight_decay)
        m, v = averaged(slots, "m", b1, g), averaged(slots, "v", b2, g * g)
        product = np.prod([mu(k) for k in range(1, t + 1)])
        u = (1 - mu(t)) / (1 - product) * g + mu(t + 1) / (1 - product * mu(t + 1)) * m
        return p - lr * u / (np.sqrt(v / (1 - b2**t)) + eps)

    return lambda params, grads: steps_of(rule, params, grads)


def radam(
    lr: float,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> Any:
    """Return the formula of `RAdam`."""
    longest = 2 / (1 - b2) - 1

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        p, g = decayed(p, g, lr, weight_decay, decoupled_weight_decay)
        m, v = averaged(slots, "m", b1, g), averaged(slots, "v", b2, g * g)
        length = longest - 2 * t * b2**t / (1 - b2**t)
        if length <= 5:
            return p - lr * m / (1 - b1**t)
        top = (length - 4) * (length - 2) * longest
        rectified = np.sqrt(top / ((longest - 4) * (longest - 2) * length))
        return p - lr * m / (1 - b1**t) * rectified * np.sqrt(1 - b2**t) / (np.sqrt(v) + eps)

    return lambda params, grads: steps_of(rule, params, grads)


def adagrad(
    lr: float,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
) -> Any:
    """Return the formula of `Adagrad`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        g = g + weight_decay * p
        slots["sum"] = slots.get("sum", initial_accumulator_value) + g * g
        return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(slots["sum"]) + eps)

    return lambda params, grads: steps_of(rule, params, grads)


def rmsprop(
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> Any:
    """Return the formula of `RMSprop`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        g = g + weight_decay * p
        v = averaged(slots, "v", alpha, g * g)
        if centered:
            v = v - averaged(slots, "mean", alpha, g) ** 2
        u = g / (np.sqrt(v) + eps)
        if momentum:
            u = slots["b"] = momentum * slots.get("b", 0.0) + u
        return p - lr * u

    return lambda params, grads: steps_of(rule, params, grads)


def adamax(
    lr: float, weight_decay: float = 0.0, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Any:
    """Return the formula of `Adamax`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        g = g + weight_decay * p
        m = averaged(slots, "m", b1, g)
        slots["u"] = np.maximum(b2 * slots.get("u", 0.0), np.abs(g) + eps)
        return p - lr / (1 - b1**t) * m / slots["u"]

    return lambda params, grads: steps_of(rule, params, grads)


def adadelta(lr: float, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0) -> Any:
    """Return the formula of `Adadelta`."""

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        g = g + weight_decay * p
        v = averaged(slots, "v", rho, g * g)
        u = np.sqrt(slots.get("d", 0.0) + eps) / np.sqrt(v + eps) * g
        averaged(slots, "d", rho, u * u)
        return p - lr * u

    return lambda params, grads: steps_of(rule, params, grads)


def muon(
    lr: float,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    adjust_lr_fn: str = "original",
    eps: float = 1e-7,
) -> Any:
    """Return the formula of `Muon`, for matrices; other arrays stay where they are."""

    def orthogonalized(x: np.ndarray) -> np.ndarray:
        x = x.T if x.shape[0] > x.shape[1] else x
        x = x / max(np.linalg.norm(x), eps)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        return x

    def rule(p: np.ndarray, g: np.ndarray, slots: dict[str, Any], t: int) -> np.ndarray:
        if p.ndim != 2:
            return p
        b = averaged(slots, "b", momentum, g)
        u = orthogonalized((1 - momentum) * g + momentum * b if nesterov else b)
        rows, columns = p.shape
        factor = (
            0.2 * max(p.shape) ** 0.5
            if adjust_lr_fn == "match_rms_adamw"
            else max(1, rows / columns) ** 0.5
        )
        return p * (1 - lr * weight_decay) - lr * factor * (u.T if u.shape != p.shape else u)

    return lambda params, grads: steps_of(rule, params, grads)


OF_CLASS = {
    "SGD": sgd,
    "Adam": adam,
    "AdamW": functools.partial(adam, weight_decay=1e-2, decoupled_weight_decay=True),
    "NAdam": nadam,
    "RAdam": radam,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adamax": adamax,
    "Adadelta": functools.partial(adadelta, lr=1.0),
    "Muon": muon,
}
