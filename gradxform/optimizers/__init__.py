"""The famous names: each is one `return chain(...)`."""

from gradxform.optimizers.adagrad import (
    adagrad as adagrad,
    reg_adagrad as reg_adagrad,
    rmsprop as rmsprop,
)
from gradxform.optimizers.adam import (
    adam as adam,
    adamw as adamw,
    amsgrad as amsgrad,
    nadam as nadam,
    nadamw as nadamw,
)
from gradxform.optimizers.adam_kin import (
    adabelief as adabelief,
    adamax as adamax,
    adamaxw as adamaxw,
    adan as adan,
    radam as radam,
    yogi as yogi,
)
from gradxform.optimizers.ademamix import (
    ademamix as ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradxform.optimizers.adopt import (
    acprop as acprop,
    adopt as adopt,
)
from gradxform.optimizers.agreement import (
    add_sign as add_sign,
    grad_variance_scaled as grad_variance_scaled,
    neural_optimizer1 as neural_optimizer1,
    power_sign as power_sign,
)
from gradxform.optimizers.base import OPTIMIZERS as OPTIMIZERS, optimizer as optimizer
from gradxform.optimizers.games import (
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    optimistic_gradient_descent as optimistic_gradient_descent,
)
from gradxform.optimizers.layerwise import lamb as lamb, lars as lars
from gradxform.optimizers.lazy import (
    lazy_adam as lazy_adam,
    lazy_adamw as lazy_adamw,
    rowwise_adagrad as rowwise_adagrad,
    sparse_adagrad as sparse_adagrad,
)
from gradxform.optimizers.learning_rate_free import (
    cocob as cocob,
    dadapt_adamw as dadapt_adamw,
    dog as dog,
    dowg as dowg,
    momo as momo,
    momo_adam as momo_adam,
    prodigy as prodigy,
)
from gradxform.optimizers.madgrad import madgrad as madgrad
from gradxform.optimizers.matrix import (
    galore as galore,
    ggt as ggt,
    muon as muon,
    shampoo as shampoo,
)
from gradxform.optimizers.memory import (
    adafactor as adafactor,
    sm3 as sm3,
)
from gradxform.optimizers.privacy import dpsgd as dpsgd
from gradxform.optimizers.proximal import (
    adagrad_da as adagrad_da,
    ftrl as ftrl,
    proximal_adagrad as proximal_adagrad,
    proximal_sgd as proximal_sgd,
)
from gradxform.optimizers.sgd import (
    lion as lion,
    normalized_sgd as normalized_sgd,
    sgd as sgd,
    sgdw as sgdw,
    signum as signum,
)
from gradxform.optimizers.signs import (
    noisy_sgd as noisy_sgd,
    rprop as rprop,
    sign_sgd as sign_sgd,
)
from gradxform.optimizers.sophia import sophia as sophia
from gradxform.optimizers.step_size import (
    adadelta as adadelta,
    fromage as fromage,
    novograd as novograd,
    polyak_sgd as polyak_sgd,
)
