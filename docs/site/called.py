"""Other words for a part, as a heading of its page, and who uses them.

The words are those of other fields and libraries that the page would else not have.
"""

CALLED: dict[str, tuple[str, str]] = {
    "dpsgd": (
        "differential privacy",
        "Opacus and TensorFlow Privacy make an optimizer private. Here DP-SGD is an optimizer, "
        "which takes the gradients of single examples.",
    ),
    "moving_average": (
        "EMA, exponential moving average, Polyak averaging",
        "PyTorch has it as `swa_utils.AveragedModel`, timm as `ModelEma`, Keras as `use_ema`, and "
        "TensorFlow 1 as `tf.train.ExponentialMovingAverage`. `ema` averages updates, and is "
        "another thing.",
    ),
    "noisy_sgd": (
        "gradient noise",
        "`add_noise`, which Optax has too, is the noise alone, for a chain with any optimizer.",
    ),
    "offload_state": (
        "CPU offload, ZeRO-Offload, paged optimizer",
        "DeepSpeed offloads the state of an optimizer to the CPU's memory, and bitsandbytes pages "
        "it, as in `PagedAdamW`.",
    ),
    "schedule_free": (
        "schedule-free",
        "The authors' package is `schedulefree`, with `AdamWScheduleFree` and its like. Here it "
        "goes around any optimizer.",
    ),
    "sgd": (
        "SGD with momentum, heavy ball",
        "PyTorch and Keras have it as `SGD(momentum=0.9)`, and TensorFlow 1 as "
        "`tf.train.MomentumOptimizer`. The momentum alone is `trace`.",
    ),
    "stochastic_weight_average": (
        "SWA, stochastic weight averaging",
        "PyTorch has it as `swa_utils.AveragedModel` with `SWALR`, and Lightning as a callback.",
    ),
}
