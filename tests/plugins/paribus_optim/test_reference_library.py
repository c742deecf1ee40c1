"""Optimizers, compared with those of pytorch-optimizer over several steps."""

from typing import Any

import pytest
import torch
from torch import nn

from paribus import Role, TrainedTensor
from paribus_optim import optimizer

pytest.importorskip("pytorch_optimizer")

SHAPES: dict[Role, tuple[int, ...]] = {"weight": (8, 12), "embedding": (7, 4), "bias": (5,)}
DECAY = 0.3
OWN: dict[str, dict[str, Any]] = {
    "ademamix": {"beta1": 0.8, "beta2": 0.9, "beta3": 0.99, "alpha": 3.0, "warmup": 4},
    "lion": {"beta1": 0.8, "beta2": 0.95},
    "normuon": {"momentum": 0.9, "beta2": 0.8},
}


def reference(name: str, role: Role, parameter: nn.Parameter) -> Any:
    from pytorch_optimizer import AdEMAMix, Lion, NorMuon

    decay = 0.0 if role == "bias" else DECAY
    if name == "lion":
        return Lion([parameter], lr=0.02, betas=(0.8, 0.95), weight_decay=decay)
    if name == "ademamix":
        betas = (0.8, 0.9, 0.99)
        return AdEMAMix(
            [parameter], lr=0.02, betas=betas, alpha=3.0, t_alpha_beta3=4, weight_decay=decay, weight_decouple=True
        )
    group = {"params": [parameter], "use_muon": role == "weight"}
    rest = {"adamw_lr": 0.02, "adamw_betas": (0.9, 0.95), "adamw_wd": decay, "adamw_eps": 1e-8}
    return NorMuon([group], lr=0.02, momentum=0.9, beta2=0.8, weight_decay=decay, update_scale="match_rms", **rest)


@pytest.mark.parametrize("role", SHAPES)
@pytest.mark.parametrize("name", OWN)
def test_steps_equal_those_of_the_library(name: str, role: Role) -> None:
    start = torch.randn(SHAPES[role], generator=torch.Generator().manual_seed(0))
    own, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    kind: Any = optimizer()[name]
    component = kind(lr=0.02, weight_decay=DECAY, **OWN[name])
    optimizers = component.build([TrainedTensor.of(own, role)]), reference(name, role, other)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        own.grad = torch.randn(start.shape, generator=generator)
        other.grad = own.grad.clone()
        for each in optimizers:
            each.step()
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(own, start, atol=1e-2)
