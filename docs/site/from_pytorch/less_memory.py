"""Optimizers with small states, and those that meet spikes, beside their forms in PyTorch."""

import gradxform as gx
from docs.site.from_pytorch.row import Row

ROWS = [
    Row(
        theirs="pytorch_optimizer.AdamMini(model, lr, num_embeds=d, num_heads=h)",
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
]
