"""Parity cases of every family of transformers, in odd shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

VOCABULARY: Final = 131  # enough for a preset's sentinels
LENGTH: Final = 23
TOLERANCE: Final = 1e-9
SPECIALS: Final = {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6}
TIED: Final = {"tie_word_embeddings": True}
LLAMA3: Final = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN: Final = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
SLOW: Final = {"rope_type": "default", "rope_theta": 5e5}


class Case(NamedTuple):
    """A small random model of transformers."""

    label: str
    model: str  # class in transformers
    config: Mapping[str, Any]
    padded_positions: Literal["given", "index", "text"] = (
        "given"  # positions with padding: given, by index, or counted over text
    )
    reads: Literal["tokens", "images"] = "tokens"
    parameters: int | None = None  # published number of parameters at the configuration's defaults

    @property
    def hf_model(self) -> Any:
        """The random model in float64, in eval mode."""
        import transformers

        name = self.model
        model_class = getattr(transformers, name)
        common = {**SPECIALS, "vocab_size": VOCABULARY} if self.reads == "tokens" else {}
        return model_class(model_class.config_class(**{**common, **self.config})).double().eval()


def _bert(width: int, heads: int, layers: int, **config: Any) -> dict[str, Any]:
    return {
        "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": 31,
        "max_position_embeddings": LENGTH, **config,
    }  # fmt: skip


def _llama(width: int, heads: int, kv_heads: int, layers: int, **config: Any) -> dict[str, Any]:
    return {**_bert(width, heads, layers), "num_key_value_heads": kv_heads, **config}


_ALBERT = {"embedding_size": 10}


def _vit(width: int, heads: int, **config: Any) -> dict[str, Any]:
    return {
        "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": 2, "intermediate_size": 31,
        "image_size": 6, "patch_size": 2, "num_channels": 1, "num_labels": 5, **config,
    }  # fmt: skip


_ELECTRA = {"embedding_size": 7}
_GPT2 = {"n_positions": LENGTH, "n_embd": 15, "n_head": 3, "n_layer": 3}
_GPT_NEO = {
    "max_position_embeddings": LENGTH, "hidden_size": 15, "num_heads": 3, "num_layers": 3, "window_size": 4,
    "attention_types": [[["global", "local", "local"], 1]],
}  # fmt: skip
_GPT_J = {**_GPT2, "n_embd": 30, "rotary_dim": 4}
_DISTILBERT = {"max_position_embeddings": LENGTH, "dim": 15, "n_heads": 3, "n_layers": 2, "hidden_dim": 31}

_ROBERTA = {"pad_token_id": 1, "max_position_embeddings": LENGTH + 2}
_XLM = {"emb_dim": 15, "n_layers": 2, "n_heads": 3, "n_langs": 3, "max_position_embeddings": LENGTH}
_FULL = {"attention_type": "original_full"}

_CTRL = {"n_positions": LENGTH, "n_embd": 14, "n_head": 2, "n_layer": 2, "dff": 31}
_T5 = {
    "d_model": 24, "d_kv": 6, "num_heads": 3, "num_layers": 2, "d_ff": 31, "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
}  # fmt: skip
_M2M100 = {
    "d_model": 15, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 31, "pad_token_id": 1,
    "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 31, "max_position_embeddings": LENGTH,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "attention_dropout": 0.1,
}  # fmt: skip
_BART = {**_M2M100, "d_model": 18, "dropout": 0.1}
UNLIKE: Final = {"encoder_layers": 1, "encoder_attention_heads": 5, "encoder_ffn_dim": 17, "scale_embedding": False}
_DEBERTA = {
    "relative_attention": True, "position_biased_input": False, "max_relative_positions": 4,
    "pos_att_type": ["c2p", "p2c"],
}  # fmt: skip
_DEBERTA_P2C = {**_DEBERTA, "pos_att_type": "p2c", "type_vocab_size": 2}
_DEBERTA_C2P = {**_DEBERTA, "pos_att_type": "c2p", "share_att_key": True, "conv_kernel_size": 0}
_DEBERTA_V3 = {
    **_DEBERTA, "max_relative_positions": 9, "position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
_XLNET = {"d_model": 18, "n_head": 3, "n_layer": 2, "d_inner": 31}
_XLNET_RELU = {**_XLNET, "d_model": 28, "n_head": 7, "ff_activation": "relu"}
GATED: Final = {
    "feed_forward_proj": "gated-gelu",
    "num_decoder_layers": 1,
    "num_layers": 2,
    "tie_word_embeddings": False,
}
BIASED: Final = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "tie_word_embeddings": False}


def _modernbert(layers: int, **config: Any) -> dict[str, Any]:
    """Return a configuration with ModernBERT's special tokens."""
    ids = {"cls_token_id": 2, "sep_token_id": 3, "num_attention_heads": 3, "hidden_size": 18, "intermediate_size": 31}
    return {**ids, "num_hidden_layers": layers, "max_position_embeddings": LENGTH, **config}


CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    "gpt2": (
        Case("three heads, tied", "GPT2LMHeadModel", _GPT2, parameters=124_439_808),
        Case(
            "untied, five heads, unscaled",
            "GPT2LMHeadModel",
            {
                **_GPT2, "n_embd": 20, "n_head": 5, "n_layer": 2, "tie_word_embeddings": False, "n_inner": 31,
                "scale_attn_weights": False, "activation_function": "relu",
            },
        ),
        Case("one head", "GPT2LMHeadModel", {**_GPT2, "n_embd": 8, "n_head": 1, "n_layer": 1}),
    ),
    "openai-gpt": (
        Case("three heads", "OpenAIGPTLMHeadModel", _GPT2, "index", parameters=116_534_784),
        Case("one head, ReLU", "OpenAIGPTLMHeadModel", {**_GPT2, "n_embd": 8, "n_head": 1, "afn": "relu"}, "index"),
    ),
    "gpt_neo": (
        Case("two kinds of layers, tied", "GPTNeoForCausalLM", _GPT_NEO, parameters=1_315_575_808),
        Case(
            "local layers only, untied, ReLU",
            "GPTNeoForCausalLM",
            {
                **_GPT_NEO, "hidden_size": 20, "num_heads": 5, "num_layers": 2, "attention_types": [[["local"], 2]],
                "intermediate_size": 31, "activation_function": "relu", "tie_word_embeddings": False,
            },
        ),
        Case(
            "global layers only",
            "GPTNeoForCausalLM",
            {**_GPT_NEO, "num_layers": 1, "attention_types": [[["global"], 1]]},
        ),
    ),
    "gptj": (
        Case("four of ten channels rotated", "GPTJForCausalLM", _GPT_J, parameters=6_050_882_784),
        Case(
            "all channels rotated, tied, ReLU",
            "GPTJForCausalLM",
            {
                **_GPT_J, "n_embd": 20, "n_head": 5, "n_layer": 2, "n_inner": 31, "activation_function": "relu", **TIED,
            },
        ),
    ),
    "ctrl": (Case("two heads", "CTRLLMHeadModel", _CTRL, "index"),),
    "albert": (
        Case("both heads", "AlbertForPreTraining", _bert(15, 3, 3, **_ALBERT), "index", parameters=223_158_450),
        Case(
            "two groups, a table wider than the model, exact GELU",
            "AlbertForMaskedLM",
            _bert(14, 7, 4, embedding_size=18, num_hidden_groups=2, type_vocab_size=3, hidden_act="gelu"),
            "index",
        ),
    ),
    "electra": (
        Case("a discriminator", "ElectraForPreTraining", _bert(15, 3, 3, **_ELECTRA), "index", parameters=13_549_057),
        Case("a generator", "ElectraForMaskedLM", _bert(14, 7, 2, embedding_size=9, type_vocab_size=3), "index"),
        Case("a table of the model width", "ElectraForMaskedLM", _bert(8, 1, 1, embedding_size=8), "index"),
    ),
    "bert": (
        Case("both heads", "BertForPreTraining", _bert(15, 3, 3), "index", parameters=110_106_428),
        Case("one head, seven of attention", "BertForMaskedLM", _bert(28, 7, 1, type_vocab_size=3), "index"),
    ),
    "roberta": (
        Case("three heads", "RobertaForMaskedLM", _bert(15, 3, 2, **_ROBERTA), "text"),
        Case("two segments", "RobertaForMaskedLM", _bert(14, 7, 1, type_vocab_size=2, **_ROBERTA), "text"),
    ),
    "xlm": (
        Case("three languages", "XLMWithLMHeadModel", _XLM, "index"),
        Case(
            "one language, untied, ReLU",
            "XLMWithLMHeadModel",
            {**_XLM, "n_langs": 1, "n_heads": 5, "gelu_activation": False, "tie_word_embeddings": False},
            "index",
        ),
    ),
    "flaubert": (
        Case("one language", "FlaubertWithLMHeadModel", {**_XLM, "n_langs": 1}, "index"),
        Case(
            "two languages, untied, ReLU",
            "FlaubertWithLMHeadModel",
            {**_XLM, "n_langs": 2, "n_heads": 5, "gelu_activation": False, "tie_word_embeddings": False},
            "index",
        ),
    ),
    "xlm-roberta": (Case("five heads", "XLMRobertaForMaskedLM", _bert(20, 5, 2, **_ROBERTA), "text"),),
    "big_bird": (
        Case("both heads", "BigBirdForPreTraining", _bert(15, 3, 2, **_FULL), "index"),
        Case(
            "one head, scaled embeddings, exact GELU",
            "BigBirdForMaskedLM",
            _bert(14, 7, 1, rescale_embeddings=True, hidden_act="gelu", **_FULL),
            "index",
        ),
    ),
    "distilbert": (
        Case("three heads", "DistilBertForMaskedLM", _DISTILBERT, "index", parameters=66_985_530),
        Case("untied", "DistilBertForMaskedLM", {**_DISTILBERT, "tie_word_embeddings": False}, "index"),
    ),
    "llama": (
        Case("one key head, wide heads", "LlamaForCausalLM", _llama(18, 6, 1, 3, head_dim=10, rms_norm_eps=1e-5)),
        Case("biases, tied", "LlamaForCausalLM", _llama(24, 6, 3, 2, attention_bias=True, mlp_bias=True, **TIED)),
        Case("Llama 3 rotary scaling", "LlamaForCausalLM", _llama(24, 6, 2, 2, rope_parameters=LLAMA3)),
        Case("YaRN rotary scaling", "LlamaForCausalLM", _llama(24, 6, 2, 2, rope_parameters=YARN)),
        Case("as many key heads", "LlamaForCausalLM", _llama(20, 5, 5, 1, rope_parameters=SLOW)),
    ),
    "modernbert": (
        Case("an incomplete cycle of layers", "ModernBertForMaskedLM", _modernbert(7, local_attention=6), "index"),
        Case("biases, untied", "ModernBertForMaskedLM", _modernbert(2, **BIASED), "index"),
    ),
    "t5": (
        Case("relu, tied", "T5ForConditionalGeneration", _T5, "index", parameters=60_506_624),
        Case("gated, a deeper encoder", "T5ForConditionalGeneration", {**_T5, **GATED}, "index"),
    ),
    "bart": (
        Case("three heads", "BartForConditionalGeneration", _BART, "index"),
        Case(
            "encoder and decoder differ, scaled, ReLU",
            "BartForConditionalGeneration",
            {**_BART, **UNLIKE, "encoder_attention_heads": 6, "scale_embedding": True, "activation_function": "relu"},
            "index",
        ),
    ),
    "m2m_100": (
        Case("three heads, an odd width", "M2M100ForConditionalGeneration", _M2M100, "text"),
        Case("encoder and decoder differ", "M2M100ForConditionalGeneration", {**_M2M100, **UNLIKE}, "text"),
    ),
    "deberta": (
        Case("three heads", "DebertaForMaskedLM", _bert(36, 3, 2, **_DEBERTA), "index"),
        Case("p2c only, segments", "DebertaForMaskedLM", _bert(16, 2, 1, **_DEBERTA_P2C), "index"),
    ),
    "deberta-v2": (
        Case("buckets, normed", "DebertaV2ForMaskedLM", _bert(36, 3, 2, **_DEBERTA_V3), "index"),
        Case("no buckets or norm, c2p only", "DebertaV2ForMaskedLM", _bert(16, 2, 1, **_DEBERTA_C2P), "index"),
    ),
    "xlnet": (
        Case("three heads", "XLNetLMHeadModel", _XLNET, "index"),
        Case("seven heads, ReLU", "XLNetLMHeadModel", _XLNET_RELU, "index"),
    ),
    "mistral": (
        Case("a window of 4", "MistralForCausalLM", _llama(24, 6, 2, 2, head_dim=6, sliding_window=4)),
        Case("no window", "MistralForCausalLM", _llama(24, 6, 2, 1, head_dim=4, sliding_window=None)),
    ),
    "qwen2": (
        Case("biases but for the output", "Qwen2ForCausalLM", _llama(24, 6, 2, 2, rope_parameters=SLOW)),
        Case("as many key heads, tied", "Qwen2ForCausalLM", _llama(20, 5, 5, 1, **TIED)),
    ),
    "qwen3": (
        Case("normalised queries and keys", "Qwen3ForCausalLM", _llama(24, 6, 2, 2, head_dim=6)),
        Case("with biases, tied", "Qwen3ForCausalLM", _llama(20, 5, 1, 2, head_dim=8, attention_bias=True, **TIED)),
    ),
    "vit": (
        Case("three heads, grey", "ViTForImageClassification", _vit(18, 3), reads="images", parameters=85_800_194),
        Case(
            "patches of one pixel, three layers, ReLU", "ViTForImageClassification",
            _vit(20, 5, image_size=4, patch_size=1, num_channels=2, num_hidden_layers=3, hidden_act="relu"),
            reads="images",
        ),
        Case(
            "one patch, many classes", "ViTForImageClassification", _vit(8, 1, patch_size=6, num_labels=300),
            reads="images",
        ),
    ),
}  # fmt: skip


def table(differences: Mapping[tuple[str, str], float]) -> str:
    """Return the contents of `docs/parity.md`."""
    import torch
    import transformers

    kinds = sorted({kind for _, kind in differences})
    rows = [["family", "cases", *kinds]]
    for family, cases in CASES.items():
        values = [differences.get((family, kind)) for kind in kinds]
        labels = "; ".join(case.label for case in cases)
        rows.append([f"`{family}`", labels, *("" if value is None else f"{value:.1e}" for value in values)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join([*HEAD, *lines, "", f"transformers {transformers.__version__}, torch {torch.__version__}", ""])


HEAD: Final = (
    "# Parity",
    "",
    "Random models of the `transformers` library, in odd shapes, are converted by `paribus.convert`. The table lists",
    "the largest differences between the outputs of both, in float64, with padding on either side. Casts to float32 in",
    "the reference (norms and rotations of Llama and derived families, tables of CTRL and M2M-100) are removed.",
    "Written by `make parity`; the tests require every difference to be below 1e-9.",
    "",
)
