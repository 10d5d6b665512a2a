"""Differentiable perturbed functions, as Optax has them.

The names are those of `optax.perturbations` in the installed Optax (see `gradxform.forwards`).
"""

from gradxform._names.optax import module_from_optax

__getattr__, __dir__ = module_from_optax(__name__)
