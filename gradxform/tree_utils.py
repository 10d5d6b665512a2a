"""The names of `optax.tree_utils`, for the functions of `gradxform.tree`.

In new code write `tree.add` instead of `tree_utils.tree_add`.
"""

import math

from gradxform import tree
from gradxform.tree import NamedTupleKey as NamedTupleKey
from gradxform.types import Array, PyTree

tree_add = tree.add
tree_add_scalar_mul = tree.add_scale
tree_add_scale = tree.add_scale
tree_allclose = tree.allclose
tree_batch_shape = tree.batch_shape
tree_bias_correction = tree.bias_correction
tree_cast = tree.cast
tree_cast_like = tree.cast_like
tree_clip = tree.clip
tree_conj = tree.conj
tree_div = tree.div
tree_dtype = tree.dtype
tree_full_like = tree.full_like
tree_get = tree.get
tree_get_all_with_path = tree.get_all_with_path
tree_map_params = tree.map_params
tree_max = tree.max
tree_min = tree.min
tree_mul = tree.mul
tree_norm = tree.norm
tree_ones_like = tree.ones_like
tree_random_like = tree.random_like
tree_real = tree.real
tree_scalar_mul = tree.scale
tree_scale = tree.scale
tree_set = tree.set
tree_size = tree.size
tree_split_key_like = tree.split_key_like
tree_sub = tree.sub
tree_sum = tree.sum
tree_unwrap_random_key_data = tree.unwrap_random_key_data
tree_update_infinity_moment = tree.update_infinity_moment
tree_update_moment = tree.update_moment
tree_update_moment_per_elem_norm = tree.update_moment_per_elem_norm
tree_vdot = tree.vdot
tree_where = tree.where
tree_zeros_like = tree.zeros_like


def tree_l1_norm(tree_x: PyTree) -> Array:
    """Return the sum of |x| over all entries: `tree.norm(tree_x, ord=1)`."""
    return tree.norm(tree_x, ord=1)


def tree_l2_norm(tree_x: PyTree, squared: bool = False) -> Array:
    """Return the Euclidean norm of all entries: `tree.norm(tree_x, squared=squared)`."""
    return tree.norm(tree_x, squared=squared)


def tree_linf_norm(tree_x: PyTree) -> Array:
    """Return the largest |x| of all entries: `tree.norm(tree_x, ord=math.inf)`."""
    return tree.norm(tree_x, ord=math.inf)
