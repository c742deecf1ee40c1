"""Greedy decoding of Llamas with fewer key heads, from paribus and from Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from benchmarks.gpu_setup import model_and_data
from benchmarks.peer_models import initialised, missing_line
from torch import Tensor

import paribus

VOCABULARY = 1024  # small, so that the scores of all tokens take little of the time
Greedy = Callable[[], Tensor]


class Size(NamedTuple):
    """Size of the models, of the context and of the batch."""

    width: int = 512
    layers: int = 4
    heads: int = 8
    context: int = 2048
    new: int = 8
    batch: int = 8

    def __str__(self) -> str:
        return (
            f"context {self.context:,}, batch {self.batch}, d {self.width}, L {self.layers}, {self.heads} heads, "
            f"V {VOCABULARY:,}"
        )

    @property
    def inner(self) -> int:
        """Width of the gated feed-forward layers: 8/3 of the model's, as Llama's."""
        return 8 * self.width // 3

    @property
    def key_heads(self) -> dict[str, int]:
        return {"MHA": self.heads, "GQA": self.heads // 4, "MQA": 1}


def ours(size: Size, kind: str) -> Any:
    attention = {"MHA": "mha", "GQA": f"gqa, kv_heads: {size.key_heads['GQA']}", "MQA": "mqa"}[kind]
    words = (
        "llama-tiny", f"dims.width={size.width}", f"dims.layers={size.layers}", f"dims.heads={size.heads}",
        f"dims.length={size.context + size.new}", f"attention={{name: {attention}, scores: {{bias: false}}}}",
        f"feedforward={{name: glu, activation: silu, inner: {size.inner}, bias: false}}",
    )  # fmt: skip
    model, _ = model_and_data(*words, size=VOCABULARY, mean_length=4 * size.context)
    return initialised(model).eval()


def hugging_face(size: Size, kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=size.width, intermediate_size=size.inner, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.key_heads[kind],
        max_position_embeddings=size.context + size.new,
    )  # fmt: skip
    return initialised(LlamaForCausalLM(config)).eval()


@torch.no_grad()
def greedy(model: Any, prompt: Tensor, new: int) -> Greedy:
    """Return a function that decodes from the end of the prompt with a paribus model."""
    context = prompt.shape[1]
    states = model.start(len(prompt), context + new)
    first = best(model(prompt, states)[0])
    layout = states.layout

    @torch.no_grad()
    def run() -> Tensor:
        states.past, states.layout = context, layout
        tokens = [first]
        for _ in range(new):
            tokens.append(best(model(tokens[-1], states)[0]))
        return torch.cat(tokens, dim=1)

    return run


@torch.no_grad()
def hugging_face_greedy(model: Any, prompt: Tensor, new: int, *, static: bool) -> Greedy:
    """Return the same for Hugging Face: a cache that grows, its default, or one of a fixed length."""
    from transformers import DynamicCache, StaticCache

    context = prompt.shape[1]
    cache: Any = StaticCache(model.config, max_cache_len=context + new) if static else DynamicCache(config=model.config)
    first = best(model(prompt, past_key_values=cache).logits)

    @torch.no_grad()
    def run() -> Tensor:
        if static:
            for layer in cache.layers:
                layer.cumulative_length.fill_(context)
        else:
            cache.crop(context - cache.get_seq_length())
        tokens = [first]
        for _ in range(new):
            tokens.append(best(model(tokens[-1], past_key_values=cache).logits))
        return torch.cat(tokens, dim=1)

    return run


def best(logits: Tensor) -> Tensor:
    """(B, T, V) -> (B, 1): the most likely token after the last position."""
    return logits[:, -1:].argmax(dim=-1)


def contestants(size: Size) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """Return what is run by label, our multi-head attention first, and a line about each model that is left out."""
    torch.manual_seed(0)
    prompt = torch.randint(16, VOCABULARY, (size.batch, size.context))
    runs: dict[str, Callable[[], object]] = {}
    notes = []
    for kind, key_heads in size.key_heads.items():
        runs[label("paribus", kind, key_heads)] = greedy(ours(size, kind), prompt, size.new)
    for kind, key_heads in size.key_heads.items():
        try:
            peer = hugging_face(size, kind)
        except ModuleNotFoundError as missing:
            notes.append(missing_line(label("Hugging Face Llama", kind, key_heads), missing))
            continue
        for static, cache in ((False, "growing cache"), (True, "static cache")):
            check(peer, prompt[:2, : size.context // 16], size.new, static=static)
            name = label(f"Hugging Face Llama, {cache}", kind, key_heads)
            runs[name] = hugging_face_greedy(peer, prompt, size.new, static=static)
    return runs, notes


def label(library: str, kind: str, key_heads: int) -> str:
    return f"{library}, {kind}, {key_heads} key head{'s' if key_heads > 1 else ''}"


def check(peer: Any, prompt: Tensor, new: int, *, static: bool) -> None:
    """Check that the paribus model with the same weights decodes the same tokens, a second time as well."""
    expected = greedy(paribus.convert(peer), prompt, new)()
    run = hugging_face_greedy(peer, prompt, new, static=static)
    for tokens in (run(), run()):
        if not torch.equal(tokens, expected):
            raise SystemExit("a Hugging Face Llama decodes other tokens than paribus with its weights")
