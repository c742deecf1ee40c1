"""Rows that see both ways, twice: in a stack that fills gaps, and in one that finds what was filled in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn
from torch.func import functional_call

from paribus import Builder, Capture, Embedding, Memory, Output, Part, Role, States, Stream, Topology
from paribus_topology.passing import passed


@final
class GeneratorDiscriminator(Topology):
    """A generator, which fills gaps, beside a discriminator, which tells its words from the text's, over one embedding:
    "ELECTRA" (Clark et al. 2020).

    The discriminator is the body: its tensors keep their paths where an encoder stands. Whole, the generator's rows are
    placed by the discriminator's positions as well, where these add to rows and are said alike. Disentangled, the
    discriminator reads the embedding without teaching it, and adds tables of its own, which start at 0; positions are
    then each stack's: "DeBERTaV3" (He et al. 2023).
    (B, T) -> (B, T, D), in either part.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("discriminator", "body", causal=False),
        Part("generator", "generator", causal=False),
    )

    def __init__(
        self,
        build: Builder,
        *,
        sharing: Annotated[
            Literal["whole", "disentangled"], "whether both stacks teach the embedding, or the generator alone (v3)"
        ] = "whole",
    ) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")
        self.generator = build.stack("generator", placed="body" if sharing == "whole" else None)
        self.offsets = Offsets(self.embedding) if sharing == "disentangled" else None

    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        assert part in ("body", "generator"), "the rules let an objective ask for no other part"
        assert memory is None, "there is nothing here that attends to a memory"
        stack = self.body if part == "body" else self.generator
        embedding = self.embedding if part != "body" or self.offsets is None else partial(self.offsets, self.embedding)
        return passed(streams[part], embedding, stack, memory=None, states=states, capture=capture)


@final
class Offsets(nn.Module):
    """What is added to each tensor that an embedding makes rows with; the sum teaches the embedding nothing."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        scores = {name for name, role in embedding.roles.items() if role == "head"}
        self.of = {name: name.replace(".", "_") for name, _ in embedding.named_parameters() if name not in scores}
        self.roles: Mapping[str, Role] = dict.fromkeys(
            self.of.values(), "bias"
        )  # whatever it is added to, it starts at 0
        for name, own in self.of.items():
            self.register_parameter(own, nn.Parameter(embedding.get_parameter(name).detach().clone()))

    def forward(self, embedding: Embedding, *given: object) -> tuple[Tensor, object]:
        """What `embedding` makes of what it is given, with its tensors moved."""
        moved = {name: embedding.get_parameter(name).detach() + getattr(self, own) for name, own in self.of.items()}
        made: tuple[Tensor, object] = functional_call(embedding, moved, given)
        return made
