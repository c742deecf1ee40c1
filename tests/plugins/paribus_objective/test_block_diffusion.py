"""Block diffusion: bounds by enumeration, and its limits, masked diffusion and the likelihood from left to right."""

import math
from itertools import combinations

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Draw, Stream
from paribus.errors import SpecError
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

TEXT = torch.tensor([[3, 7, 7, 1, 4]])
DIMS = "dims={width: 16, layers: 2, length: 5}"
VALIDATION = -1
MASK = 259


def model_of(preset: str, *changes: str) -> Model:
    model = paribus.assemble(paribus.spec(preset, DIMS, *changes)).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.3)
    return model


def bounds(model: Model, name: str, epoch: int, count: int, stream: Stream | None = None) -> Tensor:
    """Return the bound of the text in each of several examples, in nats per token."""
    body = stream or Stream(TEXT)
    values = []
    for number in range(count):
        index = torch.tensor([number])
        made = model.objective(name).corrupt({"body": body}, {}, Draw(3, epoch, index))
        term = model.terms(model.run(Batch(made.streams, {name: made.targets}, index)), [name])[f"{name}/bound"]
        values.append(term.total / term.count)
    return torch.stack(values).detach()


def surprise(model: Model, tokens: list[int], places: list[int], block: int) -> float:
    """Return the negative log-probability of the text at masked places, given the other tokens up to their block."""
    inputs = torch.tensor([[MASK if place in places else token for place, token in enumerate(tokens)]])
    order = torch.arange(len(tokens))[None] // block
    hidden = model.topology.run({"body": Stream(inputs, order=order)}, "body").hidden
    log_shares = model.objective("block-diffusion").logits(hidden, model.topology.embedding.unembed).log_softmax(-1)
    return -float(log_shares[0, places, torch.tensor(tokens)[places]].detach().sum())


def enumerated(model: Model, tokens: list[int], block: int) -> float:
    """Return the bound in nats per token: for each block, and masks of m tokens the mean of n / m times the loss."""
    total = 0.0
    for start in range(0, len(tokens), block):
        end = min(start + block, len(tokens))
        size = end - start
        for count in range(1, size + 1):
            losses = [
                surprise(model, tokens[:end], list(places), block) for places in combinations(range(start, end), count)
            ]
            total += sum(losses) / len(losses) / count
    return total / len(tokens)


@pytest.mark.parametrize("position", ["rope", "learned", "t5"])
def test_blocks_of_one_token_have_the_likelihood_from_left_to_right(position: str) -> None:
    """With no variance, in training and evaluation."""
    model = model_of("bd3lm-tiny", "objective.block=1", f"position={position}")
    expected = torch.full((3,), enumerated(model, TEXT[0].tolist(), 1), dtype=torch.float64)
    for epoch in (0, VALIDATION):
        torch.testing.assert_close(bounds(model, "block-diffusion", epoch, 3), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("block", [5, 8])
def test_one_block_is_masked_diffusion(block: int) -> None:
    """With the same draws, in training and evaluation."""
    model = model_of("bd3lm-tiny", f"objective.block={block}", "objective.schedule=cosine")
    encoder = model_of("mdlm-tiny", "objective.schedule=cosine")
    assert all(map(torch.equal, model.state_dict().values(), encoder.state_dict().values()))
    for epoch in (0, VALIDATION):
        losses = [
            bounds(each, name, epoch, 6) for each, name in ((model, "block-diffusion"), (encoder, "masked-diffusion"))
        ]
        torch.testing.assert_close(*losses)


@pytest.mark.parametrize("epoch", [0, VALIDATION])
@pytest.mark.parametrize("block", [2, 3])
def test_the_mean_of_the_loss_is_the_bound_by_enumeration(block: int, epoch: int) -> None:
    model = model_of("bd3lm-tiny", f"objective.block={block}")
    values = bounds(model, "block-diffusion", epoch, 200)
    expected, error = enumerated(model, TEXT[0].tolist(), block), float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 4 * error < 0.1 * expected


def test_blocks_begin_anew_in_each_document() -> None:
    """The bound of a packed text is that of its documents, with the tokens as weights; padding has no loss."""
    model = model_of("bd3lm-tiny", "objective.block=1", "dims.length=8")
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, paribus.PADDING]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    tokens = torch.tensor([[3, 7, 7, 1, 4, 9, 2, 0]])
    expected = (3 * enumerated(model, [3, 7, 7], 1) + 4 * enumerated(model, [1, 4, 9, 2], 1)) / 7
    value = bounds(model, "block-diffusion", 0, 1, Stream(tokens, documents=documents, positions=positions))
    torch.testing.assert_close(value[0].item(), expected, rtol=1e-6, atol=0)
    made = model.objective("block-diffusion").corrupt(
        {"body": Stream(tokens, documents=documents)}, {}, Draw(3, 0, torch.tensor([0]))
    )
    assert made.streams["body"].order is not None
    assert made.streams["body"].order[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5, -6, -7, -8]


@pytest.mark.parametrize("change", ["attention.scores.forget=true", "embedding.ngrams.longest=2"])
def test_what_counts_the_tokens_between_two_is_refused(change: str) -> None:
    with raises_problem(SpecError, "does-not-fit", "block-diffusion"):
        paribus.assemble(paribus.spec("bd3lm-tiny", change))
