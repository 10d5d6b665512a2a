"""Optimizers for tables of embeddings, where a batch touches few rows."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.embeddings import scale_by_adam_catching_up, scale_by_rowwise_rss
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


def _adam(
    name: str,
    catch_up: bool,
    eps_before_correction: bool,
    b1: float,
    b2: float,
    eps: float,
    eps_root: float,
    mu_dtype: DType,
) -> Any:
    """Return Adam's rule, which catches up or does not."""
    if not eps_before_correction:
        kind = scale_by_adam_catching_up if catch_up else scale_by_adam
        return kind(b1, b2, eps, eps_root, mu_dtype)
    for field, value in (("catch_up", catch_up), ("eps_root", eps_root)):
        if value:
            raise ValueError(f"{name}: {field} cannot be set together with eps_before_correction.")
    return scale_by_tf_adam(b1, b2, eps, mu_dtype)


@optimizer
def lazy_adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    catch_up: bool = False,
    eps_before_correction: bool = False,
) -> chain:
    """LazyAdam: Adam on the rows that a row-sparse gradient touches; the others wait.

    A row that is not touched keeps its parameters and its moments; dense Adam would let the moments
    decay and keep moving the row. The bias corrections count every step. `adam` does the same with
    row-sparse gradients, and with dense gradients both are Adam. With `catch_up`, a row that is
    touched again makes up for the steps that it missed, at the current learning rate, and comes
    close to where dense Adam would have moved it; see `scale_by_adam_catching_up`.

    Args:
      catch_up: whether rows make up for missed steps. If so, b1 must be less than sqrt(b2).
      eps_before_correction: whether eps is added to the root before that is corrected, as in
        TensorFlow and in PyTorch's `SparseAdam`; see `scale_by_tf_adam`. Not with catch_up or
        eps_root. Keyword-only.

    See `scale_by_adam` and `scale_by_learning_rate` for the other arguments.

    Raises:
      ValueError: with catch_up, if b1 is not less than sqrt(b2); with eps_before_correction, if
        catch_up or eps_root is set.

    Reference: TensorFlow, tf.contrib.opt.LazyAdamOptimizer, and tfa.optimizers.LazyAdam of
    TensorFlow Addons; Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.
    """
    adam = b1, b2, eps, eps_root, mu_dtype
    direction = _adam("lazy_adam", catch_up, eps_before_correction, *adam)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def lazy_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    *,
    catch_up: bool = False,
    eps_before_correction: bool = False,
) -> chain:
    """LazyAdam with decoupled weight decay, on the rows that a row-sparse gradient touches.

    A row decays once at every step that touches it, but not in between, and not for the steps that
    `catch_up` makes up for. Frequent rows of a table therefore decay more than rare ones. With
    dense gradients it is AdamW.

    Args:
      catch_up: whether rows make up for missed steps, as in `lazy_adam`. If so, b1 must be less
        than sqrt(b2).
      eps_before_correction: as in `lazy_adam`. Keyword-only.

    See `adamw` for the other arguments.

    Raises:
      ValueError: with catch_up, if b1 is not less than sqrt(b2); with eps_before_correction, if
        catch_up or eps_root is set.

    Reference: TensorFlow, tf.contrib.opt.LazyAdamOptimizer; Loshchilov and Hutter, Decoupled Weight
    Decay Regularization, 2019, Algorithm 2.
    """
    adam = b1, b2, eps, eps_root, mu_dtype
    direction = _adam("lazy_adamw", catch_up, eps_before_correction, *adam)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def rowwise_adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-8,
) -> chain:
    """Row-wise Adagrad: one sum of mean squares for each row, instead of one for each entry.

    For a table with rows of d entries, the state is 1/d the size of Adagrad's. As in Adagrad, a
    row-sparse gradient gives the same steps as the dense one. The defaults are FBGEMM's.

    See `scale_by_rowwise_rss` and `scale_by_learning_rate` for the arguments.

    Reference: Gupta, Bengio and Weston, Training Highly Multiclass Classifiers, 2014; Mudigere et
    al., Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation
    Models, 2022; FBGEMM, exact row-wise Adagrad.
    """
    return chain(
        scale_by_rowwise_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate)
    )
