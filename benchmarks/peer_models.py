"""Models of the same size from paribus, other libraries and by hand, for comparisons of training steps.

A model is built in a function that imports its library, so that a library that is not installed costs one line of the
table. All matrices are initialised in the same way; `checked` compares parameters and first losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, final

import torch
from benchmarks import floors, hugging_face
from benchmarks.floors import every_position
from benchmarks.gpu_setup import FIRST_WORD, model_and_data
from benchmarks.hugging_face import Size
from torch import Tensor, nn
from torch.nn import functional

import paribus
from paribus.parts.batch import IGNORED, Batch, Stream

PARAMETERS, LOSS = 0.05, 0.5  # largest deviation from the parameters of the reference, and from ln V
LITGPT = "pip install --no-deps litgpt==0.5.13"  # as a dependency, it would replace huggingface-hub by an old one
SEQUENCE_OBJECTIVES = ("span-corruption", "denoise")  # of T5 and BART, here with the same labels
gelu_tanh = partial(functional.gelu, approximate="tanh")


class Contestant(NamedTuple):
    """Model and its loss of a batch. `twin`: label of another model with the same mathematics and weights."""

    module: nn.Module
    loss: Callable[[Batch], Tensor]
    twin: str = ""


class Family(NamedTuple):
    """Comparable models by label; the first is the reference."""

    title: str
    batch: Callable[[Size], Batch]
    models: Mapping[str, Callable[[Size], Contestant]]


def initialised(module: nn.Module) -> nn.Module:
    """Initialise all matrices as GPT-2 does, with the same seed for every model."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
    return module


def checked(contestants: Mapping[str, Contestant], batch: Batch, size: Size) -> dict[str, tuple[int, float]]:
    """Return the number of parameters and the first loss of each model, or end the program if they do not fit."""
    figures: dict[str, tuple[int, float]] = {}
    for label, contestant in contestants.items():
        parameters = sum(parameter.numel() for parameter in contestant.module.parameters())
        with torch.no_grad():
            figures[label] = parameters, float(contestant.loss(batch))
    reference = next(iter(figures.values()))[0]
    for label, (parameters, loss) in figures.items():
        if abs(parameters / reference - 1) > PARAMETERS:
            raise SystemExit(f"{label} has {parameters:,} parameters, and the reference {reference:,}")
        if abs(loss - math.log(size.vocabulary)) > LOSS:
            raise SystemExit(f"{label} begins with a loss of {loss:.2f}; ln V is {math.log(size.vocabulary):.2f}")
        twin = contestants[label].twin
        if twin in figures and abs(loss - figures[twin][1]) > 1e-4:
            raise SystemExit(f"{label} begins with a loss of {loss:.5f}, and {twin} with {figures[twin][1]:.5f}")
    return figures


# -- batches -----------------------------------------------------------------------------------------------------------


def batch_of(preset: str, size: Size) -> Batch:
    _, data = model_and_data(preset, *size.words(), size=size.vocabulary, mean_length=4 * size.length)
    return data.step(0)


def translation_batch(size: Size) -> Batch:
    """Return a batch of an encoder-decoder whose targets are as long as its sources, as in translation."""
    generator = torch.Generator().manual_seed(0)
    shape = (size.batch, size.length)
    source, target, labels = (torch.randint(FIRST_WORD, size.vocabulary, shape, generator=generator) for _ in range(3))
    return Batch(
        {"encoder": Stream(source), "body": Stream(target)},
        {name: {"labels": labels} for name in SEQUENCE_OBJECTIVES},
        torch.arange(size.batch),
        {f"{name}/loss": torch.tensor(labels.numel()) for name in SEQUENCE_OBJECTIVES},
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def mlm_loss(logits: Callable[..., Any]) -> Callable[[Batch], Tensor]:
    return lambda batch: cross_entropy(logits(batch.streams["body"].tokens), every_position(batch))


def clm_loss(logits: Callable[..., Any]) -> Callable[[Batch], Tensor]:
    return lambda batch: cross_entropy(logits(batch.streams["body"].tokens), batch.targets["clm"]["labels"])


def translation_loss(logits: Callable[..., Any]) -> Callable[[Batch], Tensor]:
    def loss(batch: Batch) -> Tensor:
        scores = logits(batch.streams["encoder"].tokens, batch.streams["body"].tokens)
        return cross_entropy(scores, batch.targets[SEQUENCE_OBJECTIVES[0]]["labels"])

    return loss


# -- paribus and by hand ---------------------------------------------------------------------------------------------


def assembled(preset: str, size: Size, *, twin: str = "") -> Contestant:
    model, _ = model_and_data(preset, *size.words(), size=size.vocabulary, mean_length=4 * size.length)
    initialised(model)
    return Contestant(model, model.loss, twin)


def by_hand(preset: str, floor: Callable[..., nn.Module], size: Size) -> Contestant:
    """Return the hand-written model with the weights of the assembled one."""
    module = floor(size.width, size.layers, size.heads, size.length, size.vocabulary)
    floors.copy_weights(assembled(preset, size).module.state_dict(), module)
    return Contestant(module, module)


def by_hand_at_every_position(size: Size) -> Contestant:
    """Return the hand-written encoder; it scores every position, as the libraries do."""
    module = by_hand("encoder-tiny", floors.Encoder, size).module

    def loss(batch: Batch) -> Tensor:
        labels = every_position(batch)
        positions = torch.arange(labels.shape[1]).expand_as(labels)
        value: Tensor = module(batch._replace(targets={"mlm": {"pick": positions, "labels": labels}}))
        return value

    return Contestant(module, loss, "by hand")


def converted(peer: Callable[[Size], Contestant], size: Size, twin: str) -> Contestant:
    """Return the paribus model with the mathematics and the weights of a Hugging Face model."""
    model = paribus.convert(peer(size).module)
    return Contestant(model, model.loss, twin)


# -- torch.nn --------------------------------------------------------------------------------------------------------


@final
class TorchStack(nn.Module):
    """`nn.TransformerEncoder` with learned positions and a tied head; causal, it is a decoder."""

    def __init__(self, size: Size, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, 0.0, gelu_tanh if causal else functional.gelu, batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.stack = nn.TransformerEncoder(layer, size.layers, nn.LayerNorm(size.width), enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(size.width, size.width), nn.GELU(), nn.LayerNorm(size.width))
        if causal:
            self.transform = nn.Sequential()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return functional.linear(self.transform(self.stack(x, mask, is_causal=self.causal)), self.tokens.weight)


@final
class TorchTransformer(nn.Module):
    """`nn.Transformer` with learned positions and a tied head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.stacks = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, 4 * size.width, 0.0, batch_first=True, norm_first=True
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded, x = (self.tokens(tokens) + self.positions.weight[: tokens.shape[1]] for tokens in (source, target))
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.stacks(encoded, x, tgt_mask=mask, tgt_is_causal=True)
        return functional.linear(hidden, self.tokens.weight)


def torch_encoder(size: Size) -> Contestant:
    module = initialised(TorchStack(size, causal=False))
    return Contestant(module, mlm_loss(module))


def torch_decoder(size: Size) -> Contestant:
    module = initialised(TorchStack(size, causal=True))
    return Contestant(module, clm_loss(module))


def torch_transformer(size: Size) -> Contestant:
    module = initialised(TorchTransformer(size))
    return Contestant(module, translation_loss(module))


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def hugging_face_bert(size: Size) -> Contestant:
    module: Any = initialised(hugging_face.bert(size))
    return Contestant(
        module, lambda batch: module(input_ids=batch.streams["body"].tokens, labels=every_position(batch)).loss
    )


def hugging_face_gpt2(size: Size) -> Contestant:
    module: Any = initialised(hugging_face.gpt2(size))

    def loss(batch: Batch) -> Tensor:
        labels = batch.targets["clm"]["labels"]
        value: Tensor = module(input_ids=batch.streams["body"].tokens, labels=labels, shift_labels=labels).loss
        return value

    return Contestant(module, loss)


def _translation(module: Any) -> Contestant:
    def loss(batch: Batch) -> Tensor:
        value: Tensor = module(
            input_ids=batch.streams["encoder"].tokens,
            decoder_input_ids=batch.streams["body"].tokens,
            labels=batch.targets[SEQUENCE_OBJECTIVES[0]]["labels"],
        ).loss
        return value

    return Contestant(module, loss)


def hugging_face_bart(size: Size) -> Contestant:
    return _translation(initialised(hugging_face.bart(size)))


def hugging_face_t5(size: Size) -> Contestant:
    return _translation(initialised(hugging_face.t5(size)))


# -- x-transformers, litgpt ------------------------------------------------------------------------------------------


def _x_layers(size: Size) -> dict[str, Any]:
    return {
        "dim": size.width, "depth": size.layers, "heads": size.heads, "attn_dim_head": size.width // size.heads,
        "attn_flash": True,
    }  # fmt: skip


def _x_wrapper(size: Size, layers: Any, **options: Any) -> nn.Module:
    from x_transformers import TransformerWrapper

    module: nn.Module = TransformerWrapper(
        num_tokens=size.vocabulary, max_seq_len=size.length, attn_layers=layers, tie_embedding=True, **options
    )
    return module


def x_encoder(size: Size) -> Contestant:
    from x_transformers import Encoder

    module = initialised(_x_wrapper(size, Encoder(**_x_layers(size))))
    return Contestant(module, mlm_loss(module))


def x_decoder(size: Size) -> Contestant:
    from x_transformers import Decoder

    module = initialised(_x_wrapper(size, Decoder(**_x_layers(size))))
    return Contestant(module, clm_loss(module))


def x_encoder_decoder(size: Size) -> Contestant:
    from x_transformers import Decoder, Encoder

    encoder: Any = _x_wrapper(size, Encoder(**_x_layers(size)), return_only_embed=True)
    decoder: Any = _x_wrapper(size, Decoder(cross_attend=True, **_x_layers(size)))
    decoder.token_emb = encoder.token_emb
    module = initialised(nn.ModuleList([encoder, decoder]))
    return Contestant(module, translation_loss(lambda source, target: decoder(target, context=encoder(source))))


def litgpt_decoder(size: Size) -> Contestant:
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        block_size=size.length, vocab_size=size.vocabulary, padded_vocab_size=size.vocabulary, n_layer=size.layers,
        n_head=size.heads, n_embd=size.width, intermediate_size=4 * size.width, rotary_percentage=1.0,
        parallel_residual=False, bias=True, lm_head_bias=False, norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP", gelu_approximate="tanh",
    )  # fmt: skip
    module: Any = GPT(config)
    module.lm_head.weight = module.transformer.wte.weight
    return Contestant(initialised(module), clm_loss(module))


FAMILIES = {
    "encoder": Family(
        "encoder, masked tokens",
        partial(batch_of, "encoder-tiny"),
        {
            "by hand": partial(by_hand, "encoder-tiny", floors.Encoder),
            "by hand, scores at every position": by_hand_at_every_position,
            "paribus": partial(assembled, "encoder-tiny", twin="by hand"),
            "paribus, BERT": partial(converted, hugging_face_bert, twin="Hugging Face, BERT"),
            "Hugging Face, BERT": hugging_face_bert,
            "torch.nn.TransformerEncoder": torch_encoder,
            "x-transformers": x_encoder,
        },
    ),
    "decoder": Family(
        "decoder, next tokens",
        partial(batch_of, "gpt-tiny"),
        {
            "by hand": partial(by_hand, "gpt-tiny", floors.Decoder),
            "paribus": partial(assembled, "gpt-tiny", twin="by hand"),
            "paribus, GPT-2": partial(converted, hugging_face_gpt2, twin="Hugging Face, GPT-2"),
            "Hugging Face, GPT-2": hugging_face_gpt2,
            "torch.nn.TransformerEncoder, causal": torch_decoder,
            "x-transformers": x_decoder,
            "litgpt, rotary positions": litgpt_decoder,
        },
    ),
    "encoder-decoder": Family(
        "encoder-decoder, translation",
        translation_batch,
        {
            "by hand": partial(by_hand, "seq2seq-tiny", floors.EncoderDecoder),
            "paribus": partial(assembled, "seq2seq-tiny", twin="by hand"),
            "paribus, BART": partial(converted, hugging_face_bart, twin="Hugging Face, BART"),
            "Hugging Face, BART": hugging_face_bart,
            "paribus, T5": partial(converted, hugging_face_t5, twin="Hugging Face, T5"),
            "Hugging Face, T5": hugging_face_t5,
            "torch.nn.Transformer": torch_transformer,
            "x-transformers": x_encoder_decoder,
        },
    ),
}


def built(models: Mapping[str, Callable[[Size], Contestant]], size: Size) -> tuple[dict[str, Contestant], list[str]]:
    """Return the models whose library is installed, and a line about each other one."""
    contestants: dict[str, Contestant] = {}
    missing: list[str] = []
    for label, build in models.items():
        try:
            contestants[label] = build(size)
        except ModuleNotFoundError as error:
            missing.append(missing_line(label, error))
    return contestants, missing


def missing_line(label: str, error: ModuleNotFoundError) -> str:
    command = LITGPT if str(error.name).startswith("litgpt") else "pip install -e '.[peers]'"
    return f"{label}: not measured, because `{error.name}` is not installed; `{command}` installs it"
