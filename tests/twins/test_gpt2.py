"""GPT-2, against the `transformers` library's: the same numbers with the same weights."""

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
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import shapes_of
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

Assemble = Callable[..., Model]
Shake = Callable[[nn.Module], nn.Module]
Padded = Callable[[str], tuple[Tensor, Tensor]]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)

SHAPES = {
    "three heads, tied": (15, 3, 3, True),
    "five heads, untied": (20, 5, 2, False),
    "one head": (8, 1, 1, True),
}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def twins(request: pytest.FixtureRequest, assemble: Assemble, shake: Shake) -> tuple[Model, Any]:
    """Our model, and theirs with weights of its own."""
    width, heads, layers, tie = request.param
    ours = assemble(
        "gpt2",
        f"dims.width={width}",
        f"dims.heads={heads}",
        f"dims.layers={layers}",
        "dims.length=23",
        f"embedding.tie={str(tie).lower()}",
    )
    config = transformers.GPT2Config(
        n_embd=width, n_head=heads, n_layer=layers, vocab_size=37, n_positions=23, tie_word_embeddings=tie,
        bos_token_id=5, eos_token_id=6,
    )  # fmt: skip
    return ours, shake(transformers.GPT2LMHeadModel(config))


def pairs(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Our tensors, by name, beside views of theirs, which keep matrices the other way around."""
    yield "embedding.tokens.weight", ours["embedding.tokens.weight"], theirs["transformer.wte.weight"]
    yield "body.position.0.table.weight", ours["body.position.0.table.weight"], theirs["transformer.wpe.weight"]
    if "embedding.head.weight" in ours:
        yield "embedding.head.weight", ours["embedding.head.weight"], theirs["lm_head.weight"]
    norms = {"placement.norms.attention": "ln_1", "placement.norms.feedforward": "ln_2"}
    linears = {"attention.heads.o": "attn.c_proj", "feedforward.inner": "mlp.c_fc", "feedforward.outer": "mlp.c_proj"}
    for kind in ("weight", "bias"):
        yield f"body.norm.{kind}", ours[f"body.norm.{kind}"], theirs[f"transformer.ln_f.{kind}"]
        for name in [name for name in ours if name.startswith("body.layers.") and name.endswith(kind)]:
            _, _, layer, *words, _ = name.split(".")
            place, there = ".".join(words), f"transformer.h.{layer}."
            if place in norms:
                yield name, ours[name], theirs[f"{there}{norms[place]}.{kind}"]
            elif place in linears:
                yield name, ours[name], turned(theirs[f"{there}{linears[place]}.{kind}"])
            else:
                third = turned(theirs[f"{there}attn.c_attn.{kind}"]).chunk(3)["qkv".index(words[-1])]
                yield name, ours[name], third


def copy(ours: Model, theirs: Any, *, back: bool = False) -> None:
    """Gives ours the weights of theirs, or the other way; nothing may be left over on either side."""
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    found = list(pairs(mine, other))
    assert {name for name, _, _ in found} == mine.keys()
    assert sum(view.numel() for _, _, view in found) == sum(each.numel() for each in other.values())
    with torch.no_grad():
        for _, one, view in found:
            view.copy_(one) if back else one.copy_(view)


def turned(x: Tensor) -> Tensor:
    return x.mT if x.ndim == 2 else x


@pytest.mark.parametrize("length", [1, 2, 7, 23])
def test_scores_are_those_of_the_twin(length: int, twins: tuple[Model, Any], shake: Shake) -> None:
    ours, theirs = twins
    tokens = torch.randint(7, 37, (3, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        copy(ours, theirs)
        same(ours(tokens)[0], theirs(tokens).logits)
        same(ours.hidden(tokens), theirs.transformer(tokens).last_hidden_state)
        shake(ours)
        copy(ours, theirs, back=True)
        same(ours(tokens)[0], theirs(tokens).logits)


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
    for name, one, view in pairs(mine, other):
        same(one, view, msg=f"{name} differs")


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


def test_there_are_as_many_parameters_of_as_many_shapes_as_were_published(
    components: Registry, numel: Callable[[nn.Module], int]
) -> None:
    with torch.device("meta"):
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    ours = shapes_of(resolved("gpt2", registry=components), components)
    mine = {
        f"{name}.{path}": value for name, child in ours.children().items() for path, value in child.named_parameters()
    }
    found = list(pairs(mine, dict(theirs.named_parameters())))
    assert all(one.shape == view.shape for _, one, view in found)
    assert {name for name, _, _ in found} == mine.keys()
    assert numel(theirs) == sum(value.numel() for value in mine.values()) == 124_439_808
