"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Optimizer, Schedule, hookimpl, registered
from paribus_optim.adadelta import Adadelta as adadelta
from paribus_optim.adafactor import Adafactor as adafactor
from paribus_optim.adagrad import Adagrad as adagrad
from paribus_optim.adamw import AdamW as adamw
from paribus_optim.ademamix import AdEMAMix as ademamix
from paribus_optim.constant import Constant as constant
from paribus_optim.halved import Halved as halved
from paribus_optim.inverse_sqrt import InverseSqrt as inverse_sqrt
from paribus_optim.layer_adaptive_moments import LayerAdaptiveMoments as lamb
from paribus_optim.lion import Lion as lion
from paribus_optim.muon import Muon as muon
from paribus_optim.normuon import NorMuon as normuon
from paribus_optim.polynomial import Polynomial as polynomial
from paribus_optim.schedule_free import ScheduleFree as schedule_free
from paribus_optim.soap import Soap as soap
from paribus_optim.stable_adamw import StableAdamW as stable_adamw
from paribus_optim.stochastic_gradient_descent import StochasticGradientDescent as sgd
from paribus_optim.trapezoid import Trapezoid as trapezoid
from paribus_optim.warmup_cosine import WarmupCosine as warmup_cosine


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return registered(globals(), Optimizer)


@hookimpl
def schedule() -> Mapping[str, type[Schedule]]:
    return registered(globals(), Schedule)
