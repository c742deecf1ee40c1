"""`AutocastOperation`: float32 under autocast where the processor lacks an operation, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from paribus import AutocastOperation

CPU = torch.device("cpu")
STAND_IN = "ONEDNN_MAX_CPU_ISA"  # the variable that makes oneDNN leave out instructions of newer processors
BFLOAT16_LSTM = """
import torch
weights = [torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)]
state = torch.zeros(1, 1, 1)
with torch.autocast("cpu", torch.bfloat16):
    torch.lstm(torch.zeros(1, 1, 1), (state, state), weights, True, 1, 0.0, False, False, True)
"""


def product(tries: list[torch.dtype], lacking: tuple[torch.dtype, ...]) -> AutocastOperation:
    """Return a product that raises for some dtypes, and appends the dtype of each call to `tries`."""

    def multiply(x: Tensor, weights: list[Tensor], times: int) -> Tensor:
        result = x @ weights[0] * times
        tries.append(result.dtype)
        if result.dtype in lacking:
            raise RuntimeError("could not create a primitive descriptor")
        return result

    return AutocastOperation("product", multiply, lambda: (torch.zeros(1, 1), [torch.zeros(1, 1)], 1))


def arguments(dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return torch.ones(2, 3, dtype=dtype, requires_grad=True), [torch.ones(3, 2, dtype=dtype, requires_grad=True)], 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_missing_operation_computes_in_float32_with_its_gradient(dtype: torch.dtype) -> None:
    tries: list[torch.dtype] = []
    operation = product(tries, (dtype,))
    for inputs in (arguments(), arguments(dtype)):  # as a layer below returns them under autocast
        with torch.autocast("cpu", dtype):
            output = operation(*inputs)
            assert torch.is_autocast_enabled("cpu")
        assert output.dtype == torch.float32
        assert (output == 6).all()
        output.sum().backward()
        assert (inputs[0].grad == 4).all()
    assert tries == [dtype, torch.float32, torch.float32]  # it is tried once
    assert operation.float32_reason(CPU, dtype) == f"this processor has no product in {str(dtype)[6:]}"


def test_an_available_operation_is_unchanged() -> None:
    operation = product([], ())
    with torch.autocast("cpu", torch.bfloat16):
        assert operation(*arguments()).dtype == torch.bfloat16
    assert operation.float32_reason(CPU, torch.bfloat16) == ""


def test_it_is_tried_on_a_cpu_and_under_autocast_only() -> None:
    tries: list[torch.dtype] = []
    operation = product(tries, (torch.bfloat16,))
    operation(*arguments())
    with torch.autocast("cpu", torch.bfloat16):
        operation(torch.ones(2, 3, device="meta"), [torch.ones(3, 2, device="meta")], 2)
    assert operation.float32_reason(torch.device("cuda"), torch.bfloat16) == ""
    assert tries == [torch.float32, torch.float32]  # the two calls, without a trial


def test_fake_tensors_inference_and_checkpoints_do_not_change_the_trial() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = product([], (torch.bfloat16,))(x, [weight], 2)
        return result

    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 3), torch.ones(3, 2)).dtype == torch.float32
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 3), torch.ones(3, 2)).dtype == torch.float32
    x, (weight,), _ = arguments()
    operation = product([], (torch.bfloat16,))
    with torch.autocast("cpu", torch.bfloat16):
        output: Any = checkpoint(lambda x, weight: operation(x, [weight], 2), x, weight, use_reentrant=False)
    output.sum().backward()  # raises if the passes save different numbers of tensors
    assert weight.grad is not None


@pytest.mark.thorough
@pytest.mark.parametrize("isa", ["AVX2", "SSE41"])
def test_the_stand_in_for_an_older_processor_lacks_the_bfloat16_lstm(isa: str) -> None:
    """Without this, `make test-processors` would test the processor that it runs on."""
    environment = {**os.environ, STAND_IN: isa}
    result = subprocess.run(
        [sys.executable, "-c", BFLOAT16_LSTM], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "could not create a primitive" in result.stderr


@pytest.mark.processors
def test_this_process_stands_in_for_an_older_processor() -> None:
    assert STAND_IN in os.environ, "`make test-processors` sets it"
    with pytest.raises(RuntimeError, match="could not create a primitive"):
        exec(BFLOAT16_LSTM, {})
    assert torch.backends.cpu.get_cpu_capability() == os.environ["ATEN_CPU_CAPABILITY"].upper()
