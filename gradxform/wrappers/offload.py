"""State in the memory of the host."""

import math
from dataclasses import field
from typing import Any

import jax

from gradxform._jax.versions import is_tracer
from gradxform.base import transform
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import shape_of
from gradxform.leaves.storage import MEMORIES, is_stored, on_host
from gradxform.types import Choice, NonNegativeSize, Params, StaticTree
from gradxform.wrappers.stored.wrapper import StateSlot, StorageWrapper


@transform
class offload_state(StorageWrapper):
    """Keep the slots of an optimizer in the memory of the host.

    Rule and state are those of `inner`; only the place of the arrays differs. A slot comes to the
    device when its turn comes, in tiles of its first axis (for stacked layers, layer by layer), and
    goes back. The device holds the current tiles instead of the state. A step takes longer by the
    time of those transfers that the compiler cannot overlap.

    Call `init` under `jax.jit`: the state is then not on the device before it is on the host.

    A step that donates the state must donate the parameters too, or gradients of their shapes, and
    return their successors before the state; or have all its arguments on a mesh
    (`jax.device_put(params, jax.NamedSharding(mesh, jax.P()))`). Otherwise JAX does not compare the
    memories of what it pairs, gives the memory of a slot to an update on the device, and ends the
    process.

    Args:
      inner: a transform whose rules look no further than an array. It may store its slots in fewer
        bits: `offload_state(quantize_state(adam(1e-3)))`.
      memory_kind: the memory: `"pinned_host"`, from which devices read by themselves.
      min_size: arrays with fewer entries stay, because a transfer is slow to begin. At least 0.
        Keyword-only.
      which: what to move, as in `quantize_state`. Keyword-only.

    Raises:
      TypeError: if `inner` holds a transform of another library; at `init`, if a slot belongs to a
        rule that looks at the whole tree, and `which` does not leave it out.
      ValueError: if `memory_kind` is another; at `init`, if the device does not have it, or if
        `which` names a slot that does not exist.

    Reference: Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, 2021, whose
    optimizer states are in the memory of the host; here the device computes with them.
    """

    inner: Any
    memory_kind: Choice = "pinned_host"
    min_size: NonNegativeSize = field(default=4096, kw_only=True)
    which: StaticTree = field(default=None, kw_only=True)

    reaches = ("entry", "row", "array")
    where = "in another memory"
    rounds = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "memory_kind", tuple(MEMORIES))

    def init(self, params):
        """Return the inner state, with its slots in the memory of the host."""
        kinds = memories_of(_device(params))
        if self.memory_kind not in kinds:
            raise ValueError(
                f"{name_of(self)}: memory_kind is {self.memory_kind!r}, which "
                f"{_device(params)} does not have; it has {', '.join(sorted(kinds))}. "
                f"Leave {name_of(self)} out on this platform."
            )
        return super().init(params)

    def qualifies(self, x: Any, slot: StateSlot) -> bool:
        """Whether an array is large enough."""
        is_large = math.prod(shape_of(x)) >= max(self.min_size, 1)
        return is_large and (is_stored(x) or super().qualifies(x, slot))

    def stored(self, x: Any, slot: StateSlot) -> Any:
        """Return the array in the memory of the host."""
        return on_host(x, MEMORIES[self.memory_kind])


def memories_of(device: Any) -> set[str]:
    """Return the kinds of memory that a device can address."""
    return {memory.kind for memory in device.addressable_memories()}


def _device(params: Params) -> Any:
    """Return a device that this process may ask about its memories."""
    for x in jax.tree.leaves(params):
        if isinstance(x, jax.Array) and not is_tracer(x):
            for device in x.sharding.addressable_devices:
                return device
    return jax.local_devices()[0]
