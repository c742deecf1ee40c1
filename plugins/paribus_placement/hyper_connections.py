"""Hyper-connections (`hyper`): several residual streams with learned connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Context,
    Cost,
    Load,
    Norm,
    PlacementTraits,
    Range,
    Role,
    Shape,
    StreamPlacement,
    Streams,
    Sublayer,
    at_least_float32,
)

SCALE = 0.01  # initial factor of what the connections read from the streams
SINKHORN_STEPS = 20
EPS = 1e-6


@final
class HyperConnections(StreamPlacement):
    """Hyper-connections: several residual streams, mixed before each sublayer, which reads and writes all of them.

    "Hyper-Connections" (Zhu et al. 2024). A sublayer reads a weighted sum of the streams, and adds to each with a
    weight. The weights are learned and, if `dynamic`, depend on the token through each normalised stream. Streams begin
    as copies of the embeddings, and their sum is the output. With `mixing: doubly-stochastic`, streams become averages
    of each other, as in "mHC: Manifold-Constrained Hyper-Connections" (Xie et al. 2025), weights of inputs and outputs
    are positive, and all are read from all streams, normalised as one vector. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "identity_path": False}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        streams: Annotated[int, "residual streams", Range(2, 64)] = 4,
        dynamic: Annotated[bool, "connections depend on the token"] = True,
        mixing: Annotated[
            Literal["free", "doubly-stochastic"], "matrix that mixes the streams: any, or of rows and columns of sum 1"
        ] = "free",
    ) -> None:
        super().__init__()
        if mixing != "free" and not dynamic:
            raise ValueError(
                f"expected dynamic: true with mixing: {mixing}, got false: streams that begin as copies, with equal "
                "weights, remain copies; valid: dynamic: true, or mixing: free"
            )
        self.count = streams
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        first = 0 if shape.layer is None else shape.layer * len(shape.sublayers)
        self.connections = nn.ModuleDict(
            {
                name: Connections(shape.width, streams, (first + index) % streams, norm if dynamic else None)
                if mixing == "free"
                else ManifoldConnections(shape.width, streams)
                for index, name in enumerate(shape.sublayers)
            }
        )

    def begin(self, x: Tensor) -> Streams:
        return (x.unsqueeze(2).expand(-1, -1, self.count, -1),)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        (h,) = streams
        for name, sublayer in sublayers.items():
            mixing, output_weights = self.connections[name](h)
            mixed = mixing.transpose(-1, -2) @ h  # the input, then the streams
            y = sublayer(self.norms[name](mixed[:, :, 0]))
            h = mixed[:, :, 1:] + output_weights.unsqueeze(-1) * y.unsqueeze(2)
        return (h,)

    def end(self, streams: Streams) -> Tensor:
        return streams[-1].sum(2)

    def cost(self, load: Load) -> Cost:
        """Return the operations of the connections and of the mixing; what is added to the streams counts as none."""
        each = sum(
            connections.flops()
            for connections in self.connections.values()
            if isinstance(connections, Connections | ManifoldConnections)
        )
        return Cost(load.queries * each)

    def norm_cost(self, load: Load) -> Cost:
        per_stream = Cost()
        for module in self.connections.modules():
            per_stream += module.cost(load) if isinstance(module, Norm) else Cost()
        return Cost(super().norm_cost(load).flops + (self.count - 1) * per_stream.flops)


@final
class Connections(nn.Module):
    """Weights of the streams for one sublayer: of its input and of the next streams (n, 1 + n), and of its output (n).

    For equal streams, all start as a plain residual connection. The parameters are the differences to the starts.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "mixing": "bias",
        "output": "bias",
        "read_mixing": "bias",
        "read_output": "bias",
        "scale_mixing": "bias",
        "scale_output": "bias",
    }

    def __init__(self, width: int, streams: int, first: int, norm: Callable[[], Norm] | None) -> None:
        super().__init__()
        self.width, self.streams, self.first = width, streams, first
        self.mixing = nn.Parameter(torch.zeros(streams, 1 + streams))
        self.output = nn.Parameter(torch.zeros(streams))
        self.norm = None if norm is None else norm()
        if norm is not None:
            self.read_mixing = nn.Parameter(torch.zeros(width, 1 + streams))
            self.read_output = nn.Parameter(torch.zeros(width))
            self.scale_mixing = nn.Parameter(torch.zeros(()))
            self.scale_output = nn.Parameter(torch.zeros(()))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        mixing, output = self.mixing + self._start(), self.output + 1.0
        if self.norm is not None:
            normalised = self.norm(h)
            read_mixing = (normalised @ self.read_mixing).tanh()
            read_output = (normalised @ self.read_output.unsqueeze(-1)).squeeze(-1).tanh()
            mixing = mixing + (SCALE + self.scale_mixing) * read_mixing
            output = output + (SCALE + self.scale_output) * read_output
        return mixing.expand(*h.shape[:-1], -1), output.expand(h.shape[:-1])

    def _start(self) -> Tensor:
        """Return the initial weights: the input is one of the streams, and streams are kept."""
        kept = torch.eye(self.streams, dtype=self.mixing.dtype, device=self.mixing.device)
        return torch.cat([kept[:, self.first, None], kept], 1)

    def flops(self) -> int:
        """Return the operations for one token."""
        mixes = 2 * self.width * self.streams * (1 + self.streams)
        return mixes if self.norm is None else 2 * mixes + 2 * self.width * self.streams


@final
class ManifoldConnections(nn.Module):
    """Weights of the streams for one sublayer as in mHC: of its input (n) in (0, 1), of the next streams (n, n), doubly
    stochastic, and of its output (n) in (0, 2).

    Their logits are s x W + b, where x are all streams, normalised as one vector, and the three scales s start at 0.01.
    W is drawn as other matrices, and b starts at 0, as in Megatron-LM: streams that begin as copies differ only by W.
    """

    roles: ClassVar[Mapping[str, Role]] = {"read.weight": "weight", "bias": "bias", "scales": "bias"}

    def __init__(self, width: int, streams: int) -> None:
        super().__init__()
        self.width, self.streams = width, streams
        self.read = nn.Linear(streams * width, streams * (2 + streams), bias=False)
        self.bias = nn.Parameter(torch.zeros(streams * (2 + streams)))
        self.scales = nn.Parameter(torch.zeros(3))  # differences to the start

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [self.streams, self.streams, self.streams**2]
        flat = at_least_float32(h.flatten(2))
        read = at_least_float32(self.read(functional.rms_norm(flat, flat.shape[-1:], eps=EPS).to(h.dtype)))
        inputs, outputs, mixing = (
            (SCALE + scale) * part + bias
            for scale, part, bias in zip(self.scales, read.split(sizes, -1), self.bias.split(sizes), strict=True)
        )
        mixing = doubly_stochastic(mixing.unflatten(-1, (self.streams, self.streams)))
        return torch.cat([inputs.sigmoid().unsqueeze(-1), mixing], -1).to(h.dtype), (2 * outputs.sigmoid()).to(h.dtype)

    def flops(self) -> int:
        """Return the operations for one token."""
        return 2 * self.width * self.streams * (self.streams * (2 + self.streams) + 1 + self.streams)


def doubly_stochastic(logits: Tensor) -> Tensor:
    """Return positive matrices (…, n, n) whose rows and columns sum to 1, by Sinkhorn's iterations."""
    log_weights = logits
    for _ in range(SINKHORN_STEPS):
        log_weights = log_weights - log_weights.logsumexp(-1, keepdim=True)
        log_weights = log_weights - log_weights.logsumexp(-2, keepdim=True)
    return log_weights.exp()
