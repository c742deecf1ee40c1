"""Parity of converted models with transformers, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf_parity.cases import CASES, LENGTH, VOCABULARY, Case
from tests.hf_parity.float64 import keep_float64
from torch import Tensor, nn

import paribus
from paribus import PADDING, Stream
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import export_tensors
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.specs import resolved

transformers = pytest.importorskip("transformers")

ALL = [
    pytest.param(family, case, id=f"{family}, {case.label}")
    for family, cases in CASES.items()
    for case in cases
    if case.reads == "tokens"
]
every_case = pytest.mark.parametrize(("family", "case"), ALL)
a_case_each_time = pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(*param.values, id=param.id, marks=[pytest.mark.thorough] if family == param.values[0] else [])
        for family, param in zip([None, *(param.values[0] for param in ALL)], ALL, strict=False)
    ],
)
"""The first case of each family each time, and thorough tests of the others."""

Randomise = Callable[[nn.Module], nn.Module]
Compare = Callable[[str, str, Tensor, Tensor], None]


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


@pytest.fixture
def models(case: Case, randomise: Randomise, components: Registry) -> tuple[Model, Any]:
    """The converted model and its reference."""
    hf_model = randomise(case.hf_model)
    return paribus.convert(hf_model, registry=components).eval(), hf_model


def random_tokens(length: int, batch: int = 3) -> Tensor:
    return torch.randint(7, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.thorough
def test_every_family_has_cases(components: Registry) -> None:
    assert families(components).keys() == CASES.keys()


def test_the_parity_table_is_current() -> None:
    parity_table = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
    for family, cases in CASES.items():
        assert f"| `{family}` | {'; '.join(case.label for case in cases)} |" in parity_table, "run `make parity`"


@pytest.mark.few(10)
@every_case
def test_scores_and_hidden_states_match_the_twin(
    family: str, case: Case, models: tuple[Model, Any], compare: Compare
) -> None:
    model, hf_model = models
    with torch.no_grad():
        for length in (1, 2, 9, LENGTH):
            tokens = random_tokens(length)
            source = source_of(model)
            compare(family, "scores", model(tokens, source=source)[0], logits(hf_output(hf_model, tokens)))
            compare(family, "hidden states", model.hidden(tokens, source=source), hf_hidden(hf_model, tokens))


@pytest.mark.few(8)
@a_case_each_time
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_masked_alike(
    side: str, family: str, case: Case, models: tuple[Model, Any], compare: Compare
) -> None:
    model, hf_model = models
    if hf_model.config.is_encoder_decoder:
        compare_padded_encoder_decoder(side, family, case, models, compare)
        return
    tokens, lengths, place = random_tokens(11), torch.tensor([[11], [4], [7]]), torch.arange(11)
    text = place < lengths if side == "right" else place >= 11 - lengths
    tokens = tokens.where(text, hf_model.config.pad_token_id)
    counted = (text.long().cumsum(1) - 1).clamp(min=0)
    positions = place.expand(3, -1) if case.padded_positions == "index" else counted
    hf_inputs = language_inputs(hf_model, tokens) | (
        {"position_ids": positions} if case.padded_positions == "given" else {}
    )
    stream = Stream(tokens, torch.where(text, 0, PADDING), positions)
    with torch.no_grad():
        run = model.run(Batch({"body": stream}, {}, place[:3])).of(model.trained[0])
        scores = model.objective(model.trained[0]).logits(run.hidden(), run.unembed)
        compare(family, "scores", scores[text], logits(hf_model(tokens, attention_mask=text.long(), **hf_inputs))[text])


@pytest.mark.few(6)
@a_case_each_time
def test_gradients_match_the_twin(family: str, case: Case, models: tuple[Model, Any], compare: Compare) -> None:
    model, hf_model = models
    tokens = random_tokens(9)
    scores = model(tokens, source=source_of(model))[0]
    weights = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).view_as(scores)
    (scores * weights).sum().backward()
    (logits(hf_output(hf_model, tokens)) * weights).sum().backward()
    named = dict(model.named_parameters())
    moves = [move for move in families(_registry())[family].moves(model.spec) if named[move.parameter].grad is not None]
    gradients = export_tensors(
        moves, {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None}
    )
    hf_parameters = dict(hf_model.named_parameters())
    assert {name for name, parameter in hf_parameters.items() if parameter.grad is not None} <= gradients.keys()
    for name, grad in gradients.items():
        if name in hf_parameters:
            hf_gradient = hf_parameters[name].grad  # None where transformers skips unused parameters
            compare(family, "gradients", grad, torch.zeros_like(grad) if hf_gradient is None else hf_gradient)


@pytest.mark.few(4)
@a_case_each_time
def test_converting_back_restores_the_model(
    family: str, case: Case, models: tuple[Model, Any], tmp_path: Path, compare: Compare
) -> None:
    model, hf_model = models
    back = paribus.export(model, family)
    unread = families(_registry())[family].architecture(case.model).unused_tensors
    state = {name: tensor for name, tensor in hf_model.state_dict().items() if name not in unread}
    assert back.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back.tensors[name], tensor), name
    back.save(tmp_path)
    reloaded = type(hf_model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        compare(
            family,
            "export",
            logits(hf_output(reloaded, random_tokens(9))),
            logits(hf_output(hf_model, random_tokens(9))),
        )


@pytest.mark.few(4)
@a_case_each_time
def test_converting_a_folder_matches_converting_the_model(
    family: str, case: Case, models: tuple[Model, Any], tmp_path: Path
) -> None:
    model, hf_model = models
    hf_model.save_pretrained(tmp_path)
    read = paribus.convert(tmp_path)
    assert read.spec == model.spec
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.few(11)
@a_case_each_time
def test_decoding_step_by_step_matches_one_pass(
    family: str, case: Case, models: tuple[Model, Any], compare: Compare
) -> None:
    model, hf_model = models
    if not next(part.causal for part in model.topology.parts if part.path == "body"):
        pytest.skip("only decoders decode step by step")
    tokens = random_tokens(13)
    states = model.start(3)
    with torch.no_grad():
        steps = [model(chunk, states, source=source_of(model))[0] for chunk in tokens.split([5, 1, 3, 4], dim=1)]
        compare(family, "decoding", torch.cat(steps, dim=1), logits(hf_output(hf_model, tokens)))


@pytest.mark.few(2)
@pytest.mark.parametrize("family", [family for family, cases in CASES.items() if cases[0].parameters])
def test_parameter_counts_match_published_ones(family: str, components: Registry) -> None:
    case = CASES[family][0]
    model_class = getattr(transformers, case.model)
    with torch.device("meta"):
        hf_model = model_class(model_class.config_class())
    spec = families(components)[family].spec_of(hf_model.config.to_dict(), case.model)
    few = {"images": ("corpus.images=64", "corpus.held_out=32")}  # which are read for their vocabulary
    model = meta_model(resolved(spec, *few.get(case.reads, ()), registry=components), components)
    counted = {
        id(parameter): parameter.numel() for child in model.children().values() for parameter in child.parameters()
    }
    assert sum(counted.values()) == sum(parameter.numel() for parameter in hf_model.parameters()) == case.parameters


def compare_padded_encoder_decoder(
    side: str, family: str, case: Case, models: tuple[Model, Any], compare: Compare
) -> None:
    model, hf_model = models
    streams: dict[str, Stream] = {}
    texts: dict[str, Tensor] = {}
    for part, length, lengths in (("encoder", 11, [[11], [4], [7]]), ("body", 5, [[2], [5], [4]])):
        place, many = torch.arange(length), torch.tensor(lengths)
        text = texts[part] = place < many if side == "right" else place >= length - many
        counted = (text.long().cumsum(1) - 1).clamp(min=0) if case.padded_positions == "text" else None
        tokens = random_tokens(length).where(text, hf_model.config.pad_token_id)
        streams[part] = Stream(tokens, torch.where(text, 0, PADDING), counted)
    with torch.no_grad():
        run = model.run(Batch(streams, {}, torch.arange(3))).of(model.trained[0])
        scores = model.objective(model.trained[0]).logits(run.hidden(), run.unembed)
        answer = hf_model(
            input_ids=streams["encoder"].tokens,
            attention_mask=texts["encoder"].long(),
            decoder_input_ids=streams["body"].tokens,
            decoder_attention_mask=texts["body"].long(),
        )
        compare(family, "scores", scores[texts["body"]], answer.logits[texts["body"]])


def source_of(model: Model) -> Tensor | None:
    """Return source tokens for an encoder-decoder, None for other models."""
    return random_tokens(8) if len(model.topology.parts) > 1 else None


def hf_output(hf_model: Any, tokens: Tensor) -> Any:
    if hf_model.config.is_encoder_decoder:
        return hf_model(input_ids=random_tokens(8), decoder_input_ids=tokens)
    return hf_model(tokens, **language_inputs(hf_model, tokens))


def language_inputs(hf_model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Return inputs of the first language for models with language embeddings."""
    return {"langs": torch.zeros_like(tokens)} if getattr(hf_model.config, "n_langs", 1) > 1 else {}


def hf_hidden(hf_model: Any, tokens: Tensor) -> Tensor:
    if hf_model.config.is_encoder_decoder:
        hidden: Tensor = hf_model(
            input_ids=random_tokens(8), decoder_input_ids=tokens, output_hidden_states=True
        ).decoder_hidden_states[-1]
    else:
        hidden = hf_model.base_model(tokens, **language_inputs(hf_model, tokens))[0]
    return hidden


def logits(output: Any) -> Tensor:
    scores: Tensor = output.prediction_logits if "prediction_logits" in output else output.logits
    return scores if scores.ndim == 3 else scores.unsqueeze(-1)  # one score a token


def _registry() -> Registry:
    from paribus.registry import installed

    return installed()
