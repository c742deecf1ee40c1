"""Assembly of a model and its data from a spec, and loading of a trial's model."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, final

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, PADDING, SpecError, StoreError, Stream, Tokenizer, Vocabulary
from paribus.models.assemble import load_corpus, meta_model
from paribus.models.checkpoint import save_weights
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.specs import resolved, spec
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD, WEIGHTS
from paribus.train.api import assemble as assemble_spec
from paribus.train.api import data as data_of_spec
from paribus.train.api import load, save

TINY = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a corpus option with files of the user."""
    folder = tmp_path_factory.mktemp("corpus")
    words = ["all", "else", "being", "equal", "one", "part", "of", "a", "model", "is", "swapped", "and", "trained"]
    for number in range(40):
        turned = [words[(index * (number + 3) + number) % len(words)] for index in range(60)]
        sentences = [" ".join(turned[index : index + 10]).capitalize() + "." for index in range(0, 60, 10)]
        (folder / f"{number:02}.txt").write_text(f"Number {number}. " + " ".join(sentences))
    return f"corpus={{name: text, path: '{folder}/*.txt', sentences: true}}"


SMALL = ("dims.width=8", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4")


@pytest.mark.parametrize("preset", TINY)
def test_assemble_and_data_return_a_matching_model_and_data(preset: str, files: str, components: Registry) -> None:
    chosen = spec(preset, *SMALL, files, registry=components)
    model, data = assemble_spec(chosen, registry=components), data_of_spec(chosen, registry=components)
    assert isinstance(model, Model)
    batch = data.step(0)
    model.loss(batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    tokens = int(max(stream.tokens.max() for stream in batch.streams.values()))
    assert tokens < data.encoded.vocabulary.size <= len(model.get_parameter("embedding.tokens.weight"))


def test_a_plain_mapping_is_checked_like_a_spec(files: str, components: Registry) -> None:
    plain = resolved("encoder-tiny", *SMALL, files, registry=components)
    model = assemble_spec(plain, registry=components)
    assert model.spec == plain
    with raises_problem(SpecError, "unknown-key", "attention.window"):
        assemble_spec({**plain, "attention": {"name": "mha", "window": 3}}, registry=components)


def test_the_vocabulary_is_at_least_that_of_the_tokenizer(files: str, components: Registry) -> None:
    larger = spec("encoder-tiny", *SMALL, files, "dims.vocabulary=512", registry=components)
    assert assemble_spec(larger, registry=components)(torch.zeros(1, 3, dtype=torch.long))[0].shape == (1, 3, 512)
    smaller = resolved("encoder-tiny", *SMALL, files, "dims.vocabulary=200", registry=components)
    with raises_problem(SpecError, "vocabulary-too-small", "dims.vocabulary"):
        load_corpus(smaller, components)


def test_languages_are_embedded_and_must_fit_the_table(tmp_path: Path, components: Registry) -> None:
    for language in ("de", "en", "fr"):
        (tmp_path / language).mkdir()
        for number in range(4):
            (tmp_path / language / f"{number}.txt").write_text(language[0] * (90 + number))
    files = f"corpus={{name: text, path: '{tmp_path}/*/*.txt', languages: true, held_out: 0.3}}"
    options = ("encoder-tiny", *SMALL, files, "tokenizer=bytes")
    multilingual_spec = spec(*options, "embedding.languages=3", registry=components)
    model, data = (
        assemble_spec(multilingual_spec, registry=components),
        data_of_spec(multilingual_spec, registry=components),
    )
    batch, names = data.step(0), data.encoded.languages
    body = batch.streams["body"]
    assert sorted(names) == ["de", "en", "fr"]
    assert body.languages is not None
    for letter in b"def":
        assert {names[kind][0] for kind in body.languages[body.tokens == letter].tolist()} <= {chr(letter)}
    model.loss(batch).backward()
    grad = model.get_parameter("embedding.languages.weight").grad
    assert grad is not None
    assert (grad.abs().sum(1) > 0).nonzero().flatten().tolist() == body.languages.unique().tolist()
    few = resolved(*options, "embedding.languages=2", registry=components)
    with raises_problem(SpecError, "out-of-range", "embedding.languages", "≥ 3", "2"):
        load_corpus(few, components)


@final
class LargeTokenizer(Tokenizer):
    """Tokenizer of characters that ignores the requested vocabulary size."""

    def train(self, texts: Iterable[str], size: int | None) -> None: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) % 300 for letter in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(300, {})

    def state(self) -> bytes:
        return b""

    def load(self, state: bytes) -> None: ...


@pytest.mark.thorough
def test_a_tokenizer_with_too_many_ids_is_rejected(files: str, components: Registry) -> None:
    classes = components.with_components(tokenizer={"large": LargeTokenizer})
    chosen = resolved("gpt-tiny", *SMALL, files, "tokenizer=large", "dims.vocabulary=200", registry=classes)
    with raises_problem(SpecError, "vocabulary-too-small", "dims.vocabulary", "200", "large", "300", "≥"):
        load_corpus(chosen, classes)


@pytest.mark.parametrize("overrides", [[], ["dims.vocabulary=null"], ["dims.vocabulary=999"]], ids=str)
@pytest.mark.parametrize("preset", TINY)
def test_a_model_has_the_shapes_of_the_meta_model(
    preset: str, overrides: list[str], files: str, components: Registry
) -> None:
    chosen = resolved(preset, *SMALL, files, *overrides, registry=components)
    model, shapes = assemble_spec(chosen, registry=components), meta_model(chosen, components)
    actual_shapes = {path: tuple(value.shape) for path, value in model.state_dict().items()}
    counted = {
        f"{name}.{path}": tuple(value.shape)
        for name, child in shapes.children().items()
        for path, value in child.state_dict().items()
    }
    assert actual_shapes == counted


def test_parameter_info_covers_every_parameter(files: str, components: Registry) -> None:
    model = assemble_spec(spec("bert-tiny", *SMALL, files, registry=components), registry=components)
    assert model.parameter_info.keys() == model.state_dict().keys()


def test_a_model_too_large_for_memory_is_rejected_before_it_is_built(files: str, components: Registry) -> None:
    chosen = spec("encoder-tiny", *SMALL, files, "dims.width=1000000", registry=components)
    with raises_problem(SpecError, "too-large", "dims", "GiB"):
        assemble_spec(chosen, registry=components)


# -- loading of a trial -------------------------------------------------------------------------------------------


@pytest.fixture
def trial(tmp_path: Path, files: str, components: Registry) -> Callable[..., tuple[Path, Model]]:
    """Return the folder of a finished trial and the model that it trained."""

    def finish_trial(state: str = "done", *, weights: bool = True) -> tuple[Path, Model]:
        chosen = resolved("gpt-tiny", *SMALL, files, registry=components)
        model = assemble_spec(chosen, registry=components)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        write_json(tmp_path / RECORD, {"spec": chosen, "result": {"state": state}})
        if weights:
            save_weights(tmp_path / WEIGHTS, model, {})
        return tmp_path, model

    return finish_trial


def test_a_trained_model_can_be_loaded(trial: Callable[..., Any], components: Registry) -> None:
    folder, model = trial()
    for path in (folder, str(folder)):
        loaded = load(path, registry=components)
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())


def test_a_folder_without_a_record_is_not_loaded(tmp_path: Path, components: Registry) -> None:
    with raises_problem(StoreError, "missing-record"):
        load(tmp_path, registry=components)


def test_a_diverged_trial_has_no_weights(trial: Callable[..., Any], components: Registry) -> None:
    folder, _ = trial("diverged", weights=False)
    with raises_problem(StoreError, "missing-weights", "diverged"):
        load(folder, registry=components)


OWN = ("corpus=null", "tokenizer={name: ids, size: 300, mask: 299}", "position=rope", "dropout=0")


@pytest.fixture
def no_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a corpus is read."""
    monkeypatch.setattr("paribus.train.api.load_corpus", None)
    monkeypatch.setattr("paribus.models.assemble.load_corpus", None)


@pytest.mark.usefixtures("no_corpus")
def test_a_model_without_a_corpus_has_the_loss_of_its_logits_on_own_tokens(
    tmp_path: Path, components: Registry
) -> None:
    model = assemble_spec(spec("gpt-tiny", *OWN, registry=components), registry=components)
    tokens = torch.randint(300, (3, 17))
    logits = model(tokens[:, :-1])[0].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    torch.testing.assert_close(model.loss(model.batch(tokens)), expected)
    save(model, tmp_path)
    loaded = load(tmp_path, registry=components)
    assert torch.equal(loaded.loss(loaded.batch(tokens)), model.loss(model.batch(tokens)))


@pytest.mark.usefixtures("no_corpus")
def test_masks_of_own_batches_depend_on_the_step_and_leave_padding(components: Registry) -> None:
    model = assemble_spec(spec("encoder-tiny", *OWN, registry=components), registry=components)
    tokens = torch.randint(299, (4, 64))
    documents = torch.zeros_like(tokens)
    documents[:, 32:] = PADDING
    first, again, second = (model.batch(Stream(tokens, documents), step=step).targets["mlm"] for step in (0, 0, 1))
    labels = first["labels"]
    assert torch.equal(labels, again["labels"])
    assert not torch.equal(labels, second["labels"])
    assert (labels[:, :32] != IGNORED).any()
    assert (labels[:, 32:] == IGNORED).all()


@pytest.mark.thorough
def test_own_batches_need_an_objective_that_forms_none(components: Registry) -> None:
    model = assemble_spec(spec("bert-tiny", registry=components), registry=components)
    with raises_problem(SpecError, "does-not-fit", "objective", "nsp"):
        model.batch(torch.randint(200, (4, 64)))


@pytest.fixture
def own(tmp_path: Path, components: Registry) -> Path:
    """Return the folder of a model without a corpus."""
    save(assemble_spec(spec("gpt-tiny", *SMALL, "corpus=null", registry=components), registry=components), tmp_path)
    return tmp_path


@pytest.mark.parametrize("overrides", [("tokenizer=bpe", "dims.vocabulary=300"), ("from={}",)])
def test_a_model_without_a_corpus_has_a_fixed_vocabulary_and_new_weights(
    overrides: tuple[str, ...], own: Path, components: Registry
) -> None:
    wrong = spec("gpt-tiny", "corpus=null", *(override.format(own) for override in overrides), registry=components)
    with raises_problem(SpecError, "missing", "corpus"):
        assemble_spec(wrong, registry=components)


def test_a_model_of_own_batches_can_be_trained_on_a_corpus_later(own: Path, files: str, components: Registry) -> None:
    saved = load(own, registry=components)
    model = assemble_spec(spec("gpt-tiny", *SMALL, f"from={own}", files, registry=components), registry=components)
    assert all(torch.equal(saved.get_parameter(name), value) for name, value in model.named_parameters())


def test_training_needs_a_corpus(components: Registry) -> None:
    with raises_problem(SpecError, "missing", "corpus"):
        data_of_spec(spec("gpt-tiny", "corpus=null", registry=components), registry=components)
    with raises_problem(SpecError, "missing", "corpus"):
        resolved("gpt-tiny", "corpus=null", registry=components)
