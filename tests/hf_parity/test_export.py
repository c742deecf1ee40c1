"""Export of presets whose widths are given as factors."""

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import SpecError

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(40, 290, (2, 9), generator=torch.Generator().manual_seed(0))
PRESETS = {
    "albert-tiny": "AlbertForPreTraining",
    "bert-tiny": "BertForPreTraining",
    "distilbert-tiny": "DistilBertForMaskedLM",
    "gpt2-tiny": "GPT2LMHeadModel",
    "roberta-tiny": "RobertaForMaskedLM",
    "xtremedistil-tiny": "BertForMaskedLM",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("preset", PRESETS)
def test_exported_presets_match(preset: str) -> None:
    model = paribus.assemble(paribus.spec(preset, "dims.vocabulary=300", "feedforward.expand=3")).double().eval()
    out = paribus.export(model)
    assert out.architecture == PRESETS[preset]
    model_class = getattr(transformers, out.architecture)
    hf_model = (
        model_class(model_class.config_class(**{**out.config, "bos_token_id": 5, "eos_token_id": 6})).double().eval()
    )
    hf_model.load_state_dict(dict(out.tensors))
    with torch.no_grad():
        answer = hf_model(TOKENS)
        scores = answer.prediction_logits if "prediction_logits" in answer else answer.logits
        torch.testing.assert_close(model(TOKENS)[0], scores, rtol=0, atol=1e-9)
    back = paribus.convert(hf_model)
    for name, value in back.named_parameters():
        used = slice(-model.spec["dims"]["length"], None) if name == "body.position.0.table.weight" else slice(None)
        assert torch.equal(value[used], model.get_parameter(name)[used])


@pytest.mark.parametrize("family", ["albert", "bert", "roberta"])
def test_exporting_without_segments_is_rejected(family: str) -> None:
    model = paribus.assemble(paribus.spec(f"{family}-tiny", "dims.vocabulary=300", "embedding.segments=0"))
    with raises_problem(SpecError, "cannot-export", "type_vocab_size", "1"):
        paribus.export(model, family)


@pytest.mark.parametrize(
    ("preset", "changes", "reason"),
    [
        ("bart-tiny", ("objective.bias=true",), "objectives.denoise.bias"),
        ("gpt2-tiny", ("objective={name: completion, bias: true}", "corpus=dates"), "bias"),
        ("gpt2-tiny", ("embedding.soft_cap=30",), "soft_cap"),
        ("t5-tiny", ("objective={name: seq2seq, reversed: true}", "corpus=dates"), "reversed"),
    ],
)
def test_a_model_is_not_exported_without_a_part_of_it(preset: str, changes: tuple[str, ...], reason: str) -> None:
    model = paribus.assemble(paribus.spec(preset, "tokenizer=bytes", "dims.vocabulary=300", *changes))
    with raises_problem(SpecError, "cannot-export", reason):
        paribus.export(model, preset.removesuffix("-tiny"))
