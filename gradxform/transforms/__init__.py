"""Transforms: each changes updates by a rule of its own. One family a file.

The names of `optax.transforms` can be had from here, those of wrappers too.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.transforms.accumulation import *
    from gradxform.transforms.adago import *
    from gradxform.transforms.adahessian import *
    from gradxform.transforms.adai import *
    from gradxform.transforms.adalite import *
    from gradxform.transforms.adam import *
    from gradxform.transforms.adam_kin import *
    from gradxform.transforms.adam_mini import *
    from gradxform.transforms.adanorm import *
    from gradxform.transforms.adaptive import *
    from gradxform.transforms.ademamix import *
    from gradxform.transforms.adopt import *
    from gradxform.transforms.agreement import *
    from gradxform.transforms.amos import *
    from gradxform.transforms.apollo import *
    from gradxform.transforms.came import *
    from gradxform.transforms.clipping import *
    from gradxform.transforms.cocob import *
    from gradxform.transforms.constraints import *
    from gradxform.transforms.counts import *
    from gradxform.transforms.curvature_diagonal import *
    from gradxform.transforms.dadapt import *
    from gradxform.transforms.densify import *
    from gradxform.transforms.dion import *
    from gradxform.transforms.dion2 import *
    from gradxform.transforms.dog import *
    from gradxform.transforms.embeddings import *
    from gradxform.transforms.factored import *
    from gradxform.transforms.ggt import *
    from gradxform.transforms.gradient_change import *
    from gradxform.transforms.grokfast import *
    from gradxform.transforms.kept_norms import *
    from gradxform.transforms.kl_shampoo import *
    from gradxform.transforms.laprop import *
    from gradxform.transforms.layerwise import *
    from gradxform.transforms.lbfgs.lbfgs import *
    from gradxform.transforms.lbfgs.lbfgs_steps import *
    from gradxform.transforms.lbfgs.lbfgsb import *
    from gradxform.transforms.lbfgs.line_search import *
    from gradxform.transforms.lbfgs.zoom import *
    from gradxform.transforms.madgrad import *
    from gradxform.transforms.mars import *
    from gradxform.transforms.matrices.dimensions import *
    from gradxform.transforms.matrices.rule import *
    from gradxform.transforms.momentum import *
    from gradxform.transforms.momo import *
    from gradxform.transforms.muon import *
    from gradxform.transforms.newton_cg import *
    from gradxform.transforms.noise import *
    from gradxform.transforms.norm_growth import *
    from gradxform.transforms.normalization import *
    from gradxform.transforms.normuon import *
    from gradxform.transforms.orthogonal import *
    from gradxform.transforms.orthograd import *
    from gradxform.transforms.plateau import *
    from gradxform.transforms.pnm import *
    from gradxform.transforms.privacy import *
    from gradxform.transforms.proximal import *
    from gradxform.transforms.psgd import *
    from gradxform.transforms.quasi_hyperbolic import *
    from gradxform.transforms.racs import *
    from gradxform.transforms.ranger import *
    from gradxform.transforms.scaling import *
    from gradxform.transforms.scion import *
    from gradxform.transforms.shampoo.distributed_shampoo import *
    from gradxform.transforms.shampoo.shampoo import *
    from gradxform.transforms.sign import *
    from gradxform.transforms.soap import *
    from gradxform.transforms.sophia import *
    from gradxform.transforms.spam import *
    from gradxform.transforms.spectral_sphere import *
    from gradxform.transforms.spikes import *
    from gradxform.transforms.splus import *
    from gradxform.transforms.stable_adam import *
    from gradxform.transforms.step_size import *
    from gradxform.transforms.tam import *
    from gradxform.transforms.tf_adam import *
    from gradxform.transforms.toward_sgd import *
    from gradxform.transforms.two_gradients import *

_public, __getattr__, __dir__ = _public_names(__name__)
if not TYPE_CHECKING:  # a checker would take it for the whole list
    __all__ = _public
