"""Vocabulary head: scores of rows for each token."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Load, Objective, Vocabulary, WeightConverter
from paribus_objective.vocabulary_head import has_vocabulary_head

Build = Callable[..., Objective]
WHOLE = ["bias", "dense.bias", "dense.weight", "norm.bias", "norm.weight"]
HEADED: Mapping[str, list[str]] = {
    "mlm": WHOLE,
    "sbo": WHOLE,
    "emd": [*WHOLE, "places.weight"],
    "permutation": ["bias"],
    "clm": [],
    "span-corruption": [],
}


@pytest.mark.parametrize("name", HEADED)
def test_tensors_keep_the_names_of_checkpoints(name: str, build: Build, vocabulary: Vocabulary) -> None:
    objective = build(name, vocabulary)
    names = [path for path, _ in objective.named_parameters() if not path.startswith("boundary.")]
    assert sorted(names) == HEADED[name]
    assert has_vocabulary_head(objective)


@torch.no_grad()
def test_the_scores_equal_those_of_its_layers(build: Build, vocabulary: Vocabulary) -> None:
    objective = head = build("mlm", vocabulary)
    assert has_vocabulary_head(head)
    assert head.dense is not None
    assert head.bias is not None
    hidden, table = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(100, 8, dtype=torch.float64)

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(h, table, bias)

    head.bias.uniform_()
    logits = objective.logits(hidden, unembed)
    for b in range(2):
        for t in range(3):
            row = head.dense.weight @ hidden[b, t] + head.dense.bias
            row = 0.5 * row * (1 + torch.erf(row / 2**0.5))
            row = (row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt()
            torch.testing.assert_close(logits[b, t], table @ row + head.bias, rtol=0, atol=1e-9)


def test_the_cost_is_that_of_the_layers_before_the_table(build: Build, vocabulary: Vocabulary) -> None:
    load = Load(queries=16, keys=16, head_positions=5)
    assert build("mlm", vocabulary).cost(load).flops == 2 * 5 * 8 * 8
    assert build("mlm", vocabulary, table_width=4).cost(load).flops == 2 * 5 * 8 * 4
    assert build("clm", vocabulary).cost(load).flops == 0
    assert build("clm", vocabulary, table_width=4).cost(load).flops == 2 * 5 * 8 * 4


@torch.no_grad()
@pytest.mark.parametrize("name", ["mlm", "emd", "sbo", "permutation", "clm"])
def test_biases_of_common_tokens_are_kept_for_another_vocabulary(
    name: str, build: Build, vocabulary: Vocabulary
) -> None:
    options: dict[str, Any] = {"bias": True} if name == "clm" else {}
    objective, larger = build(name, vocabulary, **options), build(name, vocabulary._replace(size=110), **options)
    head = larger
    assert isinstance(objective, WeightConverter)
    assert has_vocabulary_head(head)
    assert head.bias is not None
    head.bias.uniform_()
    assert torch.equal(objective.convert_weights(larger)["bias"].value, head.bias[:100])
    assert objective.convert_weights(objective) == {}
    assert objective.convert_weights(nn.Identity()) == {}
