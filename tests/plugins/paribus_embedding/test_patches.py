"""Patch embedding: patches, `cls`, and missing vocabulary."""

import itertools
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus import Shape, SpecError, Stream
from paribus.assembly.build import build
from paribus.kernels import KERNELS
from paribus.registry import installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus_embedding.patches import Patches
from paribus_norm.layer_norm import LayerNorm

IMAGE, CHANNELS, PATCH, WIDTH = 6, 3, 2, 5
ROWS = 1 + (IMAGE // PATCH) ** 2


def patches(positions: int = ROWS, dropout: float = 0.0, **options: Any) -> Patches:
    shape = Shape(width=WIDTH, heads=1, head_width=WIDTH, length=positions, vocabulary=257, layers=1, dropout=dropout)
    module = Patches(shape, lambda width=None: LayerNorm(width or WIDTH), image=IMAGE, channels=CHANNELS, patch=PATCH)
    if options:
        module = Patches(shape, lambda width=None: LayerNorm(width or WIDTH), **options)
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.double()


def images(count: int = 2) -> Tensor:
    values = IMAGE * IMAGE * CHANNELS
    return torch.randint(256, (count, values), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def embed(embedding: Patches, values: Tensor, place: Any = lambda x, positions: x) -> Tensor:
    x: Tensor = embedding(Stream(values), 0, place, None)[0]
    return x


def test_matches_the_paper_value_by_value() -> None:
    embedding, values = patches(), images()
    x = embed(embedding, values)
    weight = embedding.patches.weight.view(WIDTH, CHANNELS, PATCH, PATCH)
    image = values.view(-1, IMAGE, IMAGE, CHANNELS).double()
    for b, line, place, d in itertools.product(range(2), range(IMAGE // PATCH), range(IMAGE // PATCH), range(WIDTH)):
        expected = embedding.patches.bias[d].clone()
        for c, i, j in itertools.product(range(CHANNELS), range(PATCH), range(PATCH)):
            value = image[b, line * PATCH + i, place * PATCH + j, c] / 255
            expected = expected + weight[d, c, i, j] * (value - 0.5) / 0.5
        assert abs(x[b, 1 + line * (IMAGE // PATCH) + place, d] - expected) < 1e-12


def test_matches_a_convolution_with_the_same_weights() -> None:
    embedding, values = patches(), images()
    convolution = nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH).double()
    with torch.no_grad():
        convolution.weight.copy_(embedding.patches.weight.view_as(convolution.weight))
        convolution.bias.copy_(embedding.patches.bias)  # type: ignore[union-attr]  # it has one
    pixels = values.view(-1, IMAGE, IMAGE, CHANNELS).permute(0, 3, 1, 2).double() / 127.5 - 1
    expected = convolution(pixels).flatten(2).mT
    torch.testing.assert_close(embed(embedding, values)[:, 1:], expected, rtol=0, atol=1e-12)


def test_cls_comes_first_and_has_a_position() -> None:
    embedding, table = patches(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    plain = embed(embedding, images())
    placed = embed(embedding, images(), lambda x, positions: x + table[positions])
    torch.testing.assert_close(placed, plain + table)
    assert torch.equal(plain[0, 0], embedding.cls)
    assert torch.equal(plain[1, 0], embedding.cls)


def test_permuted_patches_give_permuted_embeddings() -> None:
    embedding, turned = patches(), torch.tensor([4, 0, 8, 1, 7, 2, 6, 3, 5])
    side = IMAGE // PATCH
    grid = images().view(-1, side, PATCH, side, PATCH, CHANNELS).permute(0, 1, 3, 2, 4, 5).flatten(1, 2)[:, turned]
    mixed = grid.unflatten(1, (side, side)).permute(0, 1, 3, 2, 4, 5).flatten(1)
    torch.testing.assert_close(embed(embedding, mixed)[:, 1:], embed(embedding, images())[:, 1:][:, turned])


def test_the_layout_has_positions_and_no_padding() -> None:
    rows = patches()(Stream(images()), 0, lambda x, positions: x, None)[1]
    assert rows.positions.tolist() == [list(range(ROWS))]
    assert rows.documents is None
    assert rows.order is None


def test_every_parameter_has_a_gradient_and_dropout_applies_in_training() -> None:
    embedding = patches(dropout=0.5)
    embed(embedding, images()).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in embedding.parameters())
    assert (embed(embedding, images()) == 0).any()
    assert torch.equal(embed(embedding.eval(), images()), embed(embedding, images()))


def test_images_of_another_size_are_rejected() -> None:
    with pytest.raises(ValueError, match="108 values, got 107"):
        embed(patches(), images()[:, 1:])


def test_scoring_tokens_is_rejected() -> None:
    with pytest.raises(ValueError, match="no vocabulary"):
        patches().unembed(torch.zeros(1, WIDTH))


@pytest.mark.parametrize(
    ("options", "positions", "words"),
    [
        ({"image": 6, "patch": 4}, ROWS, "got 4; valid: 1, 2, 3, 6"),
        (
            {"image": 6, "patch": 3},
            ROWS,
            "must be 5 .* got 10",
        ),
    ],
)
def test_invalid_sizes_are_rejected(options: dict[str, int], positions: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        patches(positions, **options)


def test_a_spec_with_another_length_is_rejected() -> None:
    registry = installed(no_plugins=True)
    spec = resolved("vit-tiny", "dims.length=16", registry=registry)
    with raises_problem(SpecError, "component-error", "17"):
        build(spec, registry, Vocabulary(257, {"mask": 256}), KERNELS)
