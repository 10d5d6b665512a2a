"""Compositions of weight decays, and of groups of parameters."""

from gradxform.commands.finding.composition import REFERENCE, Composition

CWD = "Chen et al., Cautious Weight Decay, 2025"
CWD_LINK = "https://arxiv.org/abs/2510.12402"

ROWS = [
    Composition(
        ("cautious weight decay", "CWD", "cautious decay", "cautious_wd", "AdamW with CWD"),
        "AdamW whose entries decay only where the step leads towards 0.",
        "gx.decoupled_weight_decay(gx.adam(lr), w, learning_rate=lr, cautious=True)",
        CWD,
        CWD_LINK,
        REFERENCE,
        "`gx.cautious_adamw` is another thing: it masks steps, not the decay.",
    ),
    Composition(
        ("Muon with CWD", "Muon with cautious weight decay"),
        "Muon whose matrices decay only where the step leads towards 0.",
        "gx.decoupled_weight_decay(\n"
        "    gx.muon(lr, debias=False), w, matrices, learning_rate=lr, cautious=True\n"
        ")",
        CWD,
        CWD_LINK,
        REFERENCE,
    ),
    Composition(
        ("AdamC", "corrected weight decay", "AdamW with corrected weight decay", "SGDC"),
        "AdamW whose normalized layers decay in proportion to the square of the rate.",
        "gx.decoupled_weight_decay(\n"
        "    gx.adamw(schedule, weight_decay=w, weight_decay_mask=~matrices),\n"
        "    w,\n"
        "    matrices,\n"
        "    learning_rate=gx.product_schedule(schedule, schedule, 1 / lr),\n"
        ")",
        "Defazio, Why Gradients Rapidly Increase Near the End of Training, 2025",
        "https://arxiv.org/abs/2506.02285",
        REFERENCE,
        "`matrices` stands for the layers that a normalization follows, and lr for the largest "
        "rate of the schedule.",
    ),
    Composition(
        ("no decay on biases and norms", "AdamW no decay on bias", "weight decay on matrices only"),
        "AdamW that decays matrices, and no biases and scales.",
        "gx.adamw(lr, weight_decay=w, weight_decay_mask=gx.ndim_at_least(2))",
        "Devlin et al., BERT, 2018, in its code, `optimization.py`",
        "https://github.com/google-research/bert",
        REFERENCE,
    ),
    Composition(
        ("LoRA+", "LoRAPlus", "LoRA plus"),
        "Adapters whose matrices B learn faster than A.",
        'gx.param_groups(gx.adamw(lr), (gx.param_group("lora_b", learning_rate=16.0),))',
        "Hayou et al., LoRA+: Efficient Low Rank Adaptation of Large Models, 2024",
        "https://arxiv.org/abs/2402.12354",
        REFERENCE,
        "The pattern is for paths of parameters such as `layer/lora_b`. Freeze what is not an "
        'adapter with `gx.param_group(~gx.path_matches("lora"), freeze=True)`.',
    ),
    Composition(
        (
            "layer-wise learning rate decay",
            "layer-wise lr decay",
            "LLRD",
            "discriminative fine-tuning",
        ),
        "Layers whose rates fall with their distance from the head.",
        "gx.param_groups(gx.adamw(lr), gx.layerwise_decay(params, 0.9))",
        "Howard and Ruder, Universal Language Model Fine-tuning for Text Classification, 2018",
        "https://arxiv.org/abs/1801.06146",
        REFERENCE,
        "`params` are those of the model, whose paths number its layers.",
    ),
    Composition(
        ("groups for embeddings and experts", "MoE parameter groups", "expert learning rate"),
        "Rates and decays of their own for embeddings, experts and routers.",
        "gx.param_groups(\n"
        "    gx.adam(lr),\n"
        "    (\n"
        '        gx.param_group("embed", weight_decay=0.0),\n'
        '        gx.param_group("expert", learning_rate=0.5),\n'
        "    ),\n"
        "    weight_decay=w,\n"
        "    learning_rate=lr,\n"
        ")",
        "PyTorch, per-parameter options of `torch.optim`",
        "https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options",
        REFERENCE,
        "[Groups and masks](groups_and_masks.md) has more; `gx.mup` has the rates of muP.",
    ),
]
