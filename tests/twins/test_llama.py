"""The modern decoder (shared key heads, RoPE, RMSNorm, SwiGLU, untied), against the `transformers` library's Llama."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paribus import IGNORED, PADDING, Stream
from paribus.assembly.run import Pass
from paribus.parts.rows import Batch
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

Assemble = Callable[..., Model]
Shake = Callable[[nn.Module], nn.Module]
Padded = Callable[[str], tuple[Tensor, Tensor]]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)

SHAPES = {
    "six heads, one key head, wide heads": (18, 6, 10, 1, 3, 10_000.0, False),
    "six heads, three key heads, narrow heads": (24, 6, 2, 3, 2, 500_000.0, False),
    "five heads, as many key heads, tied": (20, 5, 4, 5, 1, 10_000.0, True),
}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def twins(request: pytest.FixtureRequest, assemble: Assemble, shake: Shake) -> tuple[Model, Any]:
    width, heads, head_width, kv_heads, layers, theta, tie = request.param
    ours = assemble(
        "gpt-tiny",
        f"dims={{width: {width}, heads: {heads}, head_width: {head_width}, layers: {layers}, length: 32}}",
        f"attention={{name: gqa, kv_heads: {kv_heads}, scores: {{bias: false}}}}",
        f"position={{name: rope, theta: {theta}}}",
        "norm={name: rmsnorm, eps: 1.0e-5}",
        "feedforward={name: glu, activation: silu, inner: 29}",
        f"embedding.tie={str(tie).lower()}",
    )
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=29, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_width, vocab_size=37, max_position_embeddings=32,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": theta}, tie_word_embeddings=tie,
    )  # fmt: skip
    return ours, shake(transformers.LlamaForCausalLM(config))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the casts to float32 out of the twin's norm and rotation; the formulas stay."""
    from transformers.models.llama import modeling_llama as llama

    def normed(self: Any, x: Tensor) -> Tensor:
        scaled: Tensor = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
        return scaled

    def tables(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        width, base = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        inverse = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
        angles = position_ids[..., None].double() * inverse
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()

    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", normed)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", tables)


NAMES = {
    "attention.heads.q": "self_attn.q_proj",
    "attention.heads.k": "self_attn.k_proj",
    "attention.heads.v": "self_attn.v_proj",
    "attention.heads.o": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.inner": "mlp.up_proj",
    "feedforward.outer": "mlp.down_proj",
    "placement.norms.attention": "input_layernorm",
    "placement.norms.feedforward": "post_attention_layernorm",
}
OUTER = {
    "embedding.tokens.weight": "model.embed_tokens.weight",
    "embedding.head.weight": "lm_head.weight",
    "body.norm.weight": "model.norm.weight",
}


def pairs(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Our tensors, by name, beside theirs: both keep matrices the same way around."""
    for name, tensor in ours.items():
        if name in OUTER:
            yield name, tensor, theirs[OUTER[name]]
        else:
            _, _, layer, *words, kind = name.split(".")
            yield name, tensor, theirs[f"model.layers.{layer}.{NAMES['.'.join(words)]}.{kind}"]


def copy(ours: Model, theirs: Any, *, back: bool = False) -> None:
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    found = list(pairs(mine, other))
    assert len(found) == len(mine) == len(other)
    with torch.no_grad():
        for _, one, view in found:
            view.copy_(one) if back else one.copy_(view)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("length", [1, 2, 9, 32])
def test_scores_are_those_of_the_twin(length: int, twins: tuple[Model, Any], shake: Shake) -> None:
    ours, theirs = twins
    tokens = torch.randint(7, 37, (3, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        copy(ours, theirs)
        same(ours(tokens)[0], theirs(tokens).logits)
        same(ours.hidden(tokens), theirs.model(tokens).last_hidden_state)
        shake(ours)
        copy(ours, theirs, back=True)
        same(ours(tokens)[0], theirs(tokens).logits)


def test_scores_are_those_of_the_twin_as_it_comes_up_to_its_float32(twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens = torch.randint(7, 37, (3, 15), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[0], theirs(tokens).logits, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_hidden_as_the_twin_hides_it(side: str, twins: tuple[Model, Any], padded: Padded) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens, text = padded(side)
    positions = (text.long().cumsum(1) - 1).clamp(min=0)
    stream = Stream(tokens, torch.where(text, 0, PADDING), positions)
    with torch.no_grad():
        found = Pass(ours.topology, Batch({"body": stream}, {}, torch.arange(3))).of("clm")
        expected = theirs(tokens, attention_mask=text.long(), position_ids=positions).logits
    same(found.unembed(found.hidden())[text], expected[text])


@pytest.mark.usefixtures("double")
def test_the_loss_and_its_gradients_are_those_of_the_twin(twins: tuple[Model, Any], padded: Padded) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens, text = padded("right")
    labels = tokens.where(text, IGNORED)
    batch = Batch(
        {"body": Stream(tokens[:, :-1], torch.where(text, 0, PADDING)[:, :-1])},
        {"clm": {"labels": labels[:, 1:]}},
        torch.arange(3),
    )
    answer = theirs(tokens, attention_mask=text.long(), labels=labels)
    loss, expected = ours.loss(batch), cross_entropy(answer.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    same(loss, expected)
    assert float(answer.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)  # it casts to float32
    loss.backward()
    expected.backward()
    mine = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    other = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert len(mine) == len(other)
    for name, one, view in pairs(mine, other):
        same(one, view, msg=f"{name} differs")


@pytest.mark.usefixtures("double")
def test_decoding_step_by_step_is_the_twins(twins: tuple[Model, Any]) -> None:
    ours, theirs = twins
    copy(ours, theirs)
    tokens = torch.randint(7, 37, (2, 13), generator=torch.Generator().manual_seed(1))
    states, cache = ours.start(2), None
    with torch.no_grad():
        for first, last in ((0, 5), (5, 6), (6, 9), (9, 13)):
            answer = theirs(tokens[:, first:last], past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            same(ours(tokens[:, first:last], states)[0], answer.logits)


def test_there_are_as_many_parameters(twins: tuple[Model, Any], numel: Callable[[nn.Module], int]) -> None:
    ours, theirs = twins
    assert numel(ours) == numel(theirs)
