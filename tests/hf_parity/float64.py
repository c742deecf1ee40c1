"""Float64 versions of functions of transformers that cast to float32, in norms and rotations."""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

import pytest
import torch
from torch import Tensor

CASTING_FAMILIES: Final = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def rms_norm(self: Any, x: Tensor) -> Tensor:
    scaled: Tensor = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
    return scaled


def rotary_tables(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    config = self.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inverse = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
    if config.rope_parameters["rope_type"] != "default":
        inverse = self.inv_freq
    angles = position_ids[..., None].double() * inverse
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos() * self.attention_scaling, doubled.sin() * self.attention_scaling


def t5_norm(self: Any, x: Tensor) -> Tensor:
    scaled: Tensor = self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return scaled


def modernbert_rotary_tables(self: Any, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
    width = self.config.hidden_size // self.config.num_attention_heads
    theta = self.config.rope_parameters[layer_type]["rope_theta"]
    inverse = 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
    angles = position_ids[..., None].double() * inverse
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    def rotate(x: Tensor) -> Tensor:
        first_half, second_half = x.chunk(2, dim=-1)
        return x * cos.unsqueeze(unsqueeze_dim) + torch.cat((-second_half, first_half), dim=-1) * sin.unsqueeze(
            unsqueeze_dim
        )

    return rotate(q), rotate(k)


def sinusoidal_table(num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> Tensor:
    half = embedding_dim // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10_000) / (half - 1)))
    angles = torch.arange(num_embeddings, dtype=torch.float64).unsqueeze(1) * frequencies
    table = torch.cat([angles.sin(), angles.cos(), torch.zeros(num_embeddings, embedding_dim % 2)], dim=1)
    if padding_idx is not None:
        table[padding_idx] = 0
    return table


def relative_positions(self: Any, qlen: int, klen: int, bsz: int | None = None, device: Any = None) -> Tensor:
    frequencies = 10_000 ** -(torch.arange(0, self.d_model, 2, dtype=torch.float64) / self.d_model)
    angles = torch.arange(klen, -qlen, -1, dtype=torch.float64).unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).unsqueeze(1).expand(-1, bsz or 1, -1)


def layer_norm(self: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.variance_epsilon)


def initialise_float64_biases(self: Any, original_init: Any, config: Any) -> None:
    original_init(self, config)
    for name in ("q_bias", "v_bias"):
        setattr(self, name, torch.nn.Parameter(getattr(self, name).double()))


def xlm_attention(self: Any, input: Tensor, mask: Tensor, **rest: Any) -> tuple[Tensor]:
    q, k, v = (
        linear(input).unflatten(2, (self.n_heads, -1)).transpose(1, 2)
        for linear in (self.q_lin, self.k_lin, self.v_lin)
    )
    scores = (q @ k.mT / math.sqrt(self.head_dim)).masked_fill((mask == 0)[:, None, None], -torch.inf)
    return (self.out_lin((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)),)


def gpt_neo_attention(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    queries, keys = query.shape[-2], key.shape[-2]
    visible = self.bias[:, :, keys - queries : keys, :keys]
    scores = (query @ key.mT).masked_fill(~visible, torch.finfo(query.dtype).min)
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return weights @ value, weights


def gptj_attention(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / self.scale_attn
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return weights @ value, weights


def gptj_rotary_table(num_pos: int, dim: int) -> Tensor:
    frequencies = 10_000 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(num_pos, dtype=torch.float64).unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Float64Torch:
    """Torch with float64 under the names of float32."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


def keep_float64(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importlib.import_module("transformers.modeling_rope_utils"), "torch", Float64Torch())
    ctrl = importlib.import_module("transformers.models.ctrl.modeling_ctrl")
    table = ctrl.positional_encoding
    patch.setattr(ctrl, "positional_encoding", lambda rows, width, _: table(rows, width, torch.float64))
    for name, prefix in CASTING_FAMILIES.items():
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        patch.setattr(getattr(module, f"{prefix}RMSNorm"), "forward", rms_norm)
        patch.setattr(getattr(module, f"{prefix}RotaryEmbedding"), "forward", rotary_tables)
    modern = importlib.import_module("transformers.models.modernbert.modeling_modernbert")
    patch.setattr(modern.ModernBertRotaryEmbedding, "forward", modernbert_rotary_tables)
    patch.setattr(modern, "apply_rotary_pos_emb", apply_rotary)
    for name in ("xlm", "flaubert"):
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        patch.setattr(module.MultiHeadAttention, "forward", xlm_attention)
    patch.setattr(
        importlib.import_module("transformers.models.gpt_neo.modeling_gpt_neo").GPTNeoSelfAttention,
        "_attn",
        gpt_neo_attention,
    )
    gptj = importlib.import_module("transformers.models.gptj.modeling_gptj")
    patch.setattr(gptj.GPTJAttention, "_attn", gptj_attention)
    patch.setattr(gptj, "create_sinusoidal_positions", gptj_rotary_table)
    m2m = importlib.import_module("transformers.models.m2m_100.modeling_m2m_100")
    patch.setattr(m2m.M2M100SinusoidalPositionalEmbedding, "get_embedding", staticmethod(sinusoidal_table))
    deberta = importlib.import_module("transformers.models.deberta.modeling_deberta")
    patch.setattr(deberta.DebertaLayerNorm, "forward", layer_norm)
    original_init = deberta.DisentangledSelfAttention.__init__
    patch.setattr(
        deberta.DisentangledSelfAttention,
        "__init__",
        lambda self, config: initialise_float64_biases(self, original_init, config),
    )
    xlnet = importlib.import_module("transformers.models.xlnet.modeling_xlnet")
    patch.setattr(xlnet.XLNetModel, "relative_positional_encoding", relative_positions)
    patch.setattr(torch, "FloatTensor", torch.DoubleTensor)  # XLNet creates its projections as FloatTensor
    patch.setattr(importlib.import_module("transformers.models.t5.modeling_t5").T5LayerNorm, "forward", t5_norm)
