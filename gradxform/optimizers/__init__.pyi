# Written by `make tables`; do not edit.
from gradxform.optimizers.adago import adago as adago
from gradxform.optimizers.adahessian import adahessian as adahessian
from gradxform.optimizers.adai import adai as adai
from gradxform.optimizers.adalite import adalite as adalite
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
    radam as radam,
    ranger as ranger,
    yogi as yogi,
)
from gradxform.optimizers.adam_mini import adam_mini as adam_mini
from gradxform.optimizers.adanorm import adanorm as adanorm
from gradxform.optimizers.adaptive import (
    adadelta as adadelta,
    adagrad as adagrad,
    kate as kate,
    reg_adagrad as reg_adagrad,
    rmsprop as rmsprop,
    sparse_adagrad as sparse_adagrad,
)
from gradxform.optimizers.ademamix import (
    ademamix as ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradxform.optimizers.adopt import acprop as acprop, adopt as adopt
from gradxform.optimizers.agreement import (
    add_sign as add_sign,
    grad_variance_scaled as grad_variance_scaled,
    grams as grams,
    neural_optimizer1 as neural_optimizer1,
    power_sign as power_sign,
)
from gradxform.optimizers.amos import amos as amos
from gradxform.optimizers.apollo import apollo as apollo, apollo_mini as apollo_mini
from gradxform.optimizers.aurora import aurora as aurora
from gradxform.optimizers.by_name import OPTIMIZERS as OPTIMIZERS
from gradxform.optimizers.came import came as came
from gradxform.optimizers.cautious import (
    cautious_adamw as cautious_adamw,
    cautious_lion as cautious_lion,
)
from gradxform.optimizers.cocob import cocob as cocob
from gradxform.optimizers.dadapt import dadapt_adamw as dadapt_adamw, prodigy as prodigy
from gradxform.optimizers.dion import dion as dion, dion2 as dion2
from gradxform.optimizers.distributed_shampoo import distributed_shampoo as distributed_shampoo
from gradxform.optimizers.dog import dog as dog, dowg as dowg
from gradxform.optimizers.embeddings import (
    lazy_adam as lazy_adam,
    lazy_adamw as lazy_adamw,
    rowwise_adagrad as rowwise_adagrad,
)
from gradxform.optimizers.factored import adafactor as adafactor, sm3 as sm3
from gradxform.optimizers.galore import galore as galore
from gradxform.optimizers.ggt import ggt as ggt
from gradxform.optimizers.gradient_change import (
    adan as adan,
    diffgrad as diffgrad,
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    optimistic_gradient_descent as optimistic_gradient_descent,
    rprop as rprop,
)
from gradxform.optimizers.grokfast import grokfast_adamw as grokfast_adamw
from gradxform.optimizers.input_moments import newton_muon as newton_muon
from gradxform.optimizers.kl_shampoo import kl_shampoo as kl_shampoo
from gradxform.optimizers.laprop import laprop as laprop
from gradxform.optimizers.layerwise import (
    fromage as fromage,
    lamb as lamb,
    lars as lars,
    novograd as novograd,
    sgd_sai as sgd_sai,
)
from gradxform.optimizers.lbfgs import lbfgs as lbfgs
from gradxform.optimizers.lbfgs_steps import lbfgs_steps as lbfgs_steps
from gradxform.optimizers.lbfgsb import lbfgsb as lbfgsb
from gradxform.optimizers.madgrad import madgrad as madgrad
from gradxform.optimizers.mars import mars_adamw as mars_adamw
from gradxform.optimizers.momentum import aggmo as aggmo, sgd as sgd, sgdw as sgdw
from gradxform.optimizers.momo import momo as momo, momo_adam as momo_adam
from gradxform.optimizers.muon import muon as muon
from gradxform.optimizers.muonclip import muonclip as muonclip
from gradxform.optimizers.muown import muown as muown
from gradxform.optimizers.newton_cg import newton_cg as newton_cg
from gradxform.optimizers.noise import noisy_sgd as noisy_sgd
from gradxform.optimizers.normalization import normalized_sgd as normalized_sgd
from gradxform.optimizers.normuon import adamuon as adamuon, normuon as normuon
from gradxform.optimizers.optimizer import optimizer as optimizer
from gradxform.optimizers.pnm import adapnm as adapnm, pnm as pnm
from gradxform.optimizers.privacy import dpsgd as dpsgd
from gradxform.optimizers.proximal import (
    adagrad_da as adagrad_da,
    ftrl as ftrl,
    proximal_adagrad as proximal_adagrad,
    proximal_sgd as proximal_sgd,
)
from gradxform.optimizers.psgd import psgd_kron as psgd_kron
from gradxform.optimizers.quasi_hyperbolic import qhadam as qhadam, qhm as qhm
from gradxform.optimizers.racs import racs as racs
from gradxform.optimizers.radial import adamp as adamp, sgdp as sgdp
from gradxform.optimizers.ranger import ranger21 as ranger21
from gradxform.optimizers.schedule_free import (
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_prodigy as schedule_free_prodigy,
    schedule_free_radam as schedule_free_radam,
    schedule_free_sgd as schedule_free_sgd,
)
from gradxform.optimizers.schedule_free_plus import schedule_free_plus as schedule_free_plus
from gradxform.optimizers.scion import scion as scion
from gradxform.optimizers.shampoo import shampoo as shampoo
from gradxform.optimizers.sign import (
    focus as focus,
    lion as lion,
    sign_sgd as sign_sgd,
    signum as signum,
    tiger as tiger,
)
from gradxform.optimizers.soap import soap as soap
from gradxform.optimizers.sophia import sophia as sophia
from gradxform.optimizers.spam import spam as spam, stable_spam as stable_spam
from gradxform.optimizers.spectral_sphere import spectral_sphere as spectral_sphere
from gradxform.optimizers.spectrum import (
    contra_muon as contra_muon,
    muon_eq as muon_eq,
    polar_grad as polar_grad,
    soft_muon as soft_muon,
)
from gradxform.optimizers.splus import splus as splus
from gradxform.optimizers.stable_adam import adam_atan2 as adam_atan2, stable_adamw as stable_adamw
from gradxform.optimizers.step_size import polyak_sgd as polyak_sgd
from gradxform.optimizers.stiefel import spel as spel
from gradxform.optimizers.tam import adatam as adatam, tam as tam
from gradxform.optimizers.toward_sgd import adabound as adabound, padam as padam
