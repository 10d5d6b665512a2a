"""Muon."""

from typing import Any

from gradxform.base import Transform
from gradxform.errors import did_you_mean, shown
from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.muon import NS_COEFFS, NS_ROWS, scale_by_muon, scale_by_shape
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import Decay, DType, ScalarOrSchedule, StaticMask, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


def muon_coefficients(name: str, choice: tuple[Any, ...] | str, turns: Any) -> tuple[Any, ...]:
    """Return the coefficients of the orthogonalization, or those of the preset of that name.

    Args:
      name: the optimizer that asks, for messages.
      choice: coefficients, or the name of a preset.
      turns: the number of turns.
    """
    if not isinstance(choice, str):
        return choice
    if choice in NS_COEFFS:
        return NS_COEFFS[choice]
    if choice not in NS_ROWS:
        presets = [*NS_COEFFS, *NS_ROWS]
        raise ValueError(
            f"{name}: ns_coeffs must be numbers or one of {', '.join(map(repr, presets))}, got "
            f"{choice!r}.{did_you_mean(choice, presets)}"
        )
    if type(turns) is not int or turns < 1:
        raise ValueError(
            f"{name}: with {choice!r}, ns_steps must be an integer of at least 1, got "
            f"{shown(turns)}. Its coefficients differ from turn to turn."
        )
    return NS_ROWS[choice](turns)


def beside_adamw(
    direction: Transform,
    numbers: Any,
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule,
    *adam: Any,
) -> partition:
    """Return a descent along `direction` for matrices, and AdamW with the same decay for the rest.

    Args:
      direction: what the learning rate of the matrices multiplies.
      numbers: as `muon` takes them.
      learning_rate: of the matrices.
      weight_decay: of all parameters.
      *adam: the learning rate of AdamW, or None for that of the matrices; its two decays; its eps.
    """
    matrices = with_weight_decay(direction, learning_rate, weight_decay, None)
    return with_adamw("muon", matrices, numbers, learning_rate, *adam, weight_decay=weight_decay)


@optimizer
def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
    debias: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_nesterov: bool | None = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.999,
    adam_eps_root: float = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: StaticTree = None,
    consistent_rms: float | None = None,
    compute_dtype: DType = None,
    iteration: str = "direct",
) -> partition:
    """Muon: orthogonalized momentum for matrices, AdamW for all other parameters.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `muon_weight_dimension_numbers`.

    As in Optax, Nesterov's look ahead is that of Adam, with its bias corrections, and the AdamW of
    all other parameters looks ahead too: it is NAdamW. Jordan's code and `torch.optim.Muon` do
    neither, which `debias=False` computes.

    Args:
      ns_coeffs: the coefficients of the orthogonalization: three, three for each turn, or the name
        of a preset, "standard", "dion" or "polar_express". The last is a polynomial for each turn,
        which brings singular values from 0.001 on nearer to 1 and takes any number of turns. It
        divides matrices as `preconditioning` says; its reference code divides by 1.01 more.
      eps: added to the norm of a matrix and, in AdamW, to the root, at least 0.
      weight_decay: of the matrices, at least 0, or a schedule; the learning rate multiplies it.
      weight_decay_mask: which matrices decay. Defaults to all.
      adam_nesterov: whether AdamW looks one step ahead. By default with nesterov and debias.
      adam_b1: the decay of AdamW's first moment, in [0, 1).
      adam_b2: the decay of AdamW's second moment, in [0, 1).
      adam_eps_root: added under AdamW's root, at least 0.
      adam_weight_decay: AdamW's weight decay, at least 0, or a schedule.
      adam_learning_rate: AdamW's learning rate. Defaults to that of the matrices.
      muon_weight_dimension_numbers: `MuonDimensionNumbers` for all parameters, a tree of them with
        None for those that AdamW gets (a prefix of the parameters will do), or a function of the
        parameters that returns one. By default, parameters of two dimensions are matrices.
      consistent_rms: the root mean square of the entries of an update; 0.2 is that of Adam. By
        default, a matrix whose singular values are near 1 is multiplied by sqrt(max(1, columns /
        rows)).

    See `scale_by_muon` and `scale_by_learning_rate` for the other arguments.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
    al., Muon is Scalable for LLM Training, 2025, for consistent_rms; Amsel et al., The Polar
    Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm, 2025, for
    "polar_express".
    """
    ns_coeffs = muon_coefficients("muon", ns_coeffs, ns_steps)
    numbers = muon_weight_dimension_numbers
    matrices = chain(
        with_arguments(scale_by_muon, locals(), weight_dimension_numbers=numbers),
        scale_by_shape(numbers, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    # As in Optax, eps, mu_dtype and nesterov are those of both methods.
    adam = adam_learning_rate, adam_b1, adam_b2, eps, adam_eps_root, mu_dtype, adam_weight_decay
    ahead = nesterov and debias if adam_nesterov is None else adam_nesterov
    return with_adamw("muon", matrices, numbers, learning_rate, *adam, nesterov=ahead)
