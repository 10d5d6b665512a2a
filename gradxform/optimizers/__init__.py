"""The well-known optimizers: each is one `return chain(...)`, in the file named like its rule's."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.optimizers.adago import *
    from gradxform.optimizers.adahessian import *
    from gradxform.optimizers.adai import *
    from gradxform.optimizers.adalite import *
    from gradxform.optimizers.adam import *
    from gradxform.optimizers.adam_kin import *
    from gradxform.optimizers.adam_mini import *
    from gradxform.optimizers.adanorm import *
    from gradxform.optimizers.adaptive import *
    from gradxform.optimizers.ademamix import *
    from gradxform.optimizers.adopt import *
    from gradxform.optimizers.agreement import *
    from gradxform.optimizers.amos import *
    from gradxform.optimizers.apollo import *
    from gradxform.optimizers.by_name import *
    from gradxform.optimizers.came import *
    from gradxform.optimizers.cautious import *
    from gradxform.optimizers.cocob import *
    from gradxform.optimizers.dadapt import *
    from gradxform.optimizers.dion import *
    from gradxform.optimizers.distributed_shampoo import *
    from gradxform.optimizers.dog import *
    from gradxform.optimizers.embeddings import *
    from gradxform.optimizers.factored import *
    from gradxform.optimizers.galore import *
    from gradxform.optimizers.ggt import *
    from gradxform.optimizers.gradient_change import *
    from gradxform.optimizers.grokfast import *
    from gradxform.optimizers.kl_shampoo import *
    from gradxform.optimizers.laprop import *
    from gradxform.optimizers.layerwise import *
    from gradxform.optimizers.lbfgs import *
    from gradxform.optimizers.lbfgs_steps import *
    from gradxform.optimizers.lbfgsb import *
    from gradxform.optimizers.madgrad import *
    from gradxform.optimizers.mars import *
    from gradxform.optimizers.momentum import *
    from gradxform.optimizers.momo import *
    from gradxform.optimizers.muon import *
    from gradxform.optimizers.muonclip import *
    from gradxform.optimizers.newton_cg import *
    from gradxform.optimizers.noise import *
    from gradxform.optimizers.normalization import *
    from gradxform.optimizers.normuon import *
    from gradxform.optimizers.optimizer import *
    from gradxform.optimizers.pnm import *
    from gradxform.optimizers.privacy import *
    from gradxform.optimizers.proximal import *
    from gradxform.optimizers.psgd import *
    from gradxform.optimizers.quasi_hyperbolic import *
    from gradxform.optimizers.racs import *
    from gradxform.optimizers.radial import *
    from gradxform.optimizers.ranger import *
    from gradxform.optimizers.schedule_free import *
    from gradxform.optimizers.scion import *
    from gradxform.optimizers.shampoo import *
    from gradxform.optimizers.sign import *
    from gradxform.optimizers.soap import *
    from gradxform.optimizers.sophia import *
    from gradxform.optimizers.spam import *
    from gradxform.optimizers.spectral_sphere import *
    from gradxform.optimizers.splus import *
    from gradxform.optimizers.stable_adam import *
    from gradxform.optimizers.step_size import *
    from gradxform.optimizers.tam import *
    from gradxform.optimizers.toward_sgd import *
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
