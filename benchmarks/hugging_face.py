"""Models of Hugging Face without dropout, and the size of a model in comparisons."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Size(NamedTuple):
    """Size of a model and of its batches."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 4
    vocabulary: int = 8192

    def __str__(self) -> str:
        return (
            f"d {self.width}, L {self.layers}, {self.heads} heads, n {self.length}, batch {self.batch}, "
            f"V {self.vocabulary:,}"
        )

    def words(self) -> list[str]:
        """Return the words of a spec of this size."""
        dims = {name: getattr(self, name) for name in ("width", "layers", "heads", "length")}
        return [*(f"dims.{name}={value}" for name, value in dims.items()), f"data.batch={self.batch}"]


def bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=size.vocabulary, hidden_size=size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=4 * size.width, max_position_embeddings=size.length,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForMaskedLM(config)
    return model


def gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocabulary, n_positions=size.length, n_embd=size.width, n_layer=size.layers,
        n_head=size.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def bart(size: Size) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("layers", size.layers), ("attention_heads", size.heads), ("ffn_dim", 4 * size.width))
    }
    config = BartConfig(
        vocab_size=size.vocabulary, d_model=size.width, max_position_embeddings=size.length, dropout=0.0,
        use_cache=False, **sizes,
    )  # fmt: skip
    model: nn.Module = BartForConditionalGeneration(config)
    return model


def t5(size: Size) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=size.vocabulary, d_model=size.width, d_kv=size.width // size.heads, d_ff=4 * size.width,
        num_layers=size.layers, num_heads=size.heads, dropout_rate=0.0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    model: nn.Module = T5ForConditionalGeneration(config)
    return model
