"""Generator-discriminator topology (`generator-discriminator`), ELECTRA's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn
from torch.func import functional_call

from paribus import Builder, Capture, Embedding, Memory, Output, Part, Role, States, Stream, Topology
from paribus_topology.run_stack import run_stack


@final
class GeneratorDiscriminator(Topology):
    """Generator and discriminator over one embedding (Clark et al. 2020).

    "ELECTRA". The generator fills masked tokens, and the discriminator detects replaced ones. The discriminator is the
    body, so its tensors have the same paths as in `encoder`. With `sharing: whole`, both stacks share embedding and
    added positions. With `sharing: disentangled`, the discriminator reads the embedding without a gradient and adds
    tables that start at 0, and positions are separate: "DeBERTaV3" (He et al. 2023). (B, T) -> (B, T, D), in either
    part.
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
            Literal["whole", "disentangled"],
            "stacks that train the embedding: both (whole), or only the generator (v3)",
        ] = "whole",
    ) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")
        self.generator = build.stack("generator", placed="body" if sharing == "whole" else None)
        self.offsets = EmbeddingOffsets(self.embedding) if sharing == "disentangled" else None

    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        assert part in ("body", "generator"), "validated: an objective runs existing parts only"
        assert memory is None, "no part of this topology attends to a memory"
        stack = self.body if part == "body" else self.generator
        embedding = self.embedding if part != "body" or self.offsets is None else partial(self.offsets, self.embedding)
        return run_stack(streams[part], embedding, stack, memory=None, states=states, capture=capture)


@final
class EmbeddingOffsets(nn.Module):
    """Offsets of the embedding's tensors; the embedding itself gets no gradient through the sum."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        head_parameters = {name for name, role in embedding.roles.items() if role == "head"}
        self.parameter_names = {
            name: name.replace(".", "_") for name, _ in embedding.named_parameters() if name not in head_parameters
        }
        self.roles: Mapping[str, Role] = dict.fromkeys(self.parameter_names.values(), "bias")  # offsets start at 0
        for name, parameter in self.parameter_names.items():
            self.register_parameter(parameter, nn.Parameter(embedding.get_parameter(name).detach().clone()))

    def forward(self, embedding: Embedding, *args: object) -> tuple[Tensor, object]:
        """Run `embedding` with offset tensors."""
        shifted = {
            name: embedding.get_parameter(name).detach() + getattr(self, parameter)
            for name, parameter in self.parameter_names.items()
        }
        output: tuple[Tensor, object] = functional_call(embedding, shifted, args)
        return output
