"""What people type into the search of the site finds the page that answers them, as the first.

The search is that of the theme: its own script runs in Node, on the index of the built site, with
the words as they are typed. `make docs` builds the site into site/ first.
"""

import json
import os
import pathlib
import subprocess

import pytest

from docs.site import ranking

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = pathlib.Path(os.environ.get("GRADXFORM_SITE", ROOT / "site"))
SCRIPT = pathlib.Path(__file__).with_name("search.cjs")
# The words of threads, menus and pages of PyTorch, Keras, Optax, Flax, DeepSpeed, bitsandbytes and
# others, by the page that is to be the first; with a place, that place is to be its best.
WORDS = {
    "guides/flax_sharding/#fsdp-and-zero": ["FSDP", "ZeRO"],
    "guides/flax_sharding/": ["sharding"],
    "guides/from_deepspeed/": ["DeepSpeed"],
    "wrappers/offload_state/": ["ZeRO-Offload", "CPU offload", "paged optimizer", "out of memory"],
    "guides/replicas/": [
        "DDP",
        "data parallel",
        "local SGD",
        "DiLoCo",
        "federated",
        "multi-GPU",
        "multi-host",
    ],
    "distributed/": ["pmap"],
    "guides/through_steps/": ["MAML", "meta-learning", "differentiable optimizer"],
    "guides/low_precision/": ["GradScaler", "mixed precision", "AMP", "fp16", "bf16", "8bit"],
    "guides/low_precision/#loss-scaling": ["loss scaling"],
    "guides/low_precision/#when-gradients-overflow": ["overflow"],
    "guides/low_precision/#8-bit-adam": ["8-bit"],
    "optimizers/adam/": ["Adam8bit", "Adam"],
    "guides/from_bitsandbytes/": ["bitsandbytes"],
    "guides/choosing/#how-much-memory": ["OOM"],
    "guides/accumulation_and_guards/#gradient-checkpointing": ["gradient checkpointing"],
    "guides/accumulation_and_guards/": ["remat", "gradient accumulation"],
    "guides/groups_and_masks/#fine-tuning-with-lora": ["LoRA"],
    "guides/groups_and_masks/": [
        "PEFT",
        "fine-tuning",
        "requires_grad",
        "trainable",
        "param groups",
        "different learning rates",
    ],
    "guides/groups_and_masks/#different-learning-rates": ["discriminative learning rates"],
    "guides/groups_and_masks/#layers": ["per-layer learning rate"],
    "guides/groups_and_masks/#freeze-layers-parameters-that-are-not-trainable": [
        "freeze",
        "freeze layers",
    ],
    "reference/wrappers/#gradxform.multi_transform": ["multi_transform"],
    "guides/compositions/#layer-wise-learning-rate-decay": [
        "layer-wise learning rate decay",
        "LLRD",
    ],
    "guides/compositions/#adamw-with-gradient-centralization": ["gradient centralization"],
    "guides/groups_and_masks/#no-weight-decay-on-biases-and-norms": ["no weight decay on bias"],
    "wrappers/#weight-decay-for-any-optimizer": ["weight decay"],
    "wrappers/#memory-and-16-bits": ["memory"],
    "wrappers/moving_average/": ["EMA", "exponential moving average", "Polyak averaging"],
    "wrappers/stochastic_weight_average/": ["SWA", "weight averaging"],
    "wrappers/schedule_free/": ["schedule-free"],
    "guides/accumulation_and_guards/#gradient-clipping-against-exploding-gradients": [
        "gradient clipping",
        "exploding gradients",
    ],
    "guides/from_pytorch/": [
        "clip_grad_norm_",
        "zero_grad",
        "lr_scheduler",
        "state_dict",
        "PyTorch",
    ],
    "guides/accumulation_and_guards/#skip-nans-infinities-and-loss-spikes": [
        "NaN",
        "skip nan",
        "loss is nan",
        "loss spikes",
    ],
    "guides/schedules/": [
        "warmup",
        "cosine",
        "restarts",
        "cyclical learning rate",
        "learning rate scheduler",
        "LambdaLR",
        "OneCycleLR",
        "ReduceLROnPlateau",
        "get_last_lr",
    ],
    "guides/hyperparameters/#a-learning-rate-finder": ["lr finder"],
    "guides/hyperparameters/": ["hyperparameter tuning"],
    "guides/first_training/": ["TrainState"],
    "guides/checkpoints/#resume-training": ["resume training", "resume"],
    "guides/checkpoints/#save-the-optimizer-beside-its-state": ["save optimizer state"],
    "guides/checkpoints/": ["Orbax", "checkpoint"],
    "guides/logging/#to-tensorboard-or-weights-biases": ["wandb", "tensorboard"],
    "metrics/#gradient-norm-and-other-norms": ["gradient norm"],
    "guides/your_own_optimizer/": ["custom optimizer"],
    "sparse/": ["sparse gradients", "RowSparse"],
    "curvature/": ["Hessian", "second order"],
    "curvature/#the-natural-gradient-k-fac-with-kfac_jax": ["K-FAC", "KFAC", "natural gradient"],
    "line_search/": ["jaxopt", "L-BFGS"],
    "optimizers/dpsgd/": ["differential privacy"],
    "wrappers/sam/": ["SAM"],
    "guides/update_in_backward/": ["LOMO"],
    "optimizers/sgd/": ["SGD", "momentum"],
    "optimizers/noisy_sgd/": ["gradient noise"],
    "optimizers/muon/": ["Muon"],
    "reference/distributed/": ["fp8"],
    "optimizers/adamw/": ["AdamW"],
    "reference/core/": ["muP"],
    "wrappers/stochastic_rounding/": ["stochastic rounding"],
    "optimizers/galore/": ["GaLore"],
    "reference/transforms/": ["scale_by_adam"],
    "reference/migration/": ["migrate_state"],
    "guides/keras_model/": ["Keras"],
    "guides/from_optax/": ["Optax"],
}
TYPED = {word: place for place, words in WORDS.items() for word in words}


@pytest.fixture(scope="module")
def found(node):
    """The pages that the search lists for each of the words, each with its best place."""
    index = SITE / "search" / "search_index.json"
    if not index.is_file():
        pytest.skip(f"the site is not built in {SITE}: run `make docs` first")
    [worker] = (SITE / "assets/javascripts/workers").glob("search.*.min.js")
    done = subprocess.run(
        [*node, str(SCRIPT), str(worker), str(index)],
        input=json.dumps(list(TYPED)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(TYPED, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("word", TYPED)
def test_a_word_finds_its_page(found, word):
    assert found[word], "nothing is found"
    place = TYPED[word]
    first = found[word][0]
    assert (first if "#" in place else first.partition("#")[0]) == place, found[word][:3]


def test_names_that_begin_others_come_forward():
    names = {"adam", "adamax", "adamaxw", "lion"}
    boosts = {name: ranking.boost(f"optimizers/{name}.md", names) for name in names}
    assert boosts["adam"] > boosts["adamax"] > boosts["adamaxw"]
    assert boosts["lion"] == ranking.boost("pod.md", names) == 1.0


def test_pages_that_explain_come_before_those_that_list():
    guide = ranking.boost("guides/schedules.md", set())
    assert guide > ranking.boost("reference/schedules.md", set())
    assert ranking.boost("reference/core.md", set()) > ranking.boost("reference/states.md", set())
