"""The optimizers of other libraries, number for number, for users who come from there.

Each module has a factory for every optimizer class of one library, with the name of the class
(without the suffix `Optimizer`), and its argument names and defaults. The factory returns a chain
of this library's parts that computes the same numbers as the original; its docstring names the
parts, and `print` shows them. Where the original reads the global step, the chain reads the extra
argument `step` of `update`, the number of earlier steps, or else counts the updates.

`flax` differs: it converts the state of Flax's `DynamicScale`.

In configs the name of a factory has its module in front: `keras:Adam`, `tf1:Momentum`.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.compat import (
        flax as flax,
        keras as keras,
        returnn as returnn,
        tf1 as tf1,
        tf_contrib as tf_contrib,
    )
    from gradxform.compat.keras import keras3 as keras3
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
