"""Pre-norm (`pre`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Norm, Placement, PlacementTraits, Role, Shape, Sublayer


@final
class PreNorm(Placement):
    """Pre-norm, x + f(norm(x)) with a norm after the last layer (Radford et al. 2019).

    "Language Models are Unsupervised Multitask Learners", studied in "On Layer Normalization in the Transformer
    Architecture" (Xiong et al. 2020). With `gate`, x + f(norm(x)) * sigmoid(W norm(x)) for attentions: the gate after
    the output projection of "Gated Attention" (Qiu et al. 2025), whose gate before it is `scores.gate`. (B, T, D) ->
    (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}
    roles: ClassVar[Mapping[str, Role]] = {"gates.attention.weight": "weight", "gates.cross.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        bare_first: Annotated[
            bool, "omit the norm of the first attention, as the embedding has one (ModernBERT: yes)"
        ] = False,
        by_depth: Annotated[
            bool, "divide the outputs of the norms of layer l by √l, as in LayerNorm Scaling (Sun et al. 2025)"
        ] = False,
        gate: Annotated[
            bool,
            "multiply the output of each attention by sigmoids of a linear map of its input, one for each channel",
        ] = False,
    ) -> None:
        super().__init__()
        if bare_first and shape.layer is None:
            raise ValueError(
                "`bare_first` needs layers that do not share parameters; valid: bare_first: false, or dims.groups null"
            )
        if by_depth and shape.layer is None:
            raise ValueError(
                "`by_depth` needs layers that do not share parameters; valid: by_depth: false, or dims.groups null"
            )
        self.scale = 1 / math.sqrt(1 + shape.layer) if by_depth and shape.layer is not None else 1.0
        bare = "attention" if bare_first and shape.layer == 0 else ""
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers if name != bare})
        gated = [name for name in shape.sublayers if gate and name != "feedforward"]
        self.gates = nn.ModuleDict({name: nn.Linear(shape.width, shape.width, bias=False) for name in gated})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            h = self._normalise(x, name) if name in self.norms else x
            x = x + self._gated(sublayer(h), h, name)
        return x

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.queries * sum(weight.numel() for weight in self.gates.parameters()))

    def _gated(self, y: Tensor, h: Tensor, name: str) -> Tensor:
        return y * self.gates[name](h).sigmoid() if name in self.gates else y

    def _normalise(self, x: Tensor, name: str) -> Tensor:
        normalised: Tensor = self.norms[name](x)
        return normalised if self.scale == 1.0 else normalised * self.scale
