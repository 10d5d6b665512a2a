"""Optimizers with small states, and those that meet spikes, beside their forms in PyTorch."""

from typing import Any

from docs.site.from_pytorch.row import Drawn, Row, drawing
from gradxform.transforms import apollo
from tests.interop.recordings import Recording


def with_their_draws(recorded: Recording, t: int) -> Any:
    """Return a context in which the projection is the one that was drawn."""
    drawn = recorded.arrays["aux/draws"][12:].reshape(2, 4)  # after 12 that are not used
    return drawing(apollo, "_normal", drawn)


ROWS = [
    Row(
        theirs="AdamMini(lr, num_embeds=d, num_heads=h)",
        ours="gx.adam_mini(lr, weight_decay=0.1, weight_decay_mask=mask, blocks=blocks)",
        difference=1e-12,
        recorded="AdamMini",
        notes="Blocks there follow from the names of PyTorch's modules, here from shapes, unless "
        "`blocks` says otherwise: `gx.moment_blocks(-1, d // h)` for queries and keys, "
        "`gx.moment_blocks(None)` for embeddings, `gx.moment_blocks(())` for the rest.",
    ),
    Row(
        theirs="CAME(lr)",
        ours="gx.came(lr)",
        difference=1e-12,
        recorded="CAME",
        leaves=("matrix", "vector", "scalar"),
        notes="Both factor the last two axes. Those of a kernel are its height and width in "
        "PyTorch, and its inputs and outputs here, which takes less memory: it differs by 0.2. "
        "`ams_bound` is not here",
    ),
    Row(
        theirs="APOLLO(groups, lr)",
        ours="gx.apollo(lr, 2, granularity='tensor', low_rank=True)",
        difference=1e-12,
        recorded="APOLLO",
        drawn=Drawn("the projection is the one that was drawn there", with_their_draws),
        steps=5,
        notes="The group of matrices has `rank=2`. Without `low_rank` the whole gradient is "
        "scaled, as in the paper. `scale` here is "
        "`scale` ** 1.5 there, `scale_type` is `granularity`, and the decay, which follows the "
        "step, has the rate with Adam's corrections. One gradient of zeros stops a matrix there "
        "for good, from then on they differ by 0.5",
    ),
    Row(
        theirs="SGDSaI(lr)",
        ours="gx.sgd_sai(lr)",
        difference=1e-12,
        recorded="SGDSaI",
        notes="With a momentum and without `weight_decouple`, a decay does nothing there",
    ),
    Row(
        theirs="SGDSaI(lr, weight_decay, momentum=0.0, weight_decouple=False)",
        ours="gx.chain(gx.add_decayed_weights(lambda n: weight_decay * (n > 0)), "
        "gx.scale_by_first_snr(), gx.scale_by_learning_rate(lr))",
        difference=1e-1,
        recorded="SGDSaI.w",
        notes="there the ratio is that of the first gradient without the decay, and scales both. "
        "So the first step must not decay here, which is the difference",
    ),
    Row(
        theirs="RACS(lr)",
        ours="gx.racs(lr, iterations=0)",
        difference=1e-12,
        recorded="RACS",
        steps=5,
        notes="The default is the paper's fixed point, of which the step there takes means. One "
        "gradient of zeros all but stops an array there for good, from then on they differ by 0.9",
    ),
    Row(
        theirs="SPAM(lr)",
        ours="gx.spam(lr, warmup_steps=50)",
        difference=1e-12,
        recorded="SPAM",
        notes="the warm-up after a reset is 50 steps there, and 150 here. Once spikes are "
        "clipped, gradients of entries whose second moment is 0 become 0 there, and these "
        "stay until the moments begin anew; here such gradients are left as they are. A `density` "
        "below 1 is not here",
    ),
    Row(
        theirs="StableSPAM(lr)",
        ours="gx.stable_spam(lr)",
        difference=1e-12,
        recorded="StableSPAM",
        steps=5,
        notes="An array whose gradient is all zeros does not move there, and its averages but that "
        "of the largest entries stay: from then on they differ by 0.1. `t_max` is not here",
    ),
    Row(
        theirs="Adalite(lr)",
        ours="gx.adalite(lr)",
        difference=1e-12,
        recorded="Adalite",
    ),
]
