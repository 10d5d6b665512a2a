"""Bases of rules that decide by one number, from a sum over all updates, what becomes of all."""

import jax.numpy as jnp

from gradxform.base import ArrayRule


class Together(ArrayRule):
    """Base of rules whose `prepare` needs sums over the tree, and whose `rule` sees one entry."""

    locality = "tree"
    rule_locality = "entry"
    asks_for_sums = True
    handles_complex = True


class ScaledTogether(Together):
    """Base of rules whose `prepare` returns the state and a factor of all updates."""

    def rule(self, g, p, factor):
        """Return the scaled update."""
        return factor * g


class KeptTogether(Together):
    """Base of rules whose `prepare` returns the state and whether all updates are kept."""

    def rule(self, g, p, keep):
        """Return the update or zeros."""
        return jnp.where(keep, g, jnp.zeros_like(g))
