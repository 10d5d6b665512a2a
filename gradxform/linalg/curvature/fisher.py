"""Products with the Fisher matrix of a model, exactly or from sampled labels."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax.numpy as jnp

from gradxform._jax.versions import varying_like
from gradxform.errors import name_of
from gradxform.linalg.curvature.curvature import Product, Seen, check_function
from gradxform.linalg.curvature.likelihoods import count_of, kind_of, likelihood as Likelihood
from gradxform.linalg.curvature.products import linearized_model
from gradxform.types import Array, Params, PyTree
from gradxform.values.fields import value


@value
class fisher_product(Product):
    """Products with the Fisher matrix of a model, the metric of the natural gradient.

        F v = mean over the n labels of J^T E[s s^T] J v

    with J the derivative of a label's outputs by the parameters, and s the slope of its
    log-likelihood by the outputs. The mean E is over the labels that the model itself expects, so
    the labels of the data do not matter. F is positive semidefinite, and the Gauss-Newton matrix of
    the mean negative log-likelihood.

    With `sampled`, one label is drawn for each and s s^T is in the place of its mean: right on
    average, and all that a distribution other than the named ones has.

    Args:
      model: `model(params, **extra)`, the outputs, one array; it gets the extra arguments that it
        names.
      likelihood: the distribution of the labels: "categorical" (logits along the last axis),
        "normal" (the mean, with variance 1), "bernoulli" (logits), "poisson" (logarithms of rates),
        or a `likelihood`. All axes but those of one label count labels.
      sampled: whether labels are drawn, which needs a key.
      batch_axis_name: as in `hessian_product`. Keyword-only.

    Raises:
      TypeError: if a field is of a wrong kind; when called, as `at`, or if the outputs are not one
        floating array.
      ValueError: for another name of a distribution, or one of your own without `sampled`.

    Reference: Martens, New Insights and Perspectives on the Natural Gradient Method, 2020, sections
    5 and 9.2; Kunstner et al., Limitations of the empirical Fisher approximation, 2019.
    """

    model: Any
    likelihood: Any
    sampled: bool = False
    batch_axis_name: str | None = field(default=None, kw_only=True)

    functions = ("model",)
    draws_labels = True

    def __post_init__(self) -> None:
        check_function(self, "model", "the outputs of the parameters")
        kind_of(self, self.likelihood)
        if isinstance(self.likelihood, Likelihood) and not self.sampled:
            raise ValueError(
                f"{name_of(self)}: the exact Fisher matrix is known for the named distributions "
                "only; give sampled=True with one of your own."
            )

    @property
    def draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether labels are drawn."""
        return self.sampled

    def linear(
        self, seen: Seen, params: Params, key: Array | None, extra: Mapping[str, Any]
    ) -> Callable[[PyTree], PyTree]:
        """Return the product with the Fisher matrix."""
        model, place = self.of_params("model", self.model, seen, params, extra)
        z, forward, backward = linearized_model(self, model, place)
        kind = kind_of(self, self.likelihood)
        n = count_of(self, kind, z)
        if self.sampled:
            assert key is not None
            s = kind.score(z, kind.draw(self.key_here(key), z))
            axes = tuple(range(z.ndim - kind.axes, z.ndim))

            def of_outputs(t: Array) -> Array:
                return s * jnp.sum(s * t, axis=axes, keepdims=True)

        else:

            def of_outputs(t: Array) -> Array:
                assert kind.fisher is not None
                return kind.fisher(z, t)

        return lambda v: self.averaged(backward(of_outputs(forward(varying_like(v, place))) / n))
