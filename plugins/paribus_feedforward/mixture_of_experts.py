"""Mixture of experts (`moe`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Range, Role, Shape, Slot, Traits


@final
class MixtureOfExperts(FeedForward):
    """Mixture of experts, each token routed to its top experts (Shazeer et al. 2017).

    "Outrageously Large Neural Networks", without its noise, and with the balance loss of "Switch Transformers" (Fedus
    et al. 2021), which is `top: 1, softmax: all`. Experts have no capacity, so no token is dropped. Padding is routed
    too and counts in the auxiliary losses. Tokens per expert depend on the data, so torch.compile breaks the graph
    here. (B, T, D) -> (B, T, D), and a scalar.
    """

    traits: ClassVar[Traits] = {"compiles": False, "waits": True}
    roles: ClassVar[Mapping[str, Role]] = {"router.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        expert: Annotated[Callable[[Shape], FeedForward], "feed-forward of each expert", Slot("feedforward")] = "mlp",  # type: ignore[assignment]  # a name in the spec, its factory here
        experts: Annotated[int, "number of experts", Range(1)] = 4,
        top: Annotated[int, "experts for each token", Range(1)] = 2,
        softmax: Annotated[
            Literal["chosen", "all"], "softmax over the chosen experts' scores (Mixtral), or over all (Switch)"
        ] = "chosen",
        balance: Annotated[float, "weight of the load-balancing loss", Range(0)] = 0.01,
        z: Annotated[float, "weight of the router z-loss, which keeps scores small (ST-MoE: 1e-3)", Range(0)] = 0.0,
    ) -> None:
        super().__init__()
        if top > experts:
            raise ValueError(f"`top` must be at most `experts` ({experts}), got {top}")
        if top == 1 and softmax == "chosen" and experts > 1:
            raise ValueError(
                "with `top` 1, `softmax: chosen` is always 1 and the router gets no gradient; valid: softmax: all"
            )
        self.width, self.top, self.softmax, self.balance, self.z = shape.width, top, softmax, balance, z
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.experts = nn.ModuleList([expert(shape) for _ in range(experts)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens = x.flatten(0, -2)  # (B, T, D) -> (N, D)
        scores = self.router(tokens)  # (N, E)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # as in Switch, in any precision
        top_scores, chosen = scores.topk(self.top, dim=-1)  # (N, top)
        probabilities = scores.softmax(-1)
        weights = top_scores.softmax(-1) if self.softmax == "chosen" else probabilities.gather(-1, chosen)
        counts = tokens_of_experts(chosen, len(self.experts))
        outputs, losses = self._run_experts(tokens, chosen, counts)
        y = (outputs * weights.to(outputs.dtype).unsqueeze(-1)).sum(-2)
        if self.balance:
            losses.append(self.balance * balance_loss(probabilities, counts))
        if self.z:
            losses.append(self.z * scores.logsumexp(-1).square().sum() / max(1, len(scores)))
        return y.view_as(x), sum(losses[1:], losses[0]) if losses else None

    def _run_experts(self, tokens: Tensor, chosen: Tensor, counts: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output of each chosen expert for each token, (N, top, D), and the experts' own losses."""
        order = chosen.flatten().argsort(stable=True)  # (N*top,): all tokens of the first expert, of the second, …
        tokens_by_expert = tokens[order // self.top].split(counts.tolist())
        # An unused expert is called without tokens, so that its gradient is 0 and not None.
        experts = cast("list[FeedForward]", list(self.experts))
        results = [
            expert(expert_tokens.unsqueeze(0)) for expert, expert_tokens in zip(experts, tokens_by_expert, strict=True)
        ]
        outputs = torch.cat([y.squeeze(0) for y, _ in results])[order.argsort()]
        return outputs.view(len(tokens), self.top, self.width), [loss for _, loss in results if loss is not None]

    def cost(self, load: Load) -> Cost:
        router = Cost(flops=2 * load.queries * self.width * len(self.experts))
        expert = cast("FeedForward", self.experts[0])
        return router + expert.cost(load._replace(queries=load.queries * self.top))


def tokens_of_experts(chosen: Tensor, experts: int) -> Tensor:
    """Return how many tokens chose each expert; unlike `bincount`, it does not wait for the device."""
    counts = torch.zeros(experts, dtype=torch.long, device=chosen.device)
    return counts.scatter_add(0, chosen.flatten(), torch.ones_like(chosen.flatten()))


def balance_loss(probabilities: Tensor, counts: Tensor) -> Tensor:
    """Return E Σ f P over experts: f is the share of choices, P the mean softmax probability of an expert.

    It is 1 for a uniform distribution of tokens, E if one expert has them all.
    """
    choice_shares = counts.to(probabilities.dtype) / counts.sum().clamp(min=1)
    return len(counts) * (choice_shares * probabilities.sum(0) / max(1, len(probabilities))).sum()
