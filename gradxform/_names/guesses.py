"""What people who come from other libraries call things, and what these are called here."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping

from gradxform.errors import did_you_mean

# Names of parts and functions, without case and underscores, and where they lead. The words of
# PyTorch, Keras, TensorFlow, Optax, DeepSpeed, Lightning and bitsandbytes.
_PARTS = {
    "accumulategradbatches accumulategradients accumulategradient gradientaccumulation"
    " gradaccumulation gradientaccumulationsteps gradientaccumulator": "MultiSteps accumulate",
    "agc adaptivegradientclipping": "adaptive_grad_clip",
    "allreduce ddp distributeddataparallel dataparallel distributedoptimizer horovod"
    " distributedstrategy mirroredstrategy pmean": "distributed.Replicas distributed.tower",
    "autocast mixedprecision amp fp16 bf16": "master_weights loss_scale",
    "averagedmodel ema modelema emamodel emaparams emaweights exponentialmovingaverage"
    " paramsema polyakaveraging polyakaverage weightaverage weightaveraging"
    " averageparams": "moving_average",
    "backward gradienttape": "compute_gradients",
    "clipgradnorm clipgradientnorm clipgradsnorm clipgradients clipgrads gradientclipping gradclip"
    " gradientclippingbynorm maxgradnorm globalclipnorm clipbynorm": "clip_by_global_norm",
    "clipgradvalue clipvalue clipbyvalue": "clip",
    "constantlr": "constant_schedule",
    "cosineannealing cosineannealinglr cosinedecay cosineschedule"
    " cosinelr": "cosine_decay_schedule",
    "cosineannealingwarmrestarts cosinewarmrestarts": "sgdr_schedule cosine_decay_restarts",
    "cosinewarmup getcosineschedulewithwarmup linearwarmupcosineannealinglr warmupcosine"
    " warmupcosineschedule cosineschedulewithwarmup": "warmup_cosine_decay_schedule",
    "cooldown annealing": "cooldown_from",
    "cpuadam cpuoffload deepspeedcpuadam offload offloadoptimizer": "offload_state",
    "cycliclr": "cyclic_schedule",
    "dynamiclossscale dynamiclossscaling gradscaler lossscaler lossscaling scaleloss": "loss_scale",
    "dadaptation dadapt dadaptadam": "dadapt_adamw",
    "exponentiallr exponentialschedule": "exponential_decay",
    "freezelayers freezelayer freezeparams freezeparameters freezeweights requiresgrad"
    " setrequiresgrad trainable nontrainable zerogradsfor": "freeze",
    "fsdp fullysharded fullyshardeddataparallel zero zero1 zero2 zero3 zerooptimizer"
    " zeroredundancyoptimizer shardedoptimizer shardstate": (
        "distributed.zero1 distributed.state_sharding"
    ),
    "fusedadam fusedadamw": "adamw",
    "getlr getlastlr getlearningrate lr currentlr learningrate lastlr": "current_learning_rate",
    "getlinearschedulewithwarmup linearwarmup warmuplinear linearschedulewithwarmup warmup"
    " warmupschedule": "warmup_constant_schedule join_schedules",
    "gradientcentralization centralizegradient centralizegradients": "centralize",
    "gradientnoise addgradientnoise": "add_noise",
    "gradnorm": "global_norm",
    "hessianfree": "newton_cg",
    "hyperparams hyperparameters sethyperparams setlr setlearningrate setlrs": "inject_hyperparams",
    "hyperball": "keep_matrix_norms",
    "isfinite nanguard skipnan skipnans skipnonfinite skipifnan terminateonnan": "apply_if_finite",
    "kfac": "soap shampoo",
    "l2 l2regularization weightdecay decoupledweightdecayregularization": "add_decayed_weights",
    "lambdalr lrscheduler learningrateschedule learningratescheduler"
    " scheduler": "inject_hyperparams",
    "layerdecay layerwiselr layerwiselrdecay layerwiselearningratedecay llrd": "layerwise_decay",
    "linearlr linearannealing lineardecay": "linear_schedule",
    "localsgd": "distributed.post_local_sgd distributed.diloco",
    "lora peft adapters": "freeze partition",
    "momentum": "sgd trace",
    "momentumoptimizer": "sgd",
    "multisteplr steplr piecewiseconstantdecay piecewiseconstant": "piecewise_constant_schedule",
    "mutransfer muparam muadam muadamw musgd": "mup",
    "normclip": "clip_by_global_norm",
    "onebitadam onebitlamb gradientcompression compressgradients": "distributed.sync_replicas",
    "onecyclelr onecycle": "cosine_onecycle_schedule",
    "optimizerstep step trainstep": "make_step apply_gradients",
    "paramgroup parametergroups parametergroup addparamgroup": "param_groups",
    "polynomiallr polynomialdecay": "polynomial_schedule",
    "quantize quantizedadam quantizestates quantizeoptimizer int8state": "quantize_state",
    "reducelronplateau": "reduce_on_plateau",
    "savecheckpoint saveoptimizer statedict loadstatedict": "to_json from_json",
    "sequentiallr chainedscheduler": "join_schedules",
    "swa swamodel swalr stochasticweightaveraging": "stochastic_weight_average",
    "summary countparameters": "describe",
    "trainstate": "Optimizer make_step",
    "wsd wsdschedule getwsdschedule warmupstabledecay trapezoidal trapezoidalschedule"
    " warmupstabledecaylr": "warmup_stable_decay_schedule cooldown_from",
    "fit train": "minimize make_step",
    "zerograd": "compute_gradients",
}
# Arguments, likewise; "&" stands between those that one argument became.
_ARGUMENTS = {
    "lr learning_rate step_size rate eta": "learning_rate step_size",
    "betas": "b1&b2&b3 b1&b2 b1",
    "beta beta1 momentum momentum_decay": "b1 decay momentum beta",
    "beta2 rho": "b2 decay rho",
    "beta3": "b3",
    "epsilon": "eps epsilon",
    "epsilon_root eps_root": "eps_root",
    "alpha decay decay_rate smoothing_const": "decay decay_rate b2 rho",
    "wd l2 weight_decay_rate lambd lambda decoupled_weight_decay": "weight_decay",
    "mask weight_decay_mask decay_mask no_decay exclude_from_weight_decay": (
        "weight_decay_mask mask"
    ),
    "initial_accumulator initial_accumulator_value": "initial_accumulator_value",
    "use_nesterov": "nesterov",
    "max_norm clipnorm": "max_norm max_delta",
    "ns_steps steps": "ns_steps steps transition_steps",
    "T_max decay_steps total_iters total_steps num_steps num_training_steps": (
        "decay_steps transition_steps total_steps"
    ),
    "num_warmup_steps warmup warmup_steps": "warmup_steps",
    "max_lr peak_lr": "peak_value",
    "initial_learning_rate init_lr": "init_value",
    "end_learning_rate eta_min min_lr final_lr": "end_value alpha",
    "gamma": "decay_rate decay gamma",
    "decay_type cooldown_type lr_decay_style": "shape",
    "optimizer base_optimizer opt transform tx": "inner optimizer opt",
    "freq interval period every_k k accumulation_steps": "every sync_period every_k_schedule",
}
# Arguments of other libraries that are parts here.
_PARTS_OF_ARGUMENTS = {
    "amsgrad": "amsgrad is an optimizer of its own",
    "clipnorm globalclipnorm maxgradnorm": "Chain clip_by_global_norm(...) before it",
    "clipvalue": "Chain clip(...) before it",
    "params parameters varlist": "The parameters are an argument of its init and update",
    "useema emamomentum emaoverwritefrequency": "Wrap it in moving_average(...)",
    "gradientaccumulationsteps": "Wrap it in MultiSteps(...)",
    "lossscalefactor": "Wrap it in loss_scale(...)",
    "weightdecay": "Look at adamw and its like, or chain add_decayed_weights(...)",
    "maximize": "To maximize, negate the gradients first: chain(scale(-1), ...)",
    "foreach fused capturable differentiable": "Leave it out: XLA compiles every optimizer",
    "nesterov momentum": "Look at sgd and nadam",
    "mask": "masked(...) leaves parameters out",
}


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {plain(word): to for words, to in table.items() for word in words.split()}


def plain(name: str) -> str:
    """Return a name without case, underscores and the like; a superscript is a digit."""
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKC", name).lower())


def parts_meant(name: str) -> list[str]:
    """Return what a word of other libraries means here, with packages in front; [] if unknown."""
    word = plain(name)
    found = []
    if re.search(r"(8bit|4bit|bnb|blockwise)", word):
        found = ["quantize_state"]
    elif word.startswith("paged"):
        found = ["offload_state"]
    return found + _PART_OF_WORD.get(word, "").split()


def argument_words(name: str) -> str:
    """Return what an argument of other libraries is here, as sentences; "" if unknown."""
    choices = [x.split("&") for x in _ARGUMENT_OF_WORD.get(plain(name), "").split()]
    called = " or ".join(" and ".join(map(repr, choice)) for choice in choices)
    how = _HOW_OF_WORD.get(plain(name))
    said = [f"As an argument, it is {called} here." if called else "", f"{how}." if how else ""]
    return " ".join(filter(None, said))


def arguments_for(name: str) -> list[str]:
    """Return the arguments that an argument of another library may be here; [] if unknown."""
    return _ARGUMENT_OF_WORD.get(plain(name), "").replace("&", " ").split()


def words_for(argument: str) -> list[str]:
    """Return what other libraries call an argument."""
    found = [word for words in _ARGUMENTS for word in words.split()]
    return [x for x in found if argument in arguments_for(x) and plain(x) != plain(argument)]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x' or 'y'?" for a part that nobody knows by this name, or "".

    Args:
      name: the name.
      known: the names that there are. Those of a package may be suggested if the package is there.
    """
    known = list(dict.fromkeys(known))
    word = plain(name)
    found = [k for k in known if plain(k.rpartition(".")[2]) == word]
    found += parts_meant(name)
    shown = [part for k in found if (part := _as_known(k, known)) is not None and part != name]
    if shown:
        return f" Did you mean {' or '.join(map(repr, shown))}?"
    return did_you_mean(name, known)


def _as_known(part: str, known: list[str]) -> str | None:
    """Return what a list of names calls a part, which may be one of a package; None if nothing."""
    package, _, name = part.rpartition(".")
    return part if part in known else name if name in known else part if package in known else None


def argument_suggestion(argument: str, names: Iterable[str]) -> str:
    """Return " Did you mean 'b1' and 'b2'?" for an argument that nobody knows, or ""."""
    found = _arguments_meant(argument, list(names))
    return f" Did you mean {' and '.join(map(repr, found))}?" if found else ""


def unknown_argument(owner: str, argument: str, names: Iterable[str]) -> str:
    """Return the message about an argument that something does not have.

    Args:
      owner: the name of what is called.
      argument: the argument.
      names: the arguments that it has.
    """
    names = list(names)
    found = _arguments_meant(argument, names)
    text = f"{owner} has no argument {argument}"
    if found:
        return f"{text}; did you mean {' and '.join(found)}?"
    how = _HOW_OF_WORD.get(plain(argument))
    if how is not None:
        return f"{text}. {how}."
    return f"{text}, only {', '.join(names)}." if names else f"{text}; it does not take any."


def _arguments_meant(argument: str, names: list[str]) -> list[str]:
    """Return those of the arguments that stand for one of another library, or the nearest."""
    word = plain(argument)
    choices = [[k] for k in names if plain(k) == word]
    choices += [choice.split("&") for choice in _ARGUMENT_OF_WORD.get(word, "").split()]
    known = [choice for choice in choices if set(choice) <= set(names)]
    return known[0] if known else difflib.get_close_matches(argument, names, n=1)


_PART_OF_WORD, _ARGUMENT_OF_WORD, _HOW_OF_WORD = map(
    _by_word, (_PARTS, _ARGUMENTS, _PARTS_OF_ARGUMENTS)
)
