"""The units of `adaptive_grad_clip`, for every kind of kernel, as in the paper.

Brock et al., 2021, section 4: one row of a linear layer's matrix, the fan-in of one output; of a
convolution all that feeds one output channel. Kernels here, and in Flax, have the outputs last.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

CLIPPING, EPS = 0.1, 1e-3
# No two lengths of a kernel are equal, so that no axis can be taken for another.
KERNELS = {
    "linear": ((3, 4), (0,)),
    "sequences of linear": ((2, 3, 4), (0,)),
    "conv 2d, HWIO": ((2, 3, 4, 5), (0, 1, 2)),
    "conv 3d, DHWIO": ((2, 3, 4, 5, 6), (0, 1, 2, 3)),
    "vector": ((4,), (0,)),
    "vector in 4-d": ((1, 1, 4, 1), (0, 1, 2, 3)),
    "vector in 5-d": ((1, 1, 1, 1, 4), (0, 1, 2, 3, 4)),
    "conv 1x1": ((1, 1, 4, 5), (0, 1, 2)),
    "conv of one channel": ((2, 3, 1, 5), (0, 1, 2)),
    "conv to one channel": ((2, 3, 4, 1), (0, 1, 2)),
    "conv 3d, 1x1x1": ((1, 1, 1, 5, 6), (0, 1, 2, 3)),
}


def of_kernel(shape, seed):
    """Entries whose sizes differ along every axis, by factors of up to ten thousand."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    for axis, n in enumerate(shape):
        x *= 10.0 ** rng.permutation(np.linspace(-1, 1, n)).reshape(
            [-1] + [1] * (len(shape) - axis - 1)
        )
    return x.astype(np.float32)


def norms(x, axes):
    """The norm over some axes, entry by entry: no reduction that could take another axis."""
    squares = {}
    for index in np.ndindex(x.shape):
        unit = tuple(i for axis, i in enumerate(index) if axis not in axes)
        squares[unit] = squares.get(unit, 0.0) + float(x[index]) ** 2
    found = np.empty(x.shape)
    for index in np.ndindex(x.shape):
        unit = tuple(i for axis, i in enumerate(index) if axis not in axes)
        found[index] = np.sqrt(squares[unit])
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_unit_of_a_kernel_is_the_weights_of_one_output(kernel):
    shape, axes = KERNELS[kernel]
    p, g = of_kernel(shape, 1), of_kernel(shape, 2)
    limit = CLIPPING * np.maximum(norms(p, axes), EPS)
    size = norms(g, axes)
    g = np.where(np.arange(shape[-1]) % 2, g, 0.5 * limit / size * g).astype(np.float32)
    size = norms(g, axes)  # of every other output below its limit, so that it stays as it is
    wanted = np.where(size > limit, limit / size * g, g)
    tx, theirs = gx.adaptive_grad_clip(CLIPPING, EPS), optax.adaptive_grad_clip(CLIPPING, EPS)
    params, grads = {"w": jnp.asarray(p)}, {"w": jnp.asarray(g)}
    found = tx.update(grads, tx.init(params), params)[0]["w"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    same = jax.jit(theirs.update)(grads, theirs.init(params), params)[0]["w"]
    np.testing.assert_allclose(found, same, rtol=1e-5)
    np.testing.assert_allclose(norms(np.asarray(found), axes), np.minimum(size, limit), rtol=1e-5)
    said = gx.adaptive_grad_clip(CLIPPING, EPS, axis=axes)
    np.testing.assert_array_equal(said.update(grads, said.init(params), params)[0]["w"], found)


@pytest.mark.parametrize("kernel", ["conv 2d, HWIO", "conv 3d, DHWIO"])
def test_every_other_choice_of_axes_gives_other_numbers(kernel):
    """Other axes would fail the test above."""
    shape, axes = KERNELS[kernel]
    params, grads = jnp.asarray(of_kernel(shape, 1)), jnp.asarray(of_kernel(shape, 2))

    def clipped(axis):
        tx = gx.adaptive_grad_clip(CLIPPING, EPS, axis=axis)
        return tx.update(grads, tx.init(params), params)[0]

    right = clipped(axes)
    for chosen in range(2 ** len(shape)):
        other = tuple(a for a in range(len(shape)) if chosen & 2**a)
        if other != axes:
            assert not np.allclose(clipped(other), right, rtol=1e-2), other
