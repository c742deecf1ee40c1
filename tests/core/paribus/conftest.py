"""Small models and data for trials of milliseconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paribus.datamodule.data import Data
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens
from paribus.models.assemble import build_data, build_model
from paribus.models.lightning_module import Model
from paribus.random_keys import key32
from paribus.registry import Registry, installed
from paribus.slots.corpus import Labels
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved

SMALL = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.length=16", "dims.vocabulary=null")
NO_TOKENIZER: Any = None  # of random ids


@pytest.fixture(scope="session")
def components() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def swap() -> Mapping[str, Any]:
    """Study that varies one component, with trials of milliseconds."""
    small = {"width": 8, "layers": 1, "heads": 2, "length": 16}
    return {
        "base": {"preset": "encoder-tiny", "dims": small, "data": {"batch": 4, "validation": 8}},
        "vary": {"attention": ["mqa"]},
        "seeds": 2,
        "budget": {"steps": 3},
        "metric": "val/mlm/loss",
    }


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    first_id = len(names) + 8
    specials = {name: index for index, name in enumerate(names)}
    return Vocabulary(40, specials, tuple(range(len(names), first_id)), frozenset(range(first_id, 40, 2)))


@pytest.fixture(scope="session")
def assemble(components: Registry, vocabulary: Vocabulary) -> Callable[..., Model]:
    """Build a preset in a small size, with overrides and optionally with another registry."""

    def assemble(preset: str, *overrides: str, registry: Registry | None = None) -> Model:
        classes = registry or components
        return build_model(resolved(preset, *SMALL, *overrides, registry=classes), classes, vocabulary)

    return assemble


@pytest.fixture(scope="session")
def text(vocabulary: Vocabulary) -> EncodedCorpus:
    """Random documents of sentences, without a tokenizer."""
    train, val = (_documents(vocabulary, count, 2, 7, seed) for count, seed in ((60, 1), (20, 2)))
    return EncodedCorpus(NO_TOKENIZER, vocabulary, train, val, "corpus", "tokenizer", {}, 0)


@pytest.fixture(scope="session")
def pairs(vocabulary: Vocabulary) -> EncodedCorpus:
    """Random pairs of one-sentence documents."""

    def side(count: int, seed: int) -> SplitTokens:
        source, target = (_documents(vocabulary, count, 1, 2, seed + 10 * number) for number in range(2))
        return replace(source, targets=target)

    return EncodedCorpus(NO_TOKENIZER, vocabulary, side(60, 1), side(20, 2), "corpus", "tokenizer", {}, 0)


def _documents(vocabulary: Vocabulary, count: int, minimum: int, limit: int, seed: int) -> SplitTokens:
    """Return random documents of `minimum` to `limit - 1` sentences of at least three tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(minimum, limit, size=count)
    sentences = np.insert(np.cumsum(rng.integers(3, 9, size=lengths.sum())), 0, 0)
    ids = rng.integers(15, vocabulary.size, size=sentences[-1])
    return SplitTokens(ids, sentences, np.insert(np.cumsum(lengths), 0, 0))


@pytest.fixture(scope="session")
def pictures() -> EncodedCorpus:
    """Random images of 16 x 16, of 8 classes."""

    def side(count: int, seed: int) -> SplitTokens:
        rng, numbers = np.random.default_rng(seed), np.arange(count + 1)
        labels = Labels(rng.integers(8, size=count).astype(float), numbers)
        return SplitTokens(rng.integers(256, size=256 * count), 256 * numbers, numbers, labels=labels)

    return EncodedCorpus(
        NO_TOKENIZER, Vocabulary(257, {"mask": 256}), side(40, 1), side(20, 2), "corpus", "tokenizer", {}, 0
    )


@pytest.fixture(scope="session")
def feed(
    components: Registry, text: EncodedCorpus, pairs: EncodedCorpus, pictures: EncodedCorpus
) -> Callable[..., Data]:
    """Build the data of a preset in a small size from the text, pairs or images above."""

    def feed(preset: str, *overrides: str, registry: Registry | None = None, text: EncodedCorpus = text) -> Data:
        classes = registry or components
        spec = resolved(preset, *SMALL, "data.batch=8", *overrides, registry=classes)
        traits = classes.index.find("corpus", spec["corpus"]["name"]).traits
        if traits.get("modality") == "images":
            return build_data(spec, classes, pictures)
        return build_data(spec, classes, pairs if "pairs" in traits.get("provides", []) else text)

    return feed


@pytest.fixture(scope="session")
def shake() -> Callable[[Model], Model]:
    """Perturb all parameters of a model in float64: gains of 1 and biases of 0 would hide errors."""

    def shake(model: Model) -> Model:
        model.double().eval()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                generator = torch.Generator().manual_seed(key32("shake", path))
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.2)
        return model

    return shake
