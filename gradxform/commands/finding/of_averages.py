"""Compositions that average parameters, or look ahead."""

from gradxform.commands.finding.composition import REFERENCE, Composition

AVERAGED = "Evaluate `gx.eval_params(state, params)`."

ROWS = [
    Composition(
        (
            "schedule-free ADOPT",
            "SF-ADOPT",
            "ADOPTScheduleFree",
            "ADOPT schedule-free",
            "ScheduleFreeADOPT",
        ),
        "ADOPT without a momentum, whose averaged parameters need no decay of the rate.",
        "gx.schedule_free(gx.adopt(lr, b1=0.0), lr)",
        "asked for in the issues of schedule_free; Defazio et al., The Road Less Scheduled, 2024, "
        "around ADOPT",
        "https://github.com/facebookresearch/schedule_free/issues/61",
        REFERENCE,
        f"{AVERAGED} Codes of this name also have warm-ups and decays of their own, which were not "
        "compared.",
    ),
    Composition(
        ("Lookahead RAdam", "RAdam with Lookahead", "Ranger without GC"),
        "RAdam that is pulled back to a slow average every few steps.",
        "gx.lookahead(gx.radam(lr), 6, 0.5)",
        "Zhang et al., Lookahead Optimizer: k steps forward, 1 step back, 2019",
        "https://arxiv.org/abs/1907.08610",
        REFERENCE,
        "`gx.ranger` is Ranger, with centralized gradients and numbers of its own. The source is "
        f"Lookahead's; RAdam is that of Liu et al., 2019. {AVERAGED}",
    ),
    Composition(
        ("EMA of the parameters", "EMA with any optimizer", "AdamW with EMA", "weight EMA"),
        "Any optimizer, with an exponential average of the parameters to evaluate.",
        "gx.moving_average(gx.adamw(lr), decay=0.999)",
        "Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992",
        "https://doi.org/10.1137/0330046",
        REFERENCE,
        f"{AVERAGED} `gx.power_moving_average` keeps averages of several lengths.",
    ),
    Composition(
        ("SWA with AdamW", "AdamW with SWA"),
        "AdamW, with the equal average of the parameters from a step on.",
        "gx.stochastic_weight_average(gx.adamw(lr), start=4, period=2)",
        "Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, 2018",
        "https://arxiv.org/abs/1803.05407",
        REFERENCE,
        AVERAGED,
    ),
    Composition(
        ("WSM", "warmup-stable-merge", "checkpoint merging", "checkpoint averaging"),
        "A rate that warms up and then stays, and the mean of the last checkpoints.",
        "gx.stochastic_weight_average(\n"
        "    gx.adamw(gx.warmup_constant_schedule(0.0, lr, 3)), start=4, period=2\n"
        ")",
        "Tian et al., WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM "
        "Pre-training, 2025",
        "https://arxiv.org/abs/2507.17634",
        REFERENCE,
        "Merging by the mean alone. Merges with other weights, which imitate a decay, are sums of "
        f"checkpoints that you keep. {AVERAGED}",
    ),
]
