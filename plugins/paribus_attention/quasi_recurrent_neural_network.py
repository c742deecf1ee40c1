"""Quasi-recurrent neural network in place of attention (`qrnn`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import PADDING, AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State, is_content
from paribus_attention.documents import content_first
from paribus_attention.elementwise_scan import scan
from paribus_attention.recurrence import inner_width

Pooling = Literal["f", "fo", "ifo"]
GATES: Final[dict[Pooling, int]] = {"f": 2, "fo": 3, "ifo": 4}


@final
class QuasiRecurrentNeuralNetwork(Attention):
    """Quasi-recurrent neural network in place of attention (Bradbury et al. 2017).

    A convolution over the last `kernel` tokens computes the candidate z = tanh(W_z x) and gates f, o, i = s(W x). Then
    each channel is a recurrence by itself, without a product: `f` is h = f h' + (1 - f) z, `fo` is c = f c' + (1 - f) z
    and h = o c, `ifo` is c = f c' + i z and h = o c. Zoneout is left out.

    In bidirectional stacks half of the width reads forwards and half backwards. Padding between two tokens does not
    count towards their distance. Decoding keeps the last `kernel` - 1 tokens and c, at any length.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
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
        kernel: Annotated[
            int,
            "tokens in the window of the convolution (characters: 6)",
            Range(2),
            AtMost("length", "a sequence has no more tokens"),
        ] = 2,
        pooling: Annotated[
            Pooling, "gates of the recurrence: forget; forget and output; input, forget and output"
        ] = "fo",
    ) -> None:
        super().__init__()
        self.kernel, self.pooling = kernel, pooling
        self.width, self.inner = shape.width, inner_width(shape)
        self.gates = GATES[pooling] * self.inner
        sides = range(1 if shape.causal else 2)
        self.directions = nn.ModuleList(nn.Linear(kernel * shape.width, self.gates) for _ in sides)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        documents = None if ctx.layout.documents is None else ctx.layout.documents.expand(x.shape[0], -1)
        outputs = [self._run(0, x, documents, ctx)]
        if len(self.directions) == 2:
            flipped = None if documents is None else documents.flip(1)
            outputs.append(self._run(1, x.flip(1), flipped, ctx).flip(1))
        return torch.cat(outputs, dim=-1)

    def _run(self, direction: int, x: Tensor, documents: Tensor | None, ctx: Context) -> Tensor:
        """Run one direction, with padding moved to the end: (B, T, D) -> (B, T, K)."""
        if documents is None:
            return self._pool(direction, x, None, ctx)
        order = content_first(documents)
        packed, packed_documents = _reorder(x, order), documents.gather(1, order)
        return _reorder(self._pool(direction, packed, packed_documents, ctx), order.argsort(dim=1))

    def _pool(self, direction: int, x: Tensor, documents: Tensor | None, ctx: Context) -> Tensor:
        """Convolve, then run the recurrence: (B, T, D) -> (B, T, K)."""
        state = ctx.state or self.start(x.shape[0], 0, x)
        inputs = torch.cat([state["inputs"].to(x.dtype), x], dim=1)
        taps = range(self.kernel)
        windows = [inputs[:, tap : tap + x.shape[1]] for tap in taps]
        all_documents, same_document = None, list[Tensor]()
        if documents is not None:
            past = self._past_documents(ctx, documents)
            all_documents = torch.cat([past, documents], dim=1)
            same_document = [all_documents[:, tap : tap + x.shape[1]] == documents for tap in taps]
            windows = [window * same.unsqueeze(-1) for window, same in zip(windows, same_document, strict=True)]
        layer = cast("nn.Linear", self.directions[direction])
        # Not by a call of the layer: it mixes tokens, and `bench complexity` must not count it as a linear layer.
        convolved = functional.linear(torch.cat(windows, dim=-1), layer.weight, layer.bias)
        z, f, *others = convolved.chunk(GATES[self.pooling], dim=-1)
        z, f = z.tanh(), f.sigmoid()
        term = (others[1].sigmoid() if self.pooling == "ifo" else 1 - f) * z
        if documents is not None:
            content = is_content(documents).unsqueeze(-1)
            follows = same_document[-2].unsqueeze(-1)  # the token before is of the same document
            f, term = torch.where(content, f * follows, 1), term * content  # padding leaves the state unchanged
        states = scan(f, term, state["state"])
        if ctx.state is not None:
            last = inputs if all_documents is None else _reorder(inputs, _padding_first(all_documents))
            ctx.state.update(inputs=last[:, 1 - self.kernel :], state=states[:, -1])
        y = states.to(x.dtype)
        return y if self.pooling == "f" else others[0].sigmoid() * y

    def _past_documents(self, ctx: Context, documents: Tensor) -> Tensor:
        """Return the documents (B, kernel - 1) of the tokens in the decoding state, the last one last."""
        if ctx.state is None or ctx.past == 0:
            return documents.new_full((documents.shape[0], self.kernel - 1), PADDING)
        assert ctx.key_layout.documents is not None, "either all decoding steps have documents, or none"
        past = functional.pad(ctx.key_layout.documents[:, : ctx.past], (self.kernel - 1, 0), value=PADDING)
        last = past.gather(1, _padding_first(past))[:, 1 - self.kernel :]
        return last.expand(documents.shape[0], -1)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        wide = torch.promote_types(like.dtype, torch.float32)
        return {
            "inputs": like.new_zeros(batch, self.kernel - 1, self.width),
            "state": like.new_zeros(batch, self.inner, dtype=wide),
        }

    def cost(self, load: Load) -> Cost:
        flops = 2 * load.queries * self.kernel * self.width * self.gates * len(self.directions)
        return Cost(flops, state=(self.kernel - 1) * self.width + self.inner)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """(B, T, D), (B, T) -> (B, T, D)."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _padding_first(documents: Tensor) -> Tensor:
    """Return the order (B|1, T) that puts padding first and keeps the order of the other tokens."""
    return is_content(documents).to(torch.uint8).argsort(dim=-1, stable=True)
