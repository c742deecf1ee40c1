"""Feed-forwards of which each row uses a few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Range, Role, Shape, Slot, Traits


@final
class MixtureOfExperts(FeedForward):
    """The experts that a router chooses for a row, weighed by its softmax: "Outrageously Large Neural Networks"
    (Shazeer et al. 2017), without its noise, and the balance loss of "Switch Transformers" (Fedus et al. 2021), which
    is `top: 1, softmax: all`.

    An expert is given the rows that chose it and no others; none is full, so none is dropped. A feed-forward is not
    told which rows are padding: those are routed too, and count in what is added to the loss. How many rows an expert
    has is known only then, so torch compiles around it. (B, T, D) -> (B, T, D), and a scalar.
    """

    traits: ClassVar[Traits] = {"compiles": False}
    roles: ClassVar[Mapping[str, Role]] = {"router.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        expert: Annotated[Callable[[Shape], FeedForward], "what each expert is", Slot("feedforward")] = "mlp",  # type: ignore[assignment]  # a name in the spec, its factory here
        experts: Annotated[int, "how many there are", Range(1)] = 4,
        top: Annotated[int, "how many a row uses", Range(1)] = 2,
        softmax: Annotated[
            Literal["chosen", "all"], "over the chosen experts' scores (Mixtral), or over those of all (Switch)"
        ] = "chosen",
        balance: Annotated[float, "weight of the loss that spreads rows over experts", Range(0)] = 0.01,
        z: Annotated[float, "weight of the loss that keeps scores small (ST-MoE: 1e-3)", Range(0)] = 0.0,
    ) -> None:
        super().__init__()
        if top > experts:
            raise ValueError(f"`top` must be at most `experts` ({experts}), but is {top}")
        if top == 1 and softmax == "chosen" and experts > 1:
            raise ValueError(
                "`softmax` is chosen, but of one chosen expert it is 1 whatever its score, so the router would not "
                "learn; valid: softmax: all, or a larger `top`"
            )
        self.width, self.top, self.softmax, self.balance, self.z = shape.width, top, softmax, balance, z
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.experts = nn.ModuleList([expert(shape) for _ in range(experts)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = x.flatten(0, -2)  # (B, T, D) -> (N, D)
        scores = self.router(rows)  # (N, E)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # as in Switch, whatever the rows are
        best, chosen = scores.topk(self.top, dim=-1)  # (N, top)
        shares = scores.softmax(-1)
        weights = best.softmax(-1) if self.softmax == "chosen" else shares.gather(-1, chosen)
        given = chosen.flatten().bincount(minlength=len(self.experts))
        fed, added = self._fed(rows, chosen, given)
        y = (fed * weights.to(fed.dtype).unsqueeze(-1)).sum(-2)
        if self.balance:
            added.append(self.balance * balance_loss(shares, given))
        if self.z:
            added.append(self.z * scores.logsumexp(-1).square().sum() / max(1, len(scores)))
        return y.view_as(x), sum(added[1:], added[0]) if added else None

    def _fed(self, rows: Tensor, chosen: Tensor, given: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(N, top, D): what each chosen expert makes of each row, and what experts add to the loss themselves."""
        order = chosen.flatten().argsort(stable=True)  # (N*top,): all rows of the first expert, of the second, …
        sorted_rows = rows[order // self.top].split(given.tolist())
        # One that was chosen by none is called with no rows: its gradient is then 0, and not missing.
        experts = cast("list[FeedForward]", list(self.experts))
        made = [expert(own.unsqueeze(0)) for expert, own in zip(experts, sorted_rows, strict=True)]
        fed = torch.cat([y.squeeze(0) for y, _ in made])[order.argsort()]
        return fed.view(len(rows), self.top, self.width), [added for _, added in made if added is not None]

    def cost(self, load: Load) -> Cost:
        router = Cost(flops=2 * load.queries * self.width * len(self.experts))
        expert = cast("FeedForward", self.experts[0])
        return router + expert.cost(load._replace(queries=load.queries * self.top))


def balance_loss(shares: Tensor, given: Tensor) -> Tensor:
    """E Σ f P over experts, f the share of choices that fell on one and P its mean share in the softmax over all: 1
    where rows are spread evenly, E where one expert has them all.
    """
    chosen = given / given.sum().clamp(min=1)
    return len(given) * (chosen * shares.sum(0) / max(1, len(shares))).sum()
