"""Synonyms of spec and study keys: what other libraries call `dims.layers`, `data.batch`, `optimizer.lr` and so on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from paribus.errors import closest_match

_NAMES: Final = {
    "dims.width": "d_model dim model_dim hidden_size hidden_dim hidden n_embd embed_dim embedding_dim emb_dim",
    "dims.layers": "depth n_layers n_layer num_layers num_hidden_layers num_blocks n_blocks",
    "dims.heads": "n_heads n_head num_heads num_attention_heads nhead",
    "dims.head_width": "head_dim d_head head_size d_k",
    "dims.length": "seq_len seq_length sequence_length max_seq_len max_length context_length block_size n_ctx "
    "n_positions max_position_embeddings",
    "dims.vocabulary": "vocab_size vocab n_vocab",
    "attention.kv_heads": "n_kv_heads num_kv_heads num_key_value_heads",
    "feedforward.inner": "d_ff ffn_dim dim_feedforward intermediate_size hidden_features d_inner",
    "feedforward.activation": "activation hidden_act act_fn",
    "data.batch": "batch_size train_batch_size per_device_train_batch_size micro_batch_size bs",
    "data.workers": "num_workers",
    "optimizer.lr": "lr learning_rate",
    "optimizer.weight_decay": "weight_decay wd",
    "trainer.gradient_clip_val": "grad_clip max_grad_norm gradient_clip gradient_clip_val clip_grad_norm",
    "trainer.accumulate_grad_batches": "gradient_accumulation_steps accumulate_grad_batches grad_accum",
    "trainer.precision": "precision dtype",
    "trainer.max_steps": "steps max_steps num_steps n_steps total_steps train_steps iterations max_iters epochs "
    "max_epochs num_epochs n_epochs num_train_epochs",
    "seed": "random_seed",
    "objective": "loss loss_fn criterion",
    "tokenizer": "tokeniser",
    "corpus": "dataset",
}
SYNONYMS: Final = {synonym: key for key, names in _NAMES.items() for synonym in names.split()}
BUDGET: Final = "budget.steps"  # of a study, in place of `trainer.max_steps`


def suggest_key(key: str, known_keys: Collection[str]) -> str:
    """Return the key that was probably meant by an unknown one, or an empty string.

    `known` are the valid keys at that place. A key of another place is named in full: `data.batch` for `batch_size`.
    """
    meant = SYNONYMS.get(key.lower().replace("-", "_"))
    if meant is None:
        return closest_match(key, known_keys)
    name = meant.rpartition(".")[2]
    if name in known_keys:
        return name
    if meant == "trainer.max_steps" and "steps" in known_keys:  # in a budget
        return "steps"
    if "base" in known_keys and "budget" in known_keys:  # among the keys of a study
        return BUDGET if meant == "trainer.max_steps" else f"base.{meant}"
    return meant
