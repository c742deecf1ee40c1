"""Tokenizers of models from transformers: kept by conversion, generation, training and export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import paribus
from paribus import SpecError, StoreError
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.storage.saved_model import read_model
from paribus.train.trial import TrialContext, run_trial

transformers = pytest.importorskip("transformers")

TEXTS: Final = ["the cat sat on the mat and the dog sat there", "then there they are, these other cats"] * 9
ROLES: Final = {"pad": "{hole}", "unk": "{what}", "cls": "{all}", "sep": "{cut}", "mask": "{gap}", "bos": "{go}"}
SPECIALS: Final = {**ROLES, "eos": "{stop}"}  # spellings that no one would guess
SENTINELS: Final = [f"<extra_id_{number}>" for number in range(100)]
VOCABULARY: Final = 420
TEXT_FAMILIES: Final = [family for family, cases in CASES.items() if cases[0].reads == "tokens"]


def library(specials: Mapping[str, str] = SPECIALS) -> Library:
    """Byte-level BPE, which adds special tokens around a text."""
    tokenizer = Library(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*specials.values(), *SENTINELS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    first = next(iter(specials.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, tokenizer.token_to_id(first))]
    )
    return tokenizer


def save(folder: Path, family: str, specials: Mapping[str, str] = SPECIALS, *, vocabulary: int = VOCABULARY) -> Path:
    """Write a random model of a family, with a tokenizer."""
    case = CASES[family][0]
    case._replace(config={**case.config, "vocab_size": vocabulary}).hf_model.float().save_pretrained(folder)
    names = {f"{role}_token": name for role, name in specials.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library(specials), **names).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, Library]]:
    """A model of each family, with the tokenizer of its folder."""
    read: dict[str, tuple[Model, Library]] = {}
    for family in TEXT_FAMILIES:
        folder = save(tmp_path_factory.mktemp(family), family)
        read[family] = paribus.convert(folder), Library.from_file(str(folder / "tokenizer.json"))
    return read


@pytest.mark.thorough
def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    ids = library().get_vocab_size()
    with raises_problem(SpecError, "vocabulary-too-small", ids - 1, "file", ids):
        paribus.convert(save(tmp_path, "gpt2", vocabulary=ids - 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_family_keeps_the_tokenizer_of_the_folder(
    family: str, converted: dict[str, tuple[Model, Library]]
) -> None:
    model, expected = converted[family]
    text = model.text
    assert text is not None
    assert model.tokenizer == text.fingerprint
    assert {role: expected.id_to_token(token) for role, token in text.vocabulary.specials.items()} == SPECIALS

    @settings(max_examples=50, deadline=None)
    @given(st.text() | st.lists(st.sampled_from(["the", " cat", "<s>", "</s>", "[PAD]", "\n", "ß"])).map("".join))
    def check(line: str) -> None:
        assert text.encode(line) == expected.encode(line, add_special_tokens=False).ids

    check()


@pytest.mark.thorough
def test_a_model_with_its_tokenizer_generates_trains_and_returns(
    gpt: Path, tmp_path: Path, components: Registry
) -> None:
    paribus.save(paribus.convert(gpt), tmp_path / "ours")
    expected = Library.from_file(str(gpt / "tokenizer.json"))
    generated = paribus.generate(tmp_path / "ours", "the cat", tokens=3).results[0][0]
    assert generated.text is not None
    small = {"data.batch": 2, "data.validation": 4, "trainer.max_steps": 1}
    spec = resolved({"from": str(tmp_path / "ours"), **small}, registry=components)
    assert spec["tokenizer"]["path"] == str(tmp_path / "ours" / "tokenizer.json")
    (tmp_path / "trial").mkdir()
    run_trial(spec, components, TrialContext("trial", tmp_path / "trial"))
    trained = paribus.load(tmp_path / "trial")
    assert trained.tokenizer == paribus.load(tmp_path / "ours").tokenizer
    paribus.export(trained).save(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "tokenizer.json").read_bytes() == (gpt / "tokenizer.json").read_bytes()
    original, reloaded = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (gpt, tmp_path / "theirs"))
    for line in (*TEXTS[:2], "{gap} naïve ☃\n{stop}"):
        assert reloaded(line)["input_ids"] == original(line)["input_ids"] == expected.encode(line).ids
    for role, name in SPECIALS.items():
        assert getattr(reloaded, f"{role}_token") == name
    assert reloaded.model_max_length == trained.spec["dims"]["length"]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["eos_token_id"] == expected.token_to_id(SPECIALS["eos"])


@pytest.mark.thorough
def test_an_exported_model_in_memory_keeps_its_tokenizer(gpt: Path) -> None:
    model = paribus.convert(gpt)
    assert paribus.convert(paribus.export(model)).tokenizer == model.tokenizer


def test_a_folder_with_a_tokenizer_can_be_moved(gpt: Path, tmp_path: Path, components: Registry) -> None:
    paribus.save(paribus.convert(gpt), tmp_path / "ours")
    sha256 = read_model(tmp_path / "ours").sha256
    (tmp_path / "ours").rename(tmp_path / "moved")
    assert read_model(tmp_path / "moved").sha256 == sha256
    spec = resolved({"from": str(tmp_path / "moved")}, registry=components)
    assert spec["tokenizer"]["path"] == str(tmp_path / "moved" / "tokenizer.json")
    assert spec["from"]["sha256"] == sha256


def test_training_with_another_tokenizer_is_refused_unless_it_is_unchecked(
    gpt: Path, tmp_path: Path, components: Registry
) -> None:
    paribus.save(paribus.convert(gpt), tmp_path / "known")
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((gpt / name).read_bytes())
    paribus.save(paribus.convert(tmp_path / "bare"), tmp_path / "unknown")
    for folder, code in (("known", "other-tokenizer"), ("unknown", "unknown-tokenizer")):
        source = {"name": str(tmp_path / folder)}
        base: dict[str, Any] = {"preset": "gpt-tiny", "tokenizer": "bytes", "dims.vocabulary": VOCABULARY}
        for key, objectives in (("from", ["clm"]), ("teacher", ["clm", "distill-scores"])):
            base["objective"] = objectives
            with raises_problem(SpecError, code):
                resolved({**base, key: source}, registry=components)
            spec = resolved({**base, key: {**source, "vocabulary": "unchecked"}}, registry=components)
            assert resolved(spec, registry=components) == spec
            assert spec[key]["vocabulary"] == "unchecked"


@pytest.mark.thorough
def test_a_model_with_an_unknown_tokenizer_trains_if_the_spec_allows_it(
    gpt: Path, tmp_path: Path, components: Registry
) -> None:
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((gpt / name).read_bytes())
    paribus.save(paribus.convert(tmp_path / "bare"), tmp_path / "unknown")
    small = {"tokenizer": "bytes", "data.batch": 2, "data.validation": 4, "trainer.max_steps": 1}
    source = {"name": str(tmp_path / "unknown")}
    new_rows: dict[str, list[str]] = {}
    for word in ("unchecked", "new"):
        spec = resolved({"from": {**source, "vocabulary": word}, **small}, registry=components)
        (tmp_path / word).mkdir()
        record = run_trial(spec, components, TrialContext(word, tmp_path / word))
        new_rows[word] = list(record["result"]["from"]["new"])
    assert new_rows == {"unchecked": [], "new": ["embedding.tokens.weight"]}


@pytest.mark.thorough
def test_networks_with_different_tokenizers_are_refused(tmp_path: Path) -> None:
    paths = []
    for network, specials in (("ElectraForPreTraining", SPECIALS), ("ElectraForMaskedLM", {**SPECIALS, "pad": "()"})):
        model = paribus.assemble(paribus.spec("electra-tiny", f"dims.vocabulary={VOCABULARY}", "dims.length=9"))
        paribus.export(model, architecture=network).save(tmp_path / network)
        library(specials).save(str(tmp_path / network / "tokenizer.json"))
        paths.append(tmp_path / network)
    with raises_problem(StoreError, "other-tokenizer"):
        paribus.convert(paths)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 3}'])
def test_a_damaged_tokenizer_is_refused(gpt: Path, tmp_path: Path, content: str) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt / name).read_bytes())
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(paribus.ParibusError, match=r"damaged|not-a-tokenizer"):
        paribus.convert(tmp_path)


def test_a_special_token_that_may_occur_in_text_stays_text(gpt: Path, tmp_path: Path) -> None:
    """CLIP pads with `!`, which is a piece of text as well."""
    for path in gpt.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings_path = tmp_path / "tokenizer_config.json"
    settings_path.write_text(json.dumps({**json.loads(settings_path.read_text()), "pad_token": "!"}))
    text = paribus.convert(tmp_path).text
    assert text is not None
    assert text.encode("cat!") == Library.from_file(str(tmp_path / "tokenizer.json")).encode("cat!").ids[1:]
