"""What the witness of a script records of its optimizer, and of weights that change after it has seen them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paribus.program.witness import Witness
from paribus.program.witness_file import WITNESS_FILE, read_witness


class Run:
    """A script that trains a small model."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder, self.model = folder, nn.Linear(3, 1)
        self.witness = Witness(str(folder / WITNESS_FILE))
        self.witness.model(self.model)

    def train(self, optimizer: Any, step: Any = None, updates: int = 1) -> Any:
        """Return what the witness has recorded after five batches."""
        for _ in range(5):
            x = torch.ones(2, 3)
            self.witness.batch(x, x)
            for _ in range(updates):
                self.model(x).sum().backward()
                (step or optimizer.step)()
        self.witness._write_batches()
        return read_witness(self.folder)


@pytest.fixture
def new_run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_updates_options_and_rates_of_an_optimizer_are_recorded(new_run: Run) -> None:
    groups: list[dict[str, Any]] = [
        {"params": [new_run.model.weight]},
        {"params": [new_run.model.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def step() -> None:
        optimizer.step()
        scheduler.step()

    seen = new_run.train(optimizer, step, updates=2)["optimizers"]
    assert seen["updates"] == 10
    assert [group["weight_decay"] for group in seen["options"]] == [0.01, 0.0]
    first = seen["options"][0]
    assert (first["optimizer"], first["lr"], first["betas"]) == ("AdamW", 0.5, [0.9, 0.999])
    assert not {"initial_lr", "params"} & set(first)
    assert {count: rates[0] for count, rates in seen["rates"].items()} == {
        "1": 0.5,
        "2": 0.25,
        "4": 0.0625,
        "8": 0.00390625,
    }


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_update_is_no_error_and_not_recorded(new_run: Run) -> None:
    optimizer = torch.optim.SGD(new_run.model.parameters(), lr=0.1)
    seen = new_run.train(optimizer, torch.compile(optimizer.step, backend="eager"))
    assert seen["optimizers"]["updates"] == 0


@pytest.mark.parametrize("way", ["in place", "another module"])
def test_weights_that_change_before_the_first_batch_are_those_that_count(new_run: Run, way: str) -> None:
    (initial,) = (read_witness(new_run.folder)["tensors"]["weight"]["value"],)
    with torch.no_grad():
        if way == "in place":
            new_run.model.weight += 1
        else:
            new_run.model.weight = nn.Parameter(torch.ones(1, 3))
    seen = new_run.train(torch.optim.SGD(new_run.model.parameters(), lr=0.1))
    assert seen["tensors"]["weight"]["value"] != initial
    assert seen["late"] == 0


def test_an_update_before_the_first_batch_is_no_change_of_weights(new_run: Run) -> None:
    initial = read_witness(new_run.folder)["tensors"]
    new_run.model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(new_run.model.parameters(), lr=0.1).step()
    new_run.witness.batch(torch.ones(1))
    assert read_witness(new_run.folder)["tensors"] == initial
