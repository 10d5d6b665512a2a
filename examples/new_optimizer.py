"""A new optimizer in one file: its rule, a check, a race against Adam, and its config."""

import argparse
from typing import NamedTuple

from extras import require

require("sklearn")  # before they are imported
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import gradxform as gx
from gradxform import testing


class AgreementState(NamedTuple):
    mu: gx.Slot  # the average gradient m
    nu: gx.Slot  # the average square v


@gx.transform(name="example:scale_by_agreement")
class scale_by_agreement(gx.ArrayRule):
    """Step by u = r |r|, r = m / sqrt(v): as far as the last gradients of an entry agree."""

    b: float = 0.9

    State = AgreementState
    averages_of = (("mu", "g"), ("nu", "|g|^2"))

    def rule(self, g, m, v, p):
        m, v = self.b * m + (1 - self.b) * g, self.b * v + (1 - self.b) * g * g
        r = m / jnp.sqrt(jnp.where(v > 0, v, 1))
        return r * jnp.abs(r), m, v


def reference(g, slots, p, t):  # the rule in NumPy, to be checked against
    m, v = 0.9 * slots[0] + 0.1 * g, 0.9 * slots[1] + 0.1 * g**2
    return np.sign(m) * m**2 / v, (m, v)


def train(tx, steps=200):
    def loss(w):  # of a linear classifier of digits
        x, y = (jnp.asarray(data) for data in load_digits(return_X_y=True))
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x / 16 @ w), y[:, None], axis=1))

    step, state = gx.make_step(tx, loss), tx.init(w := jnp.zeros((64, 10)))
    for _ in range(steps):
        w, state, _ = step(w, state)
    return float(loss(w))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    print(testing.check(scale_by_agreement(), testing.Reference(testing.zeros(2), reference)))
    for lr in (0.01, 0.1, 1.0):  # of an optimizer that was saved, and is read back
        text = gx.to_json(gx.chain(scale_by_agreement(), gx.scale_by_learning_rate(lr)))
        print(f"rate {lr}: loss {train(gx.from_json(text)):.4f}, of adam {train(gx.adam(lr)):.4f}")
