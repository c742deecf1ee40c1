"""Pipelines of transformers predict with an exported model what `paribus.predict` predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from tests.hf_parity.test_bert import SIZES
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors, trainers
from torch import nn

import paribus

transformers = pytest.importorskip("transformers")

Randomise = Callable[[nn.Module], nn.Module]
TEXTS: Final = ["a good film about the sea", "the sea was cold and the film was long"]
LABELS: Final = {0: "bad", 1: "good", 2: "so so"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """WordPiece with the special tokens of BERT around a text or a pair."""
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    roles = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=[*roles.values()], show_progress=False)
    library.train_from_iterator(TEXTS * 4, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles)


def exported(name: str, randomise: Randomise, tokenizer: Any, folder: Path, **config: Any) -> Any:
    """Convert a random model of BERT with its tokenizer, and return the model and the folder of its export."""
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    hf_model: Any = randomise(getattr(transformers, name)(transformers.BertConfig(**sizes, **config)))
    hf_model.save_pretrained(folder / "theirs")
    tokenizer.save_pretrained(folder / "theirs")
    model = paribus.convert(folder / "theirs")
    paribus.save(model, folder / "ours")
    model = paribus.load(folder / "ours")
    paribus.export(model).save(folder / "back")
    return model, str(folder / "back")


def pipeline(task: str, folder: str) -> Any:
    return transformers.pipeline(task, model=folder, tokenizer=folder, device="cpu", dtype=torch.float64)


def test_classes_and_their_names_are_those_of_the_pipeline(
    randomise: Randomise, tokenizer: Any, tmp_path: Path
) -> None:
    model, back = exported("BertForSequenceClassification", randomise, tokenizer, tmp_path, id2label=LABELS)
    for prediction, expected in zip(
        paribus.predict(model, TEXTS), pipeline("text-classification", back)(TEXTS, top_k=None), strict=True
    ):
        assert prediction.probabilities is not None
        assert set(prediction.probabilities) == set(LABELS.values())
        assert prediction.probabilities == pytest.approx({item["label"]: item["score"] for item in expected}, abs=1e-6)
        assert prediction.label == expected[0]["label"]


@pytest.mark.thorough
def test_tags_are_those_of_the_pipeline(randomise: Randomise, tokenizer: Any, tmp_path: Path) -> None:
    model, back = exported("BertForTokenClassification", randomise, tokenizer, tmp_path, id2label=LABELS)
    tagger = pipeline("token-classification", back)
    for text in TEXTS:
        (prediction,) = paribus.predict(model, text)
        assert prediction.tags is not None
        starts = {item["start"]: item for item in tagger(text, ignore_labels=[])}
        place = 0
        for tag in prediction.tags:
            place = text.index(tag.word, place)
            assert tag.label == starts[place]["entity"]
            assert tag.probability == pytest.approx(starts[place]["score"], abs=1e-5)


@pytest.mark.thorough
def test_answers_have_the_best_scores_of_the_exported_model(
    randomise: Randomise, tokenizer: Any, tmp_path: Path
) -> None:
    """Transformers has no pipeline for answers any more, so the spans are compared by hand."""
    model, back = exported("BertForQuestionAnswering", randomise, tokenizer, tmp_path)
    hf_model = transformers.AutoModelForQuestionAnswering.from_pretrained(back, dtype=torch.float64).eval()
    reader = transformers.AutoTokenizer.from_pretrained(back)
    context = TEXTS[1]
    for question in ("the film", "a sea", "cold"):
        encoded = reader(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, sides = encoded.pop("offset_mapping")[0].tolist(), encoded.sequence_ids()
        with torch.no_grad():
            scores = hf_model(**encoded)
        start, end = scores.start_logits[0], scores.end_logits[0]
        inside = [place for place, side in enumerate(sides) if side == 1]
        best = max((float(start[one] + end[other]), one, other) for one in inside for other in inside if one <= other)
        (prediction,) = paribus.predict(model, question, context)
        assert prediction.score is not None
        assert prediction.score == pytest.approx(best[0] - float(start[0] + end[0]), abs=1e-9)
        begin, stop = offsets[best[1]][0], offsets[best[2]][1]
        begin, stop = context.rfind(" ", 0, begin + 1) + 1, (context + " ").index(" ", stop)  # whole words
        assert prediction.answer == (context[begin:stop] if prediction.score >= 0 else "")
