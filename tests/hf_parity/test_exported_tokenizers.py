"""Text in, text out: an exported model with its own tokenizer reads and writes in `transformers` what it does here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import torch

import paribus
from paribus import Tokenizer
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.inference.prompts import build_prompts, encode_text, join_pair
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.slots.objective import GenerationTarget
from paribus_text.byte_pair import BytePair
from paribus_text.bytes import Bytes
from paribus_text.symbols import Symbols
from paribus_text.token_ids import TokenIds
from paribus_text.unigram import Unigram
from paribus_text.word_piece import WordPiece

transformers = pytest.importorskip("transformers")

CORPUS: Final = ["the cat sat on the mat, and the dog sat there", "def f(x):\n\treturn <0x41> naïve <mask>"] * 9
TEXTS: Final = ("the cat", "  two  spaces\n\tand lines ", "a <mask>, <eos> and <unk>", "😀 naïve ☃ ﬁ İ", "")
SMALL: Final = ("dims.width=16", "dims.length=40", "dims.vocabulary=420")
TOKENIZERS: Final[dict[str, Callable[[], Tokenizer]]] = {
    "bpe": BytePair,
    "bytes": Bytes,
    "symbols": Symbols,
    "unigram": Unigram,
    "wordpiece": WordPiece,
}
CASES: Final[dict[str, tuple[str, ...]]] = {
    "albert-tiny unigram": (),
    "bart-tiny bpe": (),
    "bert-tiny bytes": ("objective=mlm",),
    "bert-tiny wordpiece": (),
    "gpt2-tiny bpe": (),
    "gpt-neo-tiny symbols": (),
    "llama-tiny bytes": ("dims.vocabulary=null",),
    "mistral-tiny unigram": (),
    "roberta-tiny symbols": (),
    "t5-tiny unigram": (),
    "xlnet-tiny bpe": (),
    # fine-tuned with another objective that has the same head
    "bart-tiny bytes seq2seq": ("objective=seq2seq", "corpus=dates"),
    "gpt2-tiny bpe completion": ("objective=completion", "corpus=dates"),
    "t5-tiny unigram prefix-lm": ("objective=prefix-lm",),
}


def with_tokenizer(case: str, components: Registry, *changes: str) -> Model:
    """A random model with a trained tokenizer."""
    preset, name = case.split()[:2]
    spec = paribus.spec(preset, *SMALL, f"tokenizer={name}", *CASES[case], *changes, registry=components)
    model = paribus.assemble(spec, registry=components).eval()
    tokenizer = TOKENIZERS[name]()
    tokenizer.train(CORPUS, spec["dims"]["vocabulary"])
    model.text = TextCodec(tokenizer)
    model.tokenizer = model.text.fingerprint
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_a_text_has_the_same_ids_scores_and_continuation(case: str, components: Registry, tmp_path: Path) -> None:
    model = with_tokenizer(case, components)
    assert model.text is not None
    exported = paribus.export(model, registry=components)
    exported.save(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    network = getattr(transformers, exported.architecture).from_pretrained(tmp_path).eval()
    assert {
        role: tokenizer.convert_tokens_to_ids(tokenizer.special_tokens_map[f"{role}_token"])
        for role in model.text.vocabulary.specials
    } == model.text.vocabulary.specials
    back = paribus.convert(tmp_path, registry=components)
    for text in TEXTS:
        ids, encoded = model.text.read(text), tokenizer(text, return_tensors="pt")
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode(ids) == model.text.decode(ids)
        assert back.text is not None
        assert back.text.read(text) == ids
        if exported.generation is not None:
            (generated,) = paribus.generate(model, text, tokens=6).results[0]
            inputs = encoded if len(encoded["input_ids"][0]) else {}
            start = 1 if network.config.is_encoder_decoder else max(1, len(encoded["input_ids"][0]))
            line = network.generate(**inputs, max_new_tokens=6)[0, start:].tolist()
            assert [token for token in line if token != network.generation_config.eos_token_id] == list(generated.ids)
        if not ids:
            continue
        read = encode_text(model, text)
        if exported.generation is not None:
            (prompt,) = build_prompts(model, [ids], GenerationTarget())[1]
            read = list(prompt.source or prompt.body)
        assert encoded["input_ids"].tolist() == [read]
        if not network.config.is_encoder_decoder:
            with torch.no_grad():
                answer = network(**encoded)
                scores = answer.prediction_logits if "prediction_logits" in answer else answer.logits
                torch.testing.assert_close(model(torch.tensor([read]))[0], scores, rtol=0, atol=1e-4)


def test_a_pair_of_texts_has_the_same_ids_and_segments(components: Registry, tmp_path: Path) -> None:
    model = with_tokenizer("bert-tiny wordpiece", components)
    paribus.export(model, registry=components).save(tmp_path)
    assert model.text is not None
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0], TEXTS[2])
    expected = join_pair(model, model.text.read(TEXTS[0]), model.text.read(TEXTS[2]))
    assert (encoded["input_ids"], encoded["token_type_ids"]) == expected


@pytest.mark.thorough
def test_a_pipeline_returns_a_score_as_it_is(components: Registry, tmp_path: Path) -> None:
    model = with_tokenizer("bert-tiny wordpiece", components, "objective=regress", "corpus=overlap")
    paribus.export(model, registry=components).save(tmp_path)
    pipeline = transformers.pipeline("text-classification", str(tmp_path))
    (expected,) = paribus.predict(model, ["the cat sat"], ["the dog"])
    assert pipeline({"text": "the cat sat", "text_pair": "the dog"})["score"] == pytest.approx(expected.score, abs=1e-5)


@pytest.mark.thorough
def test_a_pipeline_continues_a_text_up_to_the_length_of_the_model(components: Registry, tmp_path: Path) -> None:
    model = with_tokenizer("gpt2-tiny bpe", components)
    paribus.export(model, registry=components).save(tmp_path)
    pipeline = transformers.pipeline("text-generation", str(tmp_path))
    for text in TEXTS[:3]:
        (line,) = pipeline(text, return_tensors=True)
        assert model.text is not None
        generated = paribus.generate(model, text).results[0][0]
        assert line["generated_token_ids"] == [*model.text.read(text), *generated.ids]


def test_special_tokens_that_the_vocabulary_lacks_are_null(components: Registry, tmp_path: Path) -> None:
    model = with_tokenizer("gpt2-tiny bpe", components)
    model.text = None
    paribus.export(model, registry=components).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert {key: config[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")} == dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id")
    )


def test_a_tokenizer_without_such_a_form_is_an_error_and_not_an_empty_one(components: Registry, tmp_path: Path) -> None:
    spec = paribus.spec("gpt2-tiny", *SMALL, "tokenizer={name: ids, size: 420}", "corpus=null", registry=components)
    model = paribus.assemble(spec, registry=components)
    model.text = TextCodec(TokenIds(size=420))
    exported = paribus.export(model, registry=components)
    assert "`ids`" in exported.missing_tokenizer
    exported.save(tmp_path)
    with pytest.raises(ValueError, match="backend tokenizer"):
        transformers.AutoTokenizer.from_pretrained(tmp_path)
