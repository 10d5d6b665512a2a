"""The optimizers of `train_pod.py`: what travels inside the slices of a pod, and between them."""

from typing import Any

import jax
from command_line import Refused, did_you_mean, one_line

import gradxform as gx
import gradxform.distributed as gd

BETWEEN, INSIDE = "dcn", "ici"  # the axes of slices, and of the devices of a slice
SKIPPED = 5  # steps in a row whose gradients are not finite, before the update is made all the same

METHODS = ("diloco", "tower")
COMPRESSIONS: dict[str, Any] = {
    "none": lambda: None,
    "int8": gd.int8,
    "float8": gd.float8,
    "sign": gd.sign,
    "top_k": lambda: gd.top_k(0.01),
}


def make_method(
    method: str, inner: Any, period: int, outer_momentum: float, compress: str
) -> gx.GradientTransformation:
    """Return the optimizer of all devices.

    Args:
      method: "diloco": ZeRO-1 over the devices of a slice, and an exchange between slices every
        `period` steps. "tower": gradients are averaged over all devices at every step.
      inner: the optimizer of one device.
      period: steps from one exchange to the next.
      outer_momentum: of DiLoCo's outer step.
      compress: the name of a compression, of what travels between slices, or, for "tower", of the
        gradients.
    """
    if method not in METHODS:
        hint = did_you_mean(method, METHODS) or f"There are {' and '.join(METHODS)}."
        raise Refused(f"--method: no method named {method!r}. {hint}")
    try:
        how = {"compress": COMPRESSIONS[compress]()}
        if method == "tower":
            everywhere = gd.tower(inner, (BETWEEN, INSIDE), **how)
            return gx.master_weights(gx.apply_if_finite(everywhere, SKIPPED))
        return gd.diloco(
            gx.apply_if_finite(gd.zero1(inner, INSIDE), SKIPPED),
            BETWEEN,
            period=period,
            outer_momentum=outer_momentum,
            inner_axes=(INSIDE,),
            shard_anchor=True,
            **how,
        )
    except (TypeError, ValueError) as error:
        raise Refused(one_line(error)) from error


def between_slices(compiled: Any, devices: int, period: int) -> float:
    """Return the bytes that a device sends between slices in a step, on average.

    They are counted in the compiled step. How much of an exchange over all devices goes between
    slices depends on the machine. Here, as on TPUs, devices exchange inside their slices first, so
    that each sends its part between slices. An all-to-all has nothing to sum or to share inside:
    all goes to other slices that is meant for devices there.

    Args:
      compiled: the compiled step.
      devices: the number of devices of a slice; device d is one of slice d // devices.
      period: steps from one exchange to the next; what has a condition happens then.
    """
    total = 0.0
    for one in gd.hlo.collectives(compiled):
        met = max(len({d // devices for d in group}) for group in one.groups)
        if met > 1:
            each = one.group // met  # devices of a slice
            crossing = one.group - each if one.kind == "all-to-all" else met - 1
            share = crossing / (one.group - 1) / (period if one.conditional else 1)
            total += share * one.sent
    return total


def rate_of(peak: float, steps: int) -> Any:
    """Return the learning rate by step: up for a tenth of the steps, then down to zero."""
    return gx.warmup_cosine_decay_schedule(0.0, peak, max(1, steps // 10), max(2, steps))


def adamw(peak: float, steps: int) -> Any:
    """Return the optimizer of one device."""
    return gx.adamw(
        rate_of(peak, steps), b2=0.99, weight_decay=0.01, weight_decay_mask=gx.ndim_at_least(2)
    )


def in_16_bits(params: Any) -> Any:
    """Return the parameters in bfloat16."""
    return jax.tree.map(lambda p: p.astype("bfloat16"), params)
