"""What presets say by a factor, their twins' configurations say outright: a preset goes out as a model that is one."""

import pytest
import torch

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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_goes_out_as_the_model_that_it_is(preset: str) -> None:
    ours = paribus.assemble(paribus.spec(preset, "dims.vocabulary=300", "feedforward.expand=3")).double().eval()
    out = paribus.export(ours)
    assert out.architecture == PRESETS[preset]
    own = getattr(transformers, out.architecture)
    theirs = own(own.config_class(**{**out.config, "bos_token_id": 5, "eos_token_id": 6})).double().eval()
    theirs.load_state_dict(dict(out.tensors))
    with torch.no_grad():
        answer = theirs(TOKENS)
        scores = answer.prediction_logits if "prediction_logits" in answer else answer.logits
        torch.testing.assert_close(ours(TOKENS)[0], scores, rtol=0, atol=1e-9)
    back = paribus.convert(theirs)
    assert all(torch.equal(value, ours.get_parameter(name)) for name, value in back.named_parameters())


@pytest.mark.parametrize("family", ["albert", "bert", "roberta"])
def test_a_model_without_segments_is_none_of_those_that_read_them(family: str) -> None:
    ours = paribus.assemble(paribus.spec(f"{family}-tiny", "dims.vocabulary=300", "embedding.segments=0"))
    with pytest.raises(SpecError, match="`type_vocab_size` must be at least 1"):
        paribus.export(ours, family)
