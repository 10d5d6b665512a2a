"""Training loops: gradients, steps and a holder of the state as in TensorFlow; `minimize`.

All but `Optimizer` are functions of values and states; `Optimizer` keeps one state, for notebooks.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.training.gradients import compute_gradients as compute_gradients
    from gradxform.training.holder import Optimizer as Optimizer
    from gradxform.training.layers.scan import scan_layers as scan_layers
    from gradxform.training.minimize import MinimizeResult as MinimizeResult, minimize as minimize
    from gradxform.training.step import apply_gradients as apply_gradients, make_step as make_step
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
