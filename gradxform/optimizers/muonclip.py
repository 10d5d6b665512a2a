"""MuonClip."""

from typing import Any

from gradxform.optimizers.muon import muon
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.muon import NS_COEFFS
from gradxform.types import Decay, DType, ScalarOrSchedule, StaticTree
from gradxform.wrappers.muonclip import qk_clip


@optimizer
def muonclip(
    learning_rate: ScalarOrSchedule,
    layers: StaticTree,
    threshold: float = 100.0,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.1,
    mu_dtype: DType = None,
    *,
    query_share: float = 0.5,
    nesterov: bool = True,
    debias: bool = False,
    rms: float | None = 0.2,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: int = 5,
    eps: float = 1e-8,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
    iteration: str = "direct",
) -> qk_clip:
    """MuonClip: Muon, with query and key weights that shrink where logits are too large.

    What is orthogonalized, with m <- beta m + (1 - beta) g, is

        a = beta m + (1 - beta) g                                        (with nesterov)
        a = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)      (and debias)

    and m without nesterov, which is the paper's form. With nesterov and debias, the AdamW of the
    other parameters looks one step ahead too. Every update needs `max_logits=`, as `qk_clip`
    describes.

    Args:
      learning_rate: at least 0, or a schedule; one for AdamW fits.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      rms: the root mean square of the entries of an update of a matrix, at least 0; None for the
        factor sqrt(max(1, columns / rows)) of Jordan's code.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `muon` and `qk_clip` for the other arguments.

    Reference: Kimi Team, Kimi K2: Open Agentic Intelligence, 2025, Algorithm 1.
    """
    numbers = weight_dimension_numbers
    more = {"consistent_rms": rms, "muon_weight_dimension_numbers": numbers}
    inner = with_arguments(muon, locals(), adam_weight_decay=weight_decay, **more)
    return qk_clip(inner, layers, threshold, query_share)
