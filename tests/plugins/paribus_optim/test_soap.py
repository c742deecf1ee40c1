"""SOAP, compared with pytorch-optimizer's from its second step on, over several updates of the bases."""

import pytest
import torch
from torch import nn

from paribus import TrainedTensor
from paribus_optim.soap import Soap


@pytest.mark.parametrize(("shape", "max_side"), [((8, 8), 8), ((8, 5), 7)])  # what determines all eigenvectors
def test_steps_equal_those_of_the_library(shape: tuple[int, int], max_side: int) -> None:
    library = pytest.importorskip("pytorch_optimizer")
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(8, 8, generator=generator)[:, : shape[1]] for _ in range(9)]
    own = nn.Parameter(torch.randn(shape, generator=generator))
    component = Soap(lr=0.02, beta1=0.9, beta2=0.8, frequency=2, max_side=max_side, weight_decay=0.0)
    optimizer = component.build([TrainedTensor.of(own, "weight")])
    other, start = nn.Parameter(own.detach().clone()), own.detach().clone()
    reference = library.SOAP(
        [other], lr=0.02, betas=(0.9, 0.8), precondition_frequency=2, max_precondition_dim=max_side, weight_decay=0.0
    )
    for step, gradient in enumerate(gradients):
        own.grad, other.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        if step == 0:  # the library takes no step
            torch.testing.assert_close(own, start - 0.02 * gradient.sign())
            with torch.no_grad():
                other.copy_(own)
    torch.testing.assert_close(own, other, rtol=0, atol=2e-4)
    assert (own - start).abs().max() > 0.05


def test_a_stack_of_matrices_is_trained_as_its_matrices() -> None:
    start = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = [nn.Parameter(start.clone()), *(nn.Parameter(matrix.clone()) for matrix in start)]
    optimizer = Soap(frequency=1, lr=0.02).build([TrainedTensor.of(each, "inner") for each in parameters])
    for step in range(5):
        gradients = torch.cos(start * (step + 1))
        for parameter, gradient in zip(parameters, [gradients, *gradients], strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(parameters[0], torch.stack([*parameters[1:]]), rtol=0, atol=1e-9)
