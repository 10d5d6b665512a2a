"""The famous names: each is one `return chain(...)`."""

from gradxform.optimizers.adagrad import adagrad as adagrad, rmsprop as rmsprop
from gradxform.optimizers.adam import (
    adam as adam,
    adamw as adamw,
    amsgrad as amsgrad,
    nadam as nadam,
    nadamw as nadamw,
)
from gradxform.optimizers.base import OPTIMIZERS as OPTIMIZERS, optimizer as optimizer
from gradxform.optimizers.layerwise import lamb as lamb, lars as lars
from gradxform.optimizers.sgd import lion as lion, sgd as sgd, signum as signum
