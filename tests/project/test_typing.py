"""The file that `make lint` checks as a user's runs, too."""

import gradxform as gx
from tests.typing import user_code


def test_what_the_checker_accepts_of_a_user_runs():
    losses = user_code.train()
    assert losses == sorted(losses, reverse=True)
    assert user_code.train_flax(gx.adamw(1e-3)) > 0
    assert isinstance(user_code.adamw, gx.GradientTransformation)
    assert not isinstance(user_code.by_functions, gx.GradientTransformationExtraArgs)
