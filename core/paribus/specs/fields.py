"""Keys of a spec: slots, options of `dims` and `data`, and their names in other libraries (`d_model`, `lr`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final, Literal, final

from paribus.errors import closest_match
from paribus.registry.class_reader import group_options
from paribus.schema import Example, Kind, Option, Range

SCHEMA: Final = 1  # the number in `paribus: 1`: the version of the format of specs

ARCHITECTURE: Final = ("embedding", "attention", "position", "norm", "placement", "feedforward")
ALWAYS: Final = ("initialisation", "objective", "corpus", "tokenizer", "optimizer", "schedule")  # for every topology
CYCLED: Final = ("attention", "position", "norm", "placement", "feedforward")  # a list is cycled over the layers
SUMMED: Final = ("objective",)  # a list is a sum
MEASURED: Final = ("measure",)  # a list is measured one after the other
CROSS: Final = ("attention", "position")  # slots of a cross-attention
NO_POSITION: Final = "none"  # default position of a cross-attention

_SIZE = 10**9


@final
@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes of the model."""

    width: Annotated[int, "width of the residual stream", Range(1, _SIZE), Example(64)]
    layers: Annotated[int, "layers of each stack", Range(1, 2048), Example(2)]
    groups: Annotated[
        int | None,
        "sets of parameters, each shared by a run of successive layers (ALBERT: 1); null: every layer has its own",
        Range(1, 10_000),
    ] = None
    loops: Annotated[
        int | None,
        "passes of a loop over the same layers, so that `layers` counts each pass (Universal Transformer: as many as "
        "layers); null: no loop",
        Range(1, 2048),
    ] = None
    before_loop: Annotated[int, "layers before the loop, which run once", Range(0, 2048)] = 0
    after_loop: Annotated[int, "layers after the loop, which run once", Range(0, 2048)] = 0
    loop_embedding: Annotated[bool, "add a learned vector before each pass of the loop"] = False
    heads: Annotated[int, "query heads of each attention", Range(1, 10**6), Example(4)]
    head_width: Annotated[int | None, "width of a head; null: width / heads", Range(1, _SIZE)] = None
    length: Annotated[int, "sequence length in tokens", Range(1, _SIZE), Example(64)]
    vocabulary: Annotated[int | None, "size of the vocabulary; null: the tokenizer's", Range(1, _SIZE)] = None


@final
@dataclass(frozen=True)
class Data:
    """Batches and evaluations."""

    batch: Annotated[int, "examples in a batch", Range(1, _SIZE)] = 32
    workers: Annotated[int, "processes that form batches; 0: the process of the trial", Range(0, 1024)] = 0
    validation: Annotated[int, "maximum number of validation examples", Range(1, _SIZE)] = 512
    evaluations: Annotated[int, "evaluations of a run, evenly spaced, the last at its end", Range(1, 10_000)] = 4
    documents: Annotated[
        Literal["mixed", "apart", "packed"],
        "documents of an example: mixed: joined and split at dims.length; apart: the same, masked from each other; "
        "packed: only whole documents, masked from each other, each with positions from 0",
    ] = "mixed"
    bucket: Annotated[
        int,
        "batches that are sorted by length together and padded to their longest example; 0: padded to dims.length",
        Range(0, _SIZE),
    ] = 0


@final
@dataclass(frozen=True)
class TrainerArguments:
    """Arguments of the trainer that are not Lightning's, besides `compile`."""

    activation_checkpointing: Annotated[
        bool, "store only the input of each layer, and compute the rest again in the backward pass"
    ] = False
    matmul_precision: Annotated[
        Literal["highest", "high", "medium"],
        "precision of products of float32 matrices: float32, TF32 or bfloat16, where the device has them",
    ] = "highest"
    ema_decay: Annotated[
        float | None,
        "evaluate and save an exponential moving average of the weights, of which each step keeps this share; null: "
        "the last weights",
        Range(above=0, below=1),
    ] = None


@final
@dataclass(frozen=True)
class Freeze:
    """Parameters that are not trained."""

    paths: Annotated[
        tuple[str, ...],
        "modules or parameters by path; `*` stands for any part of a word, `**` for words",
        Example(["embedding", "body"]),
    ] = ()
    trained: Annotated[tuple[str, ...], "paths of these that are trained all the same", Example(["**.bias"])] = ()
    layers: Annotated[int, "first layers of each stack, frozen as well", Range(0, 2048)] = 0
    steps: Annotated[int | None, "first steps, after which all are trained; null: every step", Range(1, 10**12)] = None


@final
@dataclass(frozen=True)
class Compile:
    """Options of `compile`."""

    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"], "mode of torch.compile"
    ] = "default"
    backend: Annotated[
        Literal["inductor", "aot_eager", "eager"], "backend of torch.compile; all but inductor are for debugging"
    ] = "inductor"


DIMS: Final = group_options(Dims)
PART_DIMS: Final = (
    "width",
    "layers",
    "groups",
    "loops",
    "before_loop",
    "after_loop",
    "loop_embedding",
    "heads",
    "head_width",
    "length",
)  # the vocabulary is of the embedding, which parts share

DATA: Final = group_options(Data)
DROPOUT: Final = Option("dropout", Kind("float"), "dropout probability", (Range(0, below=1),), 0.0)
SEED: Final = Option("seed", Kind("int"), "seed of all random draws", (Range(0, 2**63 - 1),), 0)
COMPILE: Final = "compile"  # our own arguments among those of the trainer
TRAINER_OPTIONS: Final = group_options(TrainerArguments)
ACTIVATION_CHECKPOINTING, MATMUL_PRECISION, EMA_DECAY = TRAINER_OPTIONS
COMPILE_OPTIONS: Final = group_options(Compile)
FREEZE_OPTIONS: Final = group_options(Freeze)
MAX_STEPS: Final = 10**12
STEPS: Final = Option("max_steps", Kind("int"), "training steps", (Range(1, MAX_STEPS),), 1)

KEYS: Final = (
    "topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "initialisation",
    "dropout", "objective", "corpus", "tokenizer", "data", "optimizer", "schedule", "trainer", "evaluate", "measure",
    "parts", "from", "teacher", "freeze", "seed",
)  # fmt: skip
META: Final = ("preset", "paribus", "plugins")  # not in the resolved spec


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
    "trainer.compile": "compile torch_compile compile_model",
    "trainer.ema_decay": "ema use_ema model_ema ema_decay model_ema_decay weight_averaging",
    "trainer.activation_checkpointing": "gradient_checkpointing activation_checkpointing checkpoint_activations",
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
    """Return the closest valid key for an unknown one, or an empty string.

    A key that belongs elsewhere is given with its path: `data.batch` for `batch_size`.
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
