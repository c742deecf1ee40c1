"""Patch embedding of images (`patches`), ViT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import AddPositions, Cost, Embedding, EmbeddingTraits, Load, Norms, Range, Role, Shape, Stream, TokenLayout

HALF = 127.5  # maps pixel values of 0 to 255 to -1 to 1


@final
class Patches(Embedding):
    """Patch embedding of images (Dosovitskiy et al. 2021).

    "An Image is Worth 16x16 Words". Pixel values of 0 to 255 become -1 to 1. The first token is a learned vector for
    the whole image, `cls`; the patches follow, line by line. Positions are added to all of them, then dropout is
    applied. There is no vocabulary to score. The projection equals a convolution whose stride is its width; its columns
    are channel, line and column. (B, P) values, channels last, P = image x image x channels, -> (B, 1 + (image /
    patch)^2, D).
    """

    traits: ClassVar[EmbeddingTraits] = {
        "modality": "images",
        "options_from_corpus": {"image": "same", "channels": "same"},
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"cls": "bias"}  # starts at 0, as in the paper's code

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        image: Annotated[int, "height and width of an image in pixels", Range(1)] = 224,
        channels: Annotated[int, "values of a pixel: 1 for grey, 3 for colour", Range(1)] = 3,
        patch: Annotated[int, "height and width of a patch in pixels", Range(1)] = 16,
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"`patch` must divide `image` ({image}), got {patch}; valid: {_divisors(image)}")
        self.across, self.patch, self.channels = image // patch, patch, channels
        tokens = 1 + self.across**2
        if shape.length != tokens:
            grid = f"{self.across} x {self.across} patches and `cls`"
            raise ValueError(f"`dims.length` must be {tokens} ({grid}), got {shape.length}")
        self.values_per_example = image * image * channels
        self.patches = nn.Linear(channels * patch * patch, shape.width)
        self.cls = nn.Parameter(torch.empty(shape.width))
        self.dropout = shape.dropout

    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        patches = self.patches(self.cut(stream.tokens))
        x = torch.cat([self.cls.expand(len(patches), 1, -1), patches], dim=1)
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        x = place(x, positions)
        x = functional.dropout(x, self.dropout) if self.dropout and self.training else x
        return x, TokenLayout(positions, index_positions=positions)

    def cut(self, values: Tensor) -> Tensor:
        """Cut images into patches: (B, P) -> (B, (image / patch)^2, channels x patch x patch), from -1 to 1."""
        if values.shape[1] != self.values_per_example:
            side = self.across * self.patch
            expected = f"an image of {side} x {side} x {self.channels} has {self.values_per_example} values"
            raise ValueError(f"{expected}, got {values.shape[1]}")
        grid = values.to(self.cls.dtype).view(-1, self.across, self.patch, self.across, self.patch, self.channels)
        return grid.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2) / HALF - 1

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        raise ValueError("embedding `patches` has no vocabulary to score")

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * self.across**2 * self.patches.weight.numel())


def _divisors(size: int) -> str:
    return ", ".join(str(number) for number in range(1, size + 1) if size % number == 0)
