"""What people call things who come from other libraries leads to what these are called here."""

import dataclasses
import inspect
import pickle
from typing import Any

import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform._names import guesses
from gradxform._names.homes import homes_of
from gradxform.commands.catalog import registered_part
from tests.public import names_of

NAMES = {
    "adamw8bit PagedAdamW8bit Lion8bit Adam4bit quantized_adam": "quantize_state",
    "model_ema EMA ModelEMA ExponentialMovingAverage AveragedModel": "moving_average",
    "polyak_averaging weight_average": "moving_average",
    "lora LoRA freeze_params freeze_layers requires_grad": "freeze",
    "fsdp FSDP FullyShardedDataParallel zero zero3 zero1": "distributed.zero1",
    "ZeroRedundancyOptimizer": "distributed.zero1",
    "ddp DistributedDataParallel all_reduce": "distributed.Replicas",
    "tower": "distributed.tower",
    "gradient_accumulation accumulate_grad_batches GradientAccumulator": "MultiSteps",
    "get_lr get_last_lr learning_rate current_lr": "current_learning_rate",
    "set_lr hyperparams LambdaLR lr_scheduler": "inject_hyperparams",
    "clip_grad_norm_ clip_grad_norm gradient_clipping max_grad_norm": "clip_by_global_norm",
    "clip_grad_value_ ClipValue": "clip",
    "GradScaler dynamic_loss_scale autocast": "loss_scale",
    "StepLR MultiStepLR PiecewiseConstantDecay": "piecewise_constant_schedule",
    "CosineAnnealingLR CosineDecay cosine_schedule": "cosine_decay_schedule",
    "get_cosine_schedule_with_warmup": "warmup_cosine_decay_schedule",
    "ReduceLROnPlateau": "reduce_on_plateau",
    "OneCycleLR": "cosine_onecycle_schedule",
    "SWALR swa": "stochastic_weight_average",
    "weight_decay l2_regularization": "add_decayed_weights",
    "layer_decay llrd": "layerwise_decay",
    "DeepSpeedCPUAdam offload_optimizer paged_adamw": "offload_state",
    "GradientTape backward zero_grad": "compute_gradients",
    "TrainState train_step": "make_step",
    "add_param_group parameter_groups": "param_groups",
    "AdamW": "adamw",
    "RMSprop": "rmsprop",
    "LBFGS": "lbfgs",
}
EACH = [(name, meant) for names, meant in NAMES.items() for name in names.split()]


@pytest.mark.parametrize("name, meant", EACH)
def test_a_guess_leads_to_what_does_the_same(name, meant):
    with pytest.raises(AttributeError) as caught:
        getattr(gx, name)
    assert f"{meant!r}" in str(caught.value) and str(caught.value).count("Did you mean") == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AttributeError and str(again) == str(caught.value)
    if name in homes_of("gradxform.distributed"):
        return
    with pytest.raises(KeyError) as caught:
        registered_part(name)
    assert f"{meant.rpartition('.')[2]}'" in str(caught.value)


def test_every_guess_leads_to_a_name_that_there_is():
    roots, others = homes_of("gradxform"), homes_of("gradxform.distributed")
    words = [word for words in guesses._PARTS for word in words.split()]
    assert len(words) == len(set(words)) and all(word == guesses.plain(word) for word in words)
    for parts in guesses._PARTS.values():
        for part in parts.split():
            assert part in roots or part.removeprefix("distributed.") in others, part


ARGUMENTS = [
    ("adamw(lr=1e-3)", "adamw has no argument lr; did you mean learning_rate?"),
    ("adamw(1e-3, betas=(0.9, 0.99))", "adamw has no argument betas; did you mean b1 and b2?"),
    ("adan(1e-3, betas=(0.9,))", "adan has no argument betas; did you mean b1 and b2 and b3?"),
    ("adam(1e-3, epsilon=1e-8)", "adam has no argument epsilon; did you mean eps?"),
    ("sgd(0.1, nestrov=True)", "sgd has no argument nestrov; did you mean nesterov?"),
    ("rmsprop(0.1, alpha=0.9)", "rmsprop has no argument alpha; did you mean decay?"),
    ("scale_by_adam(beta_1=0.9)", "scale_by_adam has no argument beta_1; did you mean b1?"),
    ("moving_average(sgd(0.1), dcay=0.9)", "moving_average has no argument dcay; did you mean de"),
    ("MultiSteps(optimizer=sgd(0.1))", "MultiSteps has no argument optimizer; did you mean opt?"),
    ("cosine_decay_schedule(1.0, T_max=9)", "argument T_max; did you mean decay_steps?"),
    ("layerwise_decay(sgd(0.1), decoy=0.9)", "layerwise_decay has no argument decoy"),
    ("adamw(0.1, amsgrad=True)", "adamw has no argument amsgrad. amsgrad is an optimizer"),
    ("adamw(0.1, clipnorm=1.0)", "adamw has no argument clipnorm. Chain clip_by_global_norm(...)"),
    ("adam(0.1, weight_decay=0.1)", "adam has no argument weight_decay. Look at adamw"),
    ("lion(0.1, what=1)", "lion has no argument what, only learning_rate, b1, b2"),
    ("identity(what=1)", "identity has no argument what; it does not take any."),
    ("inject_hyperparams(adamw)(lr=0.1)", "adamw has no argument 'lr'"),
    ("adamw(0.1, mask=True, weight_decay_mask=True)", "mask is another name of weight_decay_mask"),
]


@pytest.mark.parametrize("call, said", ARGUMENTS)
def test_a_wrong_argument_names_the_right_one(call, said):
    with pytest.raises(TypeError) as caught:
        eval(call, names_of(gx))
    assert said in str(caught.value)


def takes_keywords(part):
    if not callable(part) or getattr(part, "variadic", None) is not None:
        return False
    if isinstance(part, type) and (inspect.isabstract(part) or not dataclasses.is_dataclass(part)):
        return False
    # Functions of the library make these; users do not.
    if part in (gx.Description, gx.MigratedSlot, gx.MigrationReport):
        return False
    if not isinstance(part, type) and part not in gx.OPTIMIZERS.values():
        return False
    kinds = {p.kind for p in inspect.signature(part).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD not in kinds


def test_all_parts_say_which_arguments_they_have():
    parts = {k: x for k, x in (names_of(gx) | names_of(gd)).items() if takes_keywords(x)}
    assert len(parts) > 300
    for name, part in parts.items():
        with pytest.raises(TypeError, match="has no argument no_such_one"):
            part(no_such_one=1)
        assert "no_such_one" not in inspect.signature(part).parameters, name


DECAYED = [
    name
    for name, factory in gx.OPTIMIZERS.items()
    if {"weight_decay", "weight_decay_mask"} <= inspect.signature(factory).parameters.keys()
]


def test_every_mask_of_a_decay_is_called_the_same():
    assert len(DECAYED) > 60
    for name, factory in gx.OPTIMIZERS.items():
        assert "mask" not in inspect.signature(factory).parameters, name
        assert "\n  mask:" not in str(inspect.getdoc(factory)), name


@pytest.mark.parametrize("name", DECAYED)
def test_both_names_of_the_mask_are_taken(name):
    factory, matrices = gx.OPTIMIZERS[name], gx.ndim_at_least(2)
    needed = {
        k: 0.1
        for k, p in inspect.signature(factory).parameters.items()
        if p.default is p.empty and k == "learning_rate"
    } | {"weight_decay": 0.1}
    made = factory(**needed, weight_decay_mask=matrices)
    assert factory(**needed, mask=matrices) == made
    kept = gx.inject_hyperparams(factory)
    assert kept(**needed, mask=matrices) == kept(**needed, weight_decay_mask=matrices)
    config = {"name": name, **needed, "mask": {"name": "ndim_at_least", "n": 2}}
    assert gx.from_config(config) == made
    decay = gx.add_decayed_weights(0.1, matrices)
    called: Any = gx.add_decayed_weights
    assert called(0.1, weight_decay_mask=matrices) == decay
