"""Vocabularies in fine-tuning: the pretrained one is kept, or rows of shared tokens move to their new ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import SpecError
from paribus.models.assemble import load_corpus
from paribus.models.warm_start import shared_tokens, vocabulary_tensors
from paribus.planning.identity import identity_of
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

GENERAL = "\n\n".join(f"The {number}th paragraph says {number * number} words of its own." for number in range(200))
DOMAIN = "\n\n".join(f"A {number}th molecule binds {number * number} receptors in vivo." for number in range(200))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "general.txt").write_text(GENERAL)
    (folder / "domain.txt").write_text(DOMAIN)
    return {
        "preset": "gpt-tiny",
        "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16, "vocabulary": 400},
        "tokenizer": request.param,
        "objective": {"name": "clm", "bias": True},
        "corpus": {"name": "text", "path": [str(folder / "general.txt")], "documents": "paragraph"},
        "data": {"batch": 4, "validation": 8},
        "trainer": {"max_steps": 2},
    }


@pytest.fixture(scope="module")
def pretrained(base: dict[str, Any], registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trial")
    run_trial(resolved(base, registry=registry), registry, TrialContext("pretrained", folder))
    return folder


def domain(base: dict[str, Any], pretrained: Path, **options: Any) -> dict[str, Any]:
    path = [str(Path(base["corpus"]["path"][0]).with_name("domain.txt"))]
    return {**base, "corpus": {**base["corpus"], "path": path}, "from": {"name": str(pretrained), **options}}


@pytest.mark.thorough
def test_the_pretrained_vocabulary_encodes_another_corpus(
    base: dict[str, Any], pretrained: Path, registry: Registry, tmp_path: Path
) -> None:
    spec = resolved(domain(base, pretrained), registry=registry)
    record = run_trial(spec, registry, TrialContext("tuned", tmp_path))
    source, tuned = paribus.load(pretrained), paribus.load(tmp_path)
    transfer = record["result"]["from"]
    assert tuned.tokenizer == source.tokenizer
    assert (transfer["converted"], transfer["new"], transfer["dropped"]) == ({}, {}, [])
    assert transfer["loss_changes"]["val/clm/loss"]["before"] == transfer["loss_changes"]["val/clm/loss"]["after"]
    alone = load_corpus(resolved({**domain(base, pretrained), "from": None}, registry=registry), registry)
    assert alone.tokenizer_fingerprint != source.tokenizer  # its own tokenizer would differ
    second_spec = resolved(
        {**domain(base, pretrained), "from": str(tmp_path)}, registry=registry
    )  # and a second warm start
    assert load_corpus(second_spec, registry).tokenizer_fingerprint == source.tokenizer
    moved = {**spec, "from": {key: value for key, value in spec["from"].items() if key != "learned"}}
    assert identity_of(moved, "", "") == identity_of(spec, "", "")  # the hash of the model includes its vocabulary


@pytest.mark.few(1)
def test_rows_of_shared_tokens_are_reused_and_others_are_new(
    base: dict[str, Any], pretrained: Path, registry: Registry
) -> None:
    spec = resolved(domain(base, pretrained, vocabulary="new"), registry=registry)
    source, tuned = paribus.load(pretrained), paribus.assemble(spec)
    fresh = paribus.assemble({**spec, "from": None})
    old, new = load_corpus(source.spec, registry).tokenizer, load_corpus(spec, registry).tokenizer
    both = shared_tokens(new, old)
    new_ids, old_ids = ({item.piece(token): token for token in range(item.vocabulary().size)} for item in (new, old))
    assert both == {new_ids[piece]: old_ids[piece] for piece in new_ids.keys() & old_ids.keys()}
    assert 100 < len(both) < len(new_ids)
    assert any(token != number for token, number in both.items())
    for path in ("embedding.tokens.weight", "objectives.clm.bias"):
        tuned_table, source_table, fresh_table = (
            dict(item.named_parameters())[path] for item in (tuned, source, fresh)
        )
        for token in range(len(tuned_table)):
            assert torch.equal(tuned_table[token], source_table[both[token]] if token in both else fresh_table[token])
    descriptions = {path: text for path, text in tuned.transferred_tensors.items() if text != "kept"}
    description = f"kept the rows of {len(both)} shared tokens, {len(tuned_table) - len(both)} new"
    assert descriptions == {"embedding.tokens.weight": description, "objectives.clm.bias": description}


def test_vocabulary_tensors_are_found_by_their_meaning_and_not_their_size(
    base: dict[str, Any], registry: Registry
) -> None:
    spec = resolved({**base, "feedforward.expand": 25, "embedding.tie": False}, registry=registry)  # 16 x 25 = 400
    paths = vocabulary_tensors(spec, registry, load_corpus(spec, registry).vocabulary)
    assert paths == {"embedding.tokens.weight", "embedding.head.weight", "objectives.clm.bias"}


def test_another_tokenizer_needs_an_explicit_option(base: dict[str, Any], pretrained: Path, registry: Registry) -> None:
    bytes_spec = {**domain(base, pretrained), "tokenizer": "bytes"}
    with raises_problem(SpecError, "other-tokenizer", "from.vocabulary: new") as caught:
        resolved(bytes_spec, registry=registry)
    assert len(caught.value.problems) == 1
