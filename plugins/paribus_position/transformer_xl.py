"""Relative sinusoidal positions of Transformer-XL and XLNet (`transformer-xl`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import ConstantTensor, Cost, Load, Pair, Position, PositionTraits, Range, Shape
from paribus_position.position_cache import PositionCache, materialise


@final
class TransformerXL(Position):
    """Relative sinusoidal positions with learned query biases (Dai et al. 2019).

    "Transformer-XL", section 3.3. To q·k it adds u·k, q·r and v·r, where r is a projection of the sines and cosines of
    i - j. Each layer has its own projection; u and v belong to the layer, or are shared by all. With `segments` it adds
    q·e and w·e, where e is one vector for keys of the query's segment and another for all other keys: "XLNet" (Yang et
    al. 2019), section 2.5.

    If positions of queries and keys are consecutive, queries are multiplied with r of each distance once, and the
    scores are shifted into place. Otherwise, or with few queries, sin(i - j) and cos(i - j) are expanded in sines and
    cosines of i and of j, which works for any integers.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "content", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        untied: Annotated[bool, "learn u and v for each layer (XLNet)"] = False,
        segments: Annotated[bool, "add a score that depends on a shared segment of query and key (XLNet)"] = False,
        base: Annotated[float, "base of the wavelengths; the longest is 2 pi * base", Range(above=1)] = 10_000.0,
    ) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.untied = untied
        self.pairs = -(-shape.width // 2)  # rounded up for an odd width
        exponents = [2 * pair / shape.width for pair in range(self.pairs)]
        self.frequencies = ConstantTensor([base**-exponent for exponent in exponents], torch.float64)
        self.segments = segments
        self.leanings = None if untied else QueryBiases(shape, segments=segments)
        self._q_waves, self._k_waves = (PositionCache[Tensor]() for _ in range(2))

    def layer_part(self, shape: Shape) -> LayerProjection:
        return LayerProjection(shape, 2 * self.pairs, untied=self.untied, segments=self.segments)

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a content bias needs queries and keys"
        assert pair.k is not None, "a content bias needs queries and keys"
        assert isinstance(pair.position_part, LayerProjection), "each layer has its own projection"
        biases = pair.position_part.leanings or self.leanings
        assert biases is not None, "u and v belong to the layer or to the stack"
        u, v = (vector.to(pair.q.dtype).unsqueeze(-2) for vector in (biases.key, biases.distance))  # (H, 1, K)
        weight = pair.position_part.project.weight.to(pair.q.dtype).unflatten(0, (self.heads, -1))  # (H, K, W)
        queries, keys = pair.q_positions.shape[-1], pair.k_positions.shape[-1]
        # Checked before sizes are compared, because torch.compile would guard on those.
        offset = contiguous_offset(pair.q_positions, pair.k_positions)
        distance_scores = (
            self._rotate_scores(pair.q + v, weight, pair)
            if offset is None
            or queries > keys
            or self._rotation_flops(queries, keys) <= self._shift_flops(queries, keys)
            else self._shift_scores(pair.q + v, weight, offset, keys, pair.q_positions.device)
        )
        scores: Tensor = distance_scores + u @ pair.k.transpose(-1, -2)
        if biases.segment is not None:
            assert pair.position_part.segments is not None, "segment biases need segment vectors"
            scores = scores + segment_scores(
                pair.q + biases.segment.to(pair.q.dtype).unsqueeze(-2), pair.position_part.segments, pair
            )
        return (scores * pair.scale).to(pair.dtype)

    def _shift_scores(self, q: Tensor, weight: Tensor, offset: int, keys: int, device: torch.device) -> Tensor:
        """Score by distance and shift: (B, H, T, K), (H, K, W) -> (B, H, T, S).

        The first query is `offset` positions ahead of the first key.
        """
        queries = q.shape[-2]
        distances = offset + queries - 1 - torch.arange(queries + keys, device=device)
        waves = self._cached_waves(self._q_waves, distances.unsqueeze(0), q.dtype)[0]  # (T + S, W)
        r = waves @ weight.transpose(-1, -2)  # (H, T + S, K)
        return relative_shift(torch.einsum("bhtk,hrk->bhtr", q, r))

    def _rotate_scores(self, q: Tensor, weight: Tensor, pair: Pair) -> Tensor:
        """Score arbitrary positions by rotating queries: (B, H, T, K), (H, K, W) -> (B, H, T, S)."""
        sine_weights, cosine_weights = torch.einsum("bhtk,hkw->bhtw", q, weight).chunk(2, dim=-1)
        sine, cosine = self._cached_waves(self._q_waves, pair.q_positions, q.dtype).unsqueeze(1).chunk(2, dim=-1)
        # sin(i - j) = sin i cos j - cos i sin j, cos(i - j) = cos i cos j + sin i sin j: what meets sin j, then cos j
        rotated = [cosine_weights * sine - sine_weights * cosine, sine_weights * sine + cosine_weights * cosine]
        rotated_queries = torch.cat(rotated, dim=-1).flatten(1, 2)  # (B, H * T, W)
        waves = self._cached_waves(self._k_waves, pair.k_positions, q.dtype)  # (B|1, S, W)
        scores: Tensor = rotated_queries @ (waves[0] if waves.shape[0] == 1 else waves).transpose(-1, -2)
        return scores.view(q.shape[0], self.heads, -1, scores.shape[-1])

    def _cached_waves(self, cache: PositionCache[Tensor], positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return sines, then cosines, from the cache: (B|1, T) -> (B|1, T, W)."""
        return cache(positions, dtype, lambda: self._waves(positions, dtype))

    def _waves(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        angles = positions.unsqueeze(-1) * self.frequencies.like(positions)
        return materialise(torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype))

    def _shift_flops(self, queries: int, keys: int) -> int:
        """Count multiply-adds of one head: projecting all distances, and scoring them."""
        return (queries + keys) * self.head_width * (2 * self.pairs + queries)

    def _rotation_flops(self, queries: int, keys: int) -> int:
        """Count multiply-adds of one head: projecting all queries, and scoring the waves of the keys."""
        return queries * 2 * self.pairs * (self.head_width + keys)

    def cost(self, load: Load) -> Cost:
        bias_flops = self._rotation_flops(load.queries, load.keys)
        if load.queries <= load.keys:  # query-only tokens are not consecutive with the others
            bias_flops = min(bias_flops, self._shift_flops(load.queries, load.keys))
        segment_flops = 2 * load.queries if self.segments else 0
        return Cost(flops=2 * self.heads * (bias_flops + (load.keys + segment_flops) * self.head_width))

    def position_limit(self) -> int | None:
        return None


@final
class QueryBiases(nn.Module):
    """Biases of every query: u for keys, v for distances, w for segments."""

    def __init__(self, shape: Shape, *, segments: bool) -> None:
        super().__init__()
        self.key, self.distance = (nn.Parameter(torch.empty(shape.heads, shape.head_width)) for _ in "uv")
        self.segment = nn.Parameter(torch.empty(shape.heads, shape.head_width)) if segments else None


@final
class LayerProjection(nn.Module):
    """Parameters of one layer: the projection of sines and cosines, and its own biases and segment vectors."""

    def __init__(self, shape: Shape, waves: int, *, untied: bool, segments: bool) -> None:
        super().__init__()
        self.project = nn.Linear(waves, shape.heads * shape.head_width, bias=False)
        self.leanings = QueryBiases(shape, segments=segments) if untied else None
        self.segments = nn.Parameter(torch.empty(2, shape.heads, shape.head_width)) if segments else None


def segment_scores(q: Tensor, segments: Tensor, pair: Pair) -> Tensor:
    """Score each key's segment, the query's or another: (B, H, T, K), (2, H, K) -> (B, H, T, S)."""
    scores: Tensor = torch.einsum("bhtk,shk->sbht", q, segments.to(q.dtype)).unsqueeze(-1)
    same, different = scores[0], scores[1]
    if pair.q_segments is None or pair.k_segments is None:
        return same  # the same for all keys, so it changes no weight
    is_same = pair.q_segments.unsqueeze(-1) == pair.k_segments.unsqueeze(-2)
    return torch.where(is_same.unsqueeze(1), same, different)


def relative_shift(scores: Tensor) -> Tensor:
    """Shift scores by distance (B, H, T, T + S), largest distance first, to (B, H, T, S), as a view.

    Each query starts one column further left than the one before, so rows that are one column shorter line up.
    """
    queries, distances = scores.shape[-2:]
    shifted = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * (distances - 1)]
    return shifted.view(*shifted.shape[:-1], queries, distances - 1)[..., : distances - queries]


def contiguous_offset(q_positions: Tensor, k_positions: Tensor) -> int | None:
    """Return how far the first query is ahead of the first key, if positions of both are consecutive.

    None if they are not, or if checking would wait for a device.
    """
    if torch.compiler.is_compiling():  # first, because the compiler does not support all of the checks below
        return None
    if q_positions.is_meta:  # shapes only, when costs are counted: assume consecutive positions
        return k_positions.shape[-1] - q_positions.shape[-1]
    if type(q_positions) is not Tensor or q_positions.device.type != "cpu":
        return None
    starts = q_positions[:, :1] - k_positions[:, :1]
    if not all(bool((positions.diff(dim=-1) == 1).all()) for positions in (q_positions, k_positions)):
        return None
    offset = int(starts[0, 0])
    return offset if bool((starts == offset).all()) else None
