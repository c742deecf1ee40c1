"""Rules between the corpus and the model: text or images, image sizes and numbers of classes."""

from collections.abc import Callable
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.registry import Index, Registry, installed
from paribus.registry.component_index import PluginManifest
from paribus.specs import resolved


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


@pytest.fixture(scope="module")
def error_text(registry: Registry) -> Callable[..., str]:
    def resolve_error(source: str, *overrides: str) -> str:
        try:
            resolved(source, *overrides, registry=registry)
        except SpecError as error:
            return str(error)
        return ""

    return resolve_error


TOKENS = "corpus={name: tokens, path: [train.bin], validation: [val.bin]}"
IDS = "tokenizer={name: ids, size: 512}"
IMAGES = ("corpus=shapes", "tokenizer=pixels")


@pytest.mark.parametrize(
    ("base", "override", "expected"),
    [
        ("vit-tiny", "corpus=python-docs", "tokenizer `pixels` reads images, but corpus `python-docs` has text"),
        ("vit-tiny", "tokenizer=bytes", "valid: tokenizer pixels with corpus `shapes`; corpus "),
        (
            "gpt2",
            TOKENS,
            "tokenizer `bpe` reads text, but corpus `tokens` has ids; valid: tokenizer bytes, file, ids with",
        ),
        ("vit-tiny", TOKENS, "tokenizer `pixels` reads images, but corpus `tokens` has ids"),
        ("gpt-tiny", IDS, "tokenizer `ids` reads ids, but corpus `python-docs` has text; valid: tokenizer "),
        ("vit-tiny", "objective=mlm", "embedding `patches` reads images, but the examples of objective `mlm` are not"),
        ("vit-tiny", "objective=mlm", "`mlm` scores tokens, but embedding `patches` has no"),
        (
            "vit-tiny",
            "objective=[image-classify, mlm]",
            "objective `mlm` scores tokens, but embedding `patches` has no vocabulary",
        ),
        (
            "vit-tiny",
            "evaluate=[mlm]",
            "the examples of objective `mlm` are not images; valid: objective image-classify",
        ),
        ("vit-tiny", "embedding=tokens", "of objective `image-classify` are images, but embedding `tokens` reads"),
        (
            "vit-tiny",
            "topology=decoder",
            "objective `image-classify` needs bidirectional attention, but tokens of `decoder` see only",
        ),
        ("encoder-tiny", "objective=image-classify", "needs `labels`, which the corpus `python-docs` does not have"),
        ("vit-tiny", "corpus.image=20", "`image` of embedding `patches` is 16, but for corpus `shapes` it is 20; val"),
        ("vit-tiny", "embedding.channels=3", "of embedding `patches` is 3, but for corpus `shapes` it is 1; valid: 1"),
        ("vit-tiny", "objective.classes=7", "is 7, but for corpus `shapes` it is 8; valid: 8 or more"),
        ("vit-tiny", "corpus=digits", "`image` of embedding `patches` is 16, but for corpus `digits` it is 8"),
        ("vit-digits", "objective.classes=9", "is 9, but for corpus `digits` it is 10; valid: 10 or more"),
    ],
)
def test_a_model_that_does_not_match_its_data_is_refused(
    base: str, override: str, expected: str, error_text: Callable[..., str]
) -> None:
    assert expected in error_text(base, override)


def test_an_objective_needs_special_tokens_among_the_ids(error_text: Callable[..., str]) -> None:
    assert "tokenizer `ids` has only if `mask` is set; valid: tokenizer.mask=" in error_text(
        "encoder-tiny", TOKENS, IDS
    )
    assert error_text("encoder-tiny", TOKENS, IDS, "tokenizer.mask=5") == ""


@pytest.mark.parametrize(
    ("base", "overrides"),
    [
        ("vit-tiny", ["objective.classes=900"]),  # a head may have room to spare, as a vocabulary may
        ("vit-tiny", ["position=none", "attention={name: gqa, kv_heads: 2}"]),
        ("vit-digits", []),
        ("gpt-tiny", [*IMAGES, "dims.length=1024"]),  # ImageGPT
        ("encoder-tiny", IMAGES),
        ("gpt-tiny", [TOKENS]),  # the ids may be bytes
        ("gpt-tiny", [TOKENS, IDS]),
    ],
)
def test_a_model_that_matches_its_data_is_accepted(
    base: str, overrides: list[str], error_text: Callable[..., str]
) -> None:
    assert error_text(base, *overrides) == ""


def test_a_corpus_without_declared_facts_is_not_checked(registry: Registry) -> None:
    spec: Any = resolved("vit-tiny", registry=registry)
    plugins = [_without_document_facts(plugin) for plugin in registry.index.plugins]
    assert resolved({**spec, "embedding": {**spec["embedding"], "image": 20}}, registry=Index(tuple(plugins)))


def _without_document_facts(plugin: PluginManifest) -> PluginManifest:
    """Return a copy of a plugin whose corpora declare no facts about their documents."""
    import dataclasses

    entries = [
        dataclasses.replace(
            entry, traits={name: trait for name, trait in entry.traits.items() if name != "document_facts"}
        )
        for entry in plugin.entries
    ]
    return dataclasses.replace(plugin, entries=tuple(entries))
