"""Schedule-Free AdamW, compared with pytorch-optimizer's: the weights of its steps, and those that it evaluates."""

import pytest
import torch
from torch import Tensor, nn

from paribus import TrainedTensor
from paribus_optim.schedule_free import ScheduleFree


def test_steps_and_averages_equal_those_of_the_library(start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    """Over rates that rise and fall, as a schedule has them; only matrices decay."""
    library = pytest.importorskip("pytorch_optimizer")
    own, other = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    component = ScheduleFree(lr=0.02, beta1=0.8, beta2=0.9, weight_decay=0.3)
    optimizer = component.build([TrainedTensor.of(each, "weight" if each.ndim > 1 else "bias") for each in own])
    groups = [{"params": other[:2], "weight_decay": 0.3}, {"params": other[2:], "weight_decay": 0.0}]
    reference = library.ScheduleFreeAdamW(groups, lr=0.02, betas=(0.8, 0.9))
    for step_gradients, rate in zip(gradients, (0.01, 0.02, 0.03, 0.01, 0.0), strict=True):
        for each, parameters in ((optimizer, own), (reference, other)):
            for group in each.param_groups:
                group["lr"] = rate
            for parameter, gradient in zip(parameters, step_gradients, strict=True):
                parameter.grad = gradient.clone()
            each.step()
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    averages = component.evaluated_weights(optimizer)
    reference.eval()
    torch.testing.assert_close([averages[parameter] for parameter in own], other, rtol=0, atol=1e-12)
    assert all(not torch.allclose(averages[parameter], parameter, atol=1e-3) for parameter in own)


def test_the_average_of_a_constant_rate_is_the_mean_of_z(start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    parameter, history = nn.Parameter(start[0].clone()), list[Tensor]()
    component = ScheduleFree(lr=0.1)
    optimizer = component.build([TrainedTensor.of(parameter, "weight")])
    assert component.evaluated_weights(optimizer) == {}  # before the first step, those of the model
    for step_gradients in gradients:
        parameter.grad = step_gradients[0].clone()
        optimizer.step()
        history.append(optimizer.state[parameter]["z"].clone())
    expected = torch.stack(history).mean(0)
    torch.testing.assert_close(component.evaluated_weights(optimizer)[parameter], expected, rtol=0, atol=1e-12)
