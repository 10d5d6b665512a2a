"""Transforms: each changes updates by a rule of its own. One family a file.

The names of `optax.transforms` can be had from here, those of wrappers too.
"""

from gradxform.registry import forwarded

__getattr__, __dir__ = forwarded(
    __name__,
    [
        "AddNoiseState",
        "ApplyIfFiniteState",
        "EmaState",
        "MaskedNode",
        "MaskedState",
        "MultiSteps",
        "MultiStepsState",
        "NonNegativeParamsState",
        "PartitionState",
        "ShouldSkipUpdateFunction",
        "TraceState",
        "ZeroNansState",
        "adaptive_grad_clip",
        "add_decayed_weights",
        "add_noise",
        "apply_if_finite",
        "chain",
        "clip",
        "clip_by_block_rms",
        "clip_by_global_norm",
        "ema",
        "keep_params_nonnegative",
        "masked",
        "named_chain",
        "partition",
        "skip_large_updates",
        "skip_not_finite",
        "trace",
        "zero_nans",
    ],
)
