"""Optimizers with small states, and those that meet spikes, beside their forms in PyTorch."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from docs.site.from_pytorch.row import Row
from gradxform.transforms import apollo
from tests.interop.recordings import Recording, by_gradient, turned


def in_their_layout(
    tx: Any, state: Any, params: Any, recorded: Recording, t: int
) -> tuple[Any, Any]:
    """Take a step whose kernels have the axes OIHW, for rules of the last two axes."""
    theirs = {leaf: turned(x, back=True) for leaf, x in params.items()}
    state = tx.init(theirs) if t == 0 else state
    grads = {leaf: recorded.arrays[f"grad/{leaf}"][t] for leaf in params}
    updates, state = tx.update(grads, state, theirs)
    new = gx.apply_updates(theirs, updates)
    return {leaf: turned(x) for leaf, x in new.items()}, state


def with_their_draws(
    tx: Any, state: Any, params: Any, recorded: Recording, t: int
) -> tuple[Any, Any]:
    """Take a step with the projection that was drawn, whose limit forgets a step of zeros."""
    drawn = recorded.arrays["aux/draws"][12:].reshape(2, 4)  # after 12 that are not used
    with (
        jax.disable_jit(),
        mock.patch.object(apollo, "_apollo_normal", lambda key, shape, dtype: jnp.asarray(drawn)),
    ):
        params, state = by_gradient(tx, state, params, recorded, t)
    return params, forgot_zeros(state, recorded, t)


def forgetting(tx: Any, state: Any, params: Any, recorded: Recording, t: int) -> tuple[Any, Any]:
    """Take a step; the limit of growth forgets a step of zeros."""
    params, state = by_gradient(tx, state, params, recorded, t)
    return params, forgot_zeros(state, recorded, t)


def forgot_zeros(state: Any, recorded: Recording, t: int) -> Any:
    """Return a state whose last norms are those of a step of zeros, if this was one."""
    if np.any(recorded.arrays["grad/vector"][t]):
        return state
    last = gx.tree.get(state, "last_norm")
    return gx.tree.set(state, last_norm=jax.tree.map(lambda x: jnp.full_like(x, 1e-99), last))


def passing_over_zeros(
    tx: Any, state: Any, params: Any, recorded: Recording, t: int
) -> tuple[Any, Any]:
    """Take a step; a gradient of zeros changes nothing but counts and the largest entries."""
    new, after = by_gradient(tx, state, params, recorded, t)
    if np.any(recorded.arrays["grad/vector"][t]):
        return new, after
    kept = {name: gx.tree.get(state, name) for name in ("norm", "norm_sq", "mu", "nu")}
    return params, gx.tree.set(after, **kept)


ROWS = [
    Row(
        theirs="AdamMini(lr, num_embeds=d, num_heads=h)",
        ours="gx.adam_mini(lr, weight_decay=0.1, mask=mask, blocks=blocks)",
        difference=1e-12,
        recorded="AdamMini",
        names={
            "mask": {"matrix": True, "vector": False, "kernel": True, "scalar": True},
            "blocks": gx.label_by(
                (gx.moment_blocks(None), gx.path_matches("matrix")), (gx.moment_blocks(()), True)
            ),
        },
        notes="Blocks there follow from the names of PyTorch's modules, here from shapes, unless "
        "`blocks` says otherwise: `gx.moment_blocks(-1, d // h)` for queries and keys, "
        "`gx.moment_blocks(None)` for embeddings, `gx.moment_blocks(())` for the rest.",
    ),
    Row(
        theirs="CAME(lr)",
        ours="gx.came(lr)",
        difference=1e-12,
        recorded="CAME",
        step=in_their_layout,
        notes="Both factor the last two axes. Those of a kernel are its height and width in "
        "PyTorch, and its inputs and outputs here, which takes less memory. `ams_bound` is not "
        "here.",
    ),
    Row(
        theirs='APOLLO([{"params": matrices, "rank": 2, ...}, others], lr)',
        ours="gx.apollo(lr, 2, granularity='tensor', low_rank=True)",
        difference=1e-12,
        recorded="APOLLO",
        step=with_their_draws,
        notes="Without `low_rank` the whole gradient is scaled, as in the paper. `scale` here is "
        "`scale` ** 1.5 there, `scale_type` is `granularity`, and the decay, which follows the "
        "step, has the rate with Adam's corrections. One gradient of zeros stops a matrix there "
        "for good.",
    ),
    Row(
        theirs="SGDSaI(lr)",
        ours="gx.sgd_sai(lr)",
        difference=1e-12,
        recorded="SGDSaI",
        notes="Without `weight_decouple`, a decay does nothing there, if there is a momentum.",
    ),
    Row(
        theirs="RACS(lr)",
        ours="gx.racs(lr, iterations=0)",
        difference=1e-12,
        recorded="RACS",
        step=forgetting,
        notes="The default is the paper's fixed point, of which the step there takes means. One "
        "gradient of zeros all but stops an array there for good.",
    ),
    Row(
        theirs="SPAM(lr)",
        ours="gx.spam(lr)",
        difference=1e-12,
        recorded="SPAM",
    ),
    Row(
        theirs="StableSPAM(lr)",
        ours="gx.stable_spam(lr)",
        difference=1e-12,
        recorded="StableSPAM",
        step=passing_over_zeros,
        notes="An array whose gradient is all zeros does not move there, and its averages but that "
        "of the largest entries stay. `t_max` is not here.",
    ),
    Row(
        theirs="Adalite(lr)",
        ours="gx.adalite(lr)",
        difference=1e-12,
        recorded="Adalite",
    ),
]
