"""Estimates of diagonals: Hutchinson's from products, Bartlett's from gradients."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.errors import must_be, require_at_least
from gradxform.leaves import dtype_of
from gradxform.linalg.curvature.curvature import Diagonal, Product, Seen, check_function
from gradxform.linalg.curvature.likelihoods import count_of, kind_of
from gradxform.linalg.curvature.products import check_outputs
from gradxform.types import Array, Params, Size
from gradxform.values.fields import value


def random_signs(ps: list[Any], key: Array) -> list[Array]:
    """Return arrays like some others with entries of -1 and 1, each with equal probability."""
    return engine.map_rows(_signs, [ps, list(jax.random.split(key, len(ps)))])


def _signs(p: Array, key: Array) -> Array:
    return jax.random.rademacher(key, jnp.shape(p), dtype_of(p))


@value
class hutchinson_diagonal(Diagonal):
    """Hutchinson's estimate of the diagonal of a matrix, from its products with random signs.

        D = mean of z (C z),   z drawn anew, each entry -1 or 1

    The mean over all z is the diagonal; where C is diagonal, D equals it. Entries may be negative,
    of a positive semidefinite matrix too. A draw costs a product, about two gradients.

    Args:
      product: the matrix, such as `hessian_product(loss)`.
      samples: how many z are drawn, one after the other, at least 1.

    Raises:
      TypeError: if `product` is not a product of this module.
      ValueError: if `samples` is less than 1.

    Reference: Hutchinson, A Stochastic Estimator of the Trace of the Influence Matrix, 1990; Bekas
    et al., An Estimator for the Diagonal of a Matrix, 2007, section 2.
    """

    product: Any
    samples: Size = 1

    def __post_init__(self) -> None:
        check_product(self, self.product)
        require_at_least(self, 1, "samples")

    @property
    def batch_axis_name(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The axis of the product."""
        return self.product.batch_axis_name

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments of the product."""
        return self.product.extra_names()

    def drawn(
        self, seen: Seen, params: Params, key: Array, extra: Mapping[str, Any]
    ) -> list[Array]:
        """Return the mean of some draws."""
        key, of_product = jax.random.split(key) if self.product.draws else (key, None)
        product = self.product.linear(seen, params, of_product, extra)
        ps, treedef = jax.tree.flatten(params)

        def draw(key: Array) -> list[Array]:
            z = random_signs(ps, key)
            cz = jax.tree.leaves(product(treedef.unflatten(z)))
            return [a * b for a, b in zip(z, cz, strict=True)]

        if self.samples == 1:
            return draw(key)
        every = lax.map(draw, jax.random.split(key, self.samples))
        return [jnp.mean(x, axis=0) for x in every]


@value
class bartlett_diagonal(Diagonal):
    """Bartlett's estimate of the diagonal of the Fisher matrix, from gradients of sampled labels.

        D = n g^2,   g the gradient of the mean log-likelihood of n labels that the model draws

    The mean over all draws is the diagonal of `fisher_product(model, likelihood)`, which is that of
    the Gauss-Newton matrix of the mean negative log-likelihood. It is never negative, and costs a
    gradient.

    Args:
      model: as in `fisher_product`.
      likelihood: as there.
      batch_axis_name: as in `hessian_product`. Keyword-only.

    Raises:
      TypeError: if a field is of a wrong kind; when called, if the outputs are not one floating
        array.
      ValueError: for another name of a distribution.

    Reference: Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, Algorithm 2; Bartlett, Approximate Confidence Intervals, 1953, for the
    identity.
    """

    model: Any
    likelihood: Any
    batch_axis_name: str | None = field(default=None, kw_only=True)

    functions = ("model",)
    draws_labels = True

    def __post_init__(self) -> None:
        check_function(self, "model", "the outputs of the parameters")
        kind_of(self, self.likelihood)

    def drawn(
        self, seen: Seen, params: Params, key: Array, extra: Mapping[str, Any]
    ) -> list[Array]:
        """Return n times the squares of a gradient."""
        model, place = self.of_params("model", self.model, seen, params, extra)
        z, backward = jax.vjp(model, place)
        check_outputs(self, z)
        kind = kind_of(self, self.likelihood)
        n = count_of(self, kind, z)
        s = kind.score(z, kind.draw(self.key_here(key), z))
        gs = jax.tree.leaves(backward(s / n))
        return self.averaged([n * jnp.square(g) for g in gs])


def check_product(part: Any, product: Any, field: str = "product") -> None:
    """Require a field to hold a product."""
    if not isinstance(product, Product):
        rule = "a product of gradxform.curvature, such as hessian_product(loss)"
        raise TypeError(must_be(part, field, rule, product))
