"""Generator-discriminator topology, with both kinds of sharing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.assemble import build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved

TOKENS = torch.randint(8, 40, (3, 9), generator=torch.Generator().manual_seed(0))
VOCABULARY = Vocabulary(40, {name: at for at, name in enumerate(("pad", "unk", "cls", "sep", "mask", "bos", "eos"))})
SMALL = ("dims.width=16", "dims.length=9", "dims.vocabulary=64", "parts.generator.dims.width=8", "embedding.width=6")

Build = Callable[..., Model]


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


@pytest.fixture(scope="module")
def build_electra(components: Registry) -> Build:
    def build_electra(*overrides: str) -> Model:
        spec = resolved("electra-tiny", *SMALL, *overrides, registry=components)
        return build_model(spec, components, VOCABULARY).double()

    return build_electra


def hidden(model: Model, part: str, tokens: Tensor = TOKENS) -> Tensor:
    batch = Batch({"body": Stream(tokens), "generator": Stream(tokens)}, {}, torch.arange(3))
    return BatchForward(model.topology, batch).output(part).hidden


def gradients(model: Model, part: str) -> set[str]:
    """Return the parameters with a nonzero gradient of a loss on one part's output."""
    named = dict(model.topology.named_parameters())
    result = hidden(model, part).pow(3).sum()
    grads = torch.autograd.grad(result, [*named.values()], allow_unused=True)
    return {name for name, grad in zip(named, grads, strict=True) if grad is not None and grad.any()}


def shared(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("embedding.")}


def test_both_parts_are_bidirectional_with_their_own_width(build_electra: Build) -> None:
    model = build_electra()
    for part, width in (("body", 16), ("generator", 8)):
        original = hidden(model, part)
        assert original.shape == (3, 9, width)
        for place in (0, 4, 8):
            tokens = TOKENS.clone()
            tokens[1, place] = 39
            has_changed = (hidden(model, part, tokens) - original).abs().amax(-1) > 1e-12
            assert has_changed.tolist() == [[False] * 9, [True] * 9, [False] * 9]


def test_the_body_is_bitwise_equal_to_an_encoder(build_electra: Build) -> None:
    alone = build_electra("topology=encoder", "objective=mlm", "parts=null").state_dict()
    both = build_electra().state_dict()
    shared_names = {name for name in alone if not name.startswith("objectives.")}
    assert shared_names < both.keys()
    assert all(torch.equal(alone[name], both[name]) for name in shared_names)
    other_modules = {name.partition(".")[0] for name in both.keys() - shared_names}
    assert other_modules == {"generator", "objectives"}


def test_with_whole_sharing_both_parts_train_the_embedding(build_electra: Build) -> None:
    model = build_electra()
    tables = {"embedding.tokens.weight", "embedding.segments.weight", "body.position.0.table.weight"}
    assert tables <= gradients(model, "body")
    assert tables <= gradients(model, "generator")
    assert not any(name.startswith("generator.position") for name, _ in model.named_parameters())
    assert {name.partition(".")[0] for name in gradients(model, "generator") - tables} == {"embedding", "generator"}


@pytest.mark.parametrize("position", ["rope", "t5", "disentangled"])
def test_rotary_and_bias_positions_are_separate(position: str, build_electra: Build) -> None:
    model = build_electra(f"position={position}")
    part = {name.replace("generator.", "body.") for name in gradients(model, "generator") if ".position." in name}
    assert part == {name for name in gradients(model, "body") if ".position." in name}


def test_a_different_generator_position_is_separate(build_electra: Build) -> None:
    model = build_electra("parts.generator.position={name: learned, offset: 2}")
    assert "generator.position.0.table.weight" in gradients(model, "generator")
    assert "body.position.0.table.weight" not in gradients(model, "generator")
    turning = build_electra("parts.generator.position=rope")
    assert not any(".position." in name for name in gradients(turning, "generator"))


def test_with_disentangled_sharing_the_body_does_not_train_the_embedding(build_electra: Build) -> None:
    model = build_electra("topology.sharing=disentangled")
    assert shared(gradients(model, "body")) == set()
    assert shared(gradients(model, "generator")) == shared({name for name, _ in model.named_parameters()})
    offsets = {name for name, _ in model.named_parameters() if name.startswith("offsets.")}
    assert offsets == {f"offsets.{name}" for name in ("tokens_weight", "segments_weight", "norm_weight", "norm_bias")}
    assert offsets <= gradients(model, "body")
    assert not offsets & gradients(model, "generator")


def test_disentangled_offsets_start_at_zero(build_electra: Build) -> None:
    shared, separate = build_electra(), build_electra("topology.sharing=disentangled")
    assert all(not part.any() for name, part in separate.named_parameters() if name.startswith("offsets."))
    torch.testing.assert_close(hidden(separate, "body"), hidden(shared, "body"), rtol=0, atol=0)
    generator = hidden(separate, "generator")
    delta = torch.randn(64, 6, dtype=torch.float64)
    with torch.no_grad():
        separate.get_parameter("offsets.tokens_weight").copy_(delta)
        shared.get_parameter("embedding.tokens.weight").add_(delta)
    torch.testing.assert_close(hidden(separate, "body"), hidden(shared, "body"), rtol=0, atol=1e-12)
    assert torch.equal(hidden(separate, "generator"), generator)


def test_an_untied_head_has_no_offset(build_electra: Build) -> None:
    model = build_electra("topology.sharing=disentangled", "embedding.tie=false")
    assert not any("head" in name for name, _ in model.named_parameters() if name.startswith("offsets."))


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["whole", "disentangled"])
def test_it_compiles_to_one_graph(sharing: str, build_electra: Build) -> None:
    model = build_electra(f"topology.sharing={sharing}")
    torch.compiler.reset()
    run = torch.compile(lambda: hidden(model, "body"), backend="eager", fullgraph=True)
    torch.testing.assert_close(run(), hidden(model, "body"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (["objective=mlm"], ("objective", "mlm", "generator-discriminator")),
        (["topology=encoder"], ("objective", "rtd", "generator")),
        (["embedding=tokens"], ("32", "64")),
    ],
)
def test_invalid_combinations_are_rejected(overrides: list[str], values: tuple[str, ...], components: Registry) -> None:
    with raises_problem(paribus.SpecError, "does-not-fit", *values):
        resolved("electra-tiny", *overrides, registry=components)


def test_an_unknown_part_is_rejected(build_electra: Build) -> None:
    topology: Any = build_electra().topology
    with pytest.raises(AssertionError, match="validated"):
        topology.run({"body": Stream(TOKENS)}, "encoder")
