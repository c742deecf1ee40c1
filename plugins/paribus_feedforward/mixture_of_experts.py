"""Mixture of experts (`moe`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, KeyedDraws, Load, Range, Role, Shape, Slot, Traits


@dataclass(frozen=True)
class Router:
    """Router of tokens to experts."""

    name: Annotated[Literal["softmax", "sigmoid"], "function of the scores; sigmoid: DeepSeek-V3"] = "softmax"
    scale: Annotated[float, "factor of the sum over the chosen experts (DeepSeek-V3: 2.5)", Range(above=0)] = 1.0
    bias_rate: Annotated[
        float,
        "change of each expert's bias after a training step, to balance loads; the bias is added when experts are "
        "chosen, not when they are weighted (DeepSeek-V3: 0.001); 0: no bias",
        Range(0),
    ] = 0.0


@final
class MixtureOfExperts(FeedForward):
    """Mixture of experts, each token routed to its top experts (Shazeer et al. 2017).

    "Outrageously Large Neural Networks", without its noise, and with the balance loss of "Switch Transformers" (Fedus
    et al. 2021), which is `top: 1, softmax: all`. "DeepSeek-V3" (2024) has the router `{name: sigmoid, scale: 2.5,
    bias_rate: 0.001}`, `shared: glu`, and a small `balance`. Experts have no capacity, so no token is dropped. Padding
    is routed too and counts in loads and auxiliary losses. Tokens per expert depend on the data, so torch.compile
    breaks the graph here. (B, T, D) -> (B, T, D), and a scalar.

    The bias of an expert is `bias_rate` times a whole number, which is exact in any precision. After each training step
    this grows by one for an expert with less than the mean load of the step, and shrinks by one for one with more.
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
            Literal["chosen", "all"],
            "softmax over the chosen experts' scores (Mixtral), or over all (Switch); "
            "with sigmoids: the weights of the chosen experts have the sum 1, or are the sigmoids",
        ] = "chosen",
        balance: Annotated[float, "weight of the load-balancing loss", Range(0)] = 0.01,
        z: Annotated[float, "weight of the router z-loss, which keeps scores small (ST-MoE: 1e-3)", Range(0)] = 0.0,
        router: Router = Router(),
        shared: Annotated[
            Callable[[Shape], FeedForward] | None,
            "feed-forward of all tokens, added to the experts (DeepSeek, Qwen2-MoE); null: none",
            Slot("feedforward"),
        ] = None,
    ) -> None:
        super().__init__()
        if top > experts:
            raise ValueError(f"`top` must be at most `experts` ({experts}), got {top}")
        if top == 1 and softmax == "chosen" and experts > 1:
            raise ValueError(
                "with `top` 1, `softmax: chosen` is always 1 and the router gets no gradient; valid: softmax: all"
            )
        self.width, self.top, self.softmax, self.balance, self.z = shape.width, top, softmax, balance, z
        self.sigmoid, self.scale, self.bias_rate = router.name == "sigmoid", router.scale, router.bias_rate
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.experts = nn.ModuleList([expert(shape) for _ in range(experts)])
        self.shared = None if shared is None else shared(shape)
        if any(part.mixes_tokens for part in (*self._experts(), self.shared) if part is not None):
            raise ValueError("expected `kernel` of experts to be null: they see no neighbouring tokens")
        self.register_buffer("bias_steps", None)
        self.step_counts: Tensor | None = None  # tokens of each expert in the current step

    def prepare(self, keyed: KeyedDraws) -> None:
        """Start the biases at 0."""
        if self.bias_rate:
            self.bias_steps = torch.zeros(len(self.experts), dtype=torch.long, device=self.router.weight.device)

    def after_step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Move the bias of each expert by `bias_rate` towards a mean load; that of a frozen router stays."""
        if self.bias_steps is not None and self.router.weight.requires_grad:
            counts = total(torch.zeros_like(self.bias_steps) if self.step_counts is None else self.step_counts)
            self.bias_steps += (counts.sum() - len(counts) * counts).sign()
        self.step_counts = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens = x.flatten(0, -2)  # (B, T, D) -> (N, D)
        scores = self.router(tokens)  # (N, E)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # as in Switch, in any precision
        top_scores, chosen = self._choose(scores)  # (N, top)
        shares = self._shares(scores)
        if self.softmax == "all":
            weights = shares.gather(-1, chosen)
        else:  # with logarithms, very small sigmoids do not give 0 / 0
            weights = (functional.logsigmoid(top_scores) if self.sigmoid else top_scores).softmax(-1)
        counts = tokens_of_experts(chosen, len(self.experts))
        if self.in_step and self.bias_steps is not None:
            self.step_counts = counts if self.step_counts is None else self.step_counts + counts
        outputs, losses = self._run_experts(tokens, chosen, counts)
        weights = weights if self.scale == 1 else self.scale * weights
        y = (outputs * weights.to(outputs.dtype).unsqueeze(-1)).sum(-2).view_as(x)
        if self.shared is not None:
            every_token, loss = self.shared(x)
            y, losses = y + every_token, losses if loss is None else [*losses, loss]
        if self.balance:
            probabilities = shares / shares.sum(-1, keepdim=True) if self.sigmoid else shares
            losses.append(self.balance * balance_loss(probabilities, counts))
        if self.z:
            losses.append(self.z * scores.logsumexp(-1).square().sum() / max(1, len(scores)))
        return y, sum(losses[1:], losses[0]) if losses else None

    def _shares(self, scores: Tensor) -> Tensor:
        return scores.sigmoid() if self.sigmoid else scores.softmax(-1)

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the chosen experts, and their indices: (N, E) -> (N, top)."""
        if self.bias_steps is None:
            top_scores, chosen = scores.topk(self.top, dim=-1)
            return top_scores, chosen
        biases = self.bias_rate * self.bias_steps.to(scores.dtype)
        chosen = (self._shares(scores.detach()) + biases).topk(self.top, dim=-1).indices
        return scores.gather(-1, chosen), chosen

    def _experts(self) -> list[FeedForward]:
        return cast("list[FeedForward]", list(self.experts))

    def _run_experts(self, tokens: Tensor, chosen: Tensor, counts: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output of each chosen expert for each token, (N, top, D), and the experts' own losses."""
        order = chosen.flatten().argsort(stable=True)  # (N*top,): all tokens of the first expert, of the second, …
        tokens_by_expert = tokens[order // self.top].split(counts.tolist())
        # An unused expert is called without tokens, so that its gradient is 0 and not None.
        results = [
            expert(expert_tokens.unsqueeze(0))
            for expert, expert_tokens in zip(self._experts(), tokens_by_expert, strict=True)
        ]
        outputs = torch.cat([y.squeeze(0) for y, _ in results])[order.argsort()]
        return outputs.view(len(tokens), self.top, self.width), [loss for _, loss in results if loss is not None]

    def cost(self, load: Load) -> Cost:
        router = Cost(flops=2 * load.queries * self.width * len(self.experts))
        routed = router + self._experts()[0].cost(load._replace(queries=load.queries * self.top))
        return routed if self.shared is None else routed + self.shared.cost(load)


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
