"""Linear attention (`linear`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

from torch import Tensor
from torch.nn import functional

from paribus import Attention, AttentionTraits, Context, Cost, Divides, Heads, Load, Range, Shape, State
from paribus_attention.scan import empty_sums, scan_flops, weighted_average


@final
class Linear(Attention):
    """Linear attention with a positive feature map in place of the softmax, O(T) (Katharopoulos et al. 2020).

    "Transformers are RNNs". y_i = (sum_j phi(q_i) · phi(k_j) v_j) / (sum_j phi(q_i) · phi(k_j)). The sums over keys are
    computed once for all queries; in causal stacks they are running sums. Decoding keeps K x K + K numbers a head at
    any length.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
    }

    def __init__(
        self,
        shape: Shape,
        *,
        features: Annotated[
            Literal["elu", "relu"], "feature map phi of queries and keys: elu(x) + 1, or relu(x)"
        ] = "elu",
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        bias: Annotated[bool, "add a bias to the four projections"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.features = features
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=bias)
        self.causal = shape.causal and shape.memory_width is None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        f = self._phi(self.heads.queries(x)).unflatten(1, (self.heads.kv_heads, -1))  # (B, G, R, T, K)
        mixed = weighted_average(f, x, self._keys_and_values, ctx, causal=self.causal)
        return self.heads.merge(mixed.flatten(1, 2))

    def _keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> (B, G, 1, S, K), (B, G, 1, S, K)."""
        return self._phi(self.heads.keys(source)).unsqueeze(2), self.heads.values(source).unsqueeze(2)

    def _phi(self, x: Tensor) -> Tensor:
        return functional.elu(x) + 1 if self.features == "elu" else functional.relu(x)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        width = self.shape.head_width
        return empty_sums((batch, self.heads.kv_heads, width, width), like) if self.causal else {}

    def cost(self, load: Load) -> Cost:
        shape, groups, width = self.shape, self.heads.kv_heads, self.shape.head_width
        source, keys = shape.memory_width or shape.width, load.memory if shape.memory_width else load.queries
        projections = 4 * load.queries * shape.width * shape.heads * width + 4 * keys * source * groups * width
        if self.causal:
            scan = scan_flops(load.queries, shape.heads, groups, width, width)
        else:
            scan = 2 * width * width * (keys * groups + load.queries * shape.heads)
        return Cost(projections + scan, state=groups * width * (width + 1))
