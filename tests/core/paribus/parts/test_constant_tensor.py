"""Constant tensors: one copy for each device and dtype, usable with gradients and in traces."""

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from paribus import ConstantTensor


def test_numbers_are_copied_once_to_a_device() -> None:
    constant = ConstantTensor([0.1, 0.2], torch.float64)
    x = torch.zeros(2)
    assert constant.like(x) is constant.like(torch.ones(3))
    assert constant.like(x).tolist() == [0.1, 0.2]
    assert constant.like(x, torch.float32).dtype == torch.float32
    assert constant.like(x, torch.float32) is constant.like(x, torch.float32)


def test_a_copy_of_inference_mode_has_gradients_later() -> None:
    constant = ConstantTensor([[1, 2], [3, 4]], torch.float32)
    with torch.inference_mode():
        constant.like(torch.zeros(2))
    x = torch.ones(2, 2, requires_grad=True)
    (x * constant.like(x)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1, 2], [3, 4]]


def test_tensors_without_values_are_not_kept() -> None:
    constant = ConstantTensor([1, 2], torch.long)
    assert constant.like(torch.zeros(2, device="meta")).is_meta
    with FakeTensorMode():
        assert isinstance(constant.like(torch.zeros(2)), FakeTensor)
    assert type(constant.like(torch.zeros(2))) is torch.Tensor


def test_a_compiled_function_has_the_numbers() -> None:
    constant = ConstantTensor([1, 2], torch.float32)
    compiled = torch.compile(lambda x: x + constant.like(x), backend="aot_eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [1, 2]


def test_a_copied_component_has_a_constant_of_its_own() -> None:
    constant = ConstantTensor([1.0], torch.float32)
    constant.like(torch.zeros(1))
    assert copy.deepcopy(constant).like(torch.zeros(1)).tolist() == [1.0]
