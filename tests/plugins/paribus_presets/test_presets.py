"""Every preset resolves to a complete spec, and the published ones have their published sizes."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import paribus_presets
from paribus.assembly.build import build
from paribus.assembly.cost import count_parameters
from paribus.conversion.api import families
from paribus.kernels import KERNELS
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

FOLDER = Path(paribus_presets.__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
SPECIALS = {name: token for token, name in enumerate(("pad", "cls", "sep", "mask", "bos", "eos"))}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def meta_model(registry: Registry, spec: dict[str, Any]) -> Any:
    """The model of a spec on the meta device."""
    size, sentinels = spec["dims"]["vocabulary"] or 300, spec["tokenizer"].get("sentinels", 32)
    vocabulary = Vocabulary(size, SPECIALS, tuple(range(size - sentinels, size)), frozenset())
    return build(spec, registry, vocabulary, KERNELS)


def test_the_hook_offers_this_folder(registry: Registry) -> None:
    assert paribus_presets.presets() == FOLDER
    assert sorted(registry.index.presets) == NAMES
    assert {"encoder-tiny", "gpt-tiny", "bert-tiny", "seq2seq-tiny", "bert-base", "gpt2"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_resolves_to_a_complete_spec(registry: Registry, name: str) -> None:
    spec = resolved(name, registry=registry)
    assert resolved(spec, registry=registry) == spec
    meta_model(registry, spec)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_of_a_preset_is_a_comment(name: str) -> None:
    first = (FOLDER / f"{name}.yaml").read_text().partition("\n")[0]
    assert first.startswith("# ")
    assert len(first) <= 120


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-tiny")])
def test_a_tiny_preset_is_tiny(registry: Registry, name: str) -> None:
    assert count_parameters(meta_model(registry, resolved(name, registry=registry)).children()) < 500_000


@pytest.mark.parametrize("name", ["distilbert", "minilm", "tinybert", "xtremedistil"])
def test_the_training_command_in_a_student_preset_resolves(registry: Registry, name: str) -> None:
    content = [line[1:] for line in (FOLDER / f"{name}.yaml").read_text().split("\n") if line.startswith("#   ")]
    results = re.findall(r'teacher=FOLDER objective="([^"]*)"', " ".join(content))
    assert results
    for objective in results:
        spec = resolved(name, f"objective={objective}", "teacher={sha256: known}", registry=registry)
        meta_model(registry, spec)


def test_a_tiny_bert_changes_only_size_initialisation_data_and_schedule() -> None:
    content = yaml.safe_load((FOLDER / "bert-tiny.yaml").read_text())
    assert set(content) == {"preset", "dims", "dropout", "initialisation", "data", "optimizer", "schedule"}
    assert content["preset"] == "bert-base"


def test_bert_is_post_norm_and_gpt2_pre_norm(registry: Registry) -> None:
    bert, gpt2 = resolved("bert-base", registry=registry), resolved("gpt2", registry=registry)
    assert (bert["placement"]["name"], bert["norm"]["eps"]) == ("post", 1e-12)
    assert (gpt2["placement"]["name"], gpt2["norm"]["eps"]) == ("pre", 1e-5)
    assert bert["feedforward"]["activation"] == "gelu"  # by erf
    assert gpt2["feedforward"]["activation"] == "gelu-tanh"
    assert bert["embedding"]["normed"]
    assert bert["embedding"]["segments"] == 2
    assert [node["name"] for node in bert["objective"]] == ["mlm", "nsp"]


PUBLISHED = {  # counted from the reference class, heads included; the preset's first line gives the figure of the paper
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "xlnet": 116_750_336,
    "deberta": 139_637_337,  # with a position table, which its reference class leaves out
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "albert": 11_813_810,
    "spanbert": 336_997_976,
    "xtremedistil": 12_781_114,
    "crammed-bert": 119_589_889,
    "roberta": 124_697_433,
    "xlm": 249_071_384,
    "xlm-r": 278_295_186,
    "xlm-t": 278_295_186,
    "scibert": 110_543_220,
    "flaubert": 138_301_817,
    "tinybert": 14_381_394,
    "distilbert": 66_985_530,
    "llama": 6_738_415_616,
    "mistral": 7_241_732_096,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "ctrl": 1_637_964_550,
    "gpt-neo": 2_651_307_520,
    "gpt-j": 6_050_882_784,
    "bart-base": 139_420_416,
    "bigbird": 127_520_694,  # without the pooler of its class, which is never used
    "m2m100": 483_905_536,
    "t5-base": 222_903_552,
    "t5-v1.1": 247_577_856,
    "vit-b16": 86_567_656,
}
BART_BASE = {"layers": 6, "attention_heads": 12, "ffn_dim": 3072}
REFERENCES: dict[
    str, tuple[str, dict[str, Any]]
] = {  # the reference class of transformers, and the changes to its defaults
    "gpt1": ("OpenAIGPTLMHeadModel", {}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "xlnet": ("XLNetLMHeadModel", {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}),
    "gpt2-medium": ("GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-base": ("BertForPreTraining", {}),
    "bert-large": (
        "BertForPreTraining",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "albert": (
        "AlbertForPreTraining",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "xtremedistil": (
        "BertForMaskedLM",
        {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024},
    ),
    "roberta": (
        "RobertaForMaskedLM",
        {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "xlm": ("XLMWithLMHeadModel", {"vocab_size": 95000, "emb_dim": 1024, "n_heads": 8, "n_langs": 15}),
    "scibert": ("BertForPreTraining", {"vocab_size": 31090}),
    "flaubert": ("FlaubertWithLMHeadModel", {"vocab_size": 68729, "emb_dim": 768, "n_heads": 12}),
    "tinybert": (
        "BertForMaskedLM",
        {"hidden_size": 312, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1200},
    ),
    "xlm-r": (
        "XLMRobertaForMaskedLM",
        {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"max_position_embeddings": 8192}),
    "modernbert-base": ("ModernBertForMaskedLM", {}),
    "modernbert-large": (
        "ModernBertForMaskedLM",
        {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624},
    ),
    "ctrl": ("CTRLLMHeadModel", {}),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {"hidden_size": 2560, "num_layers": 32, "num_heads": 20, "attention_types": [[["global", "local"], 16]]},
    ),
    "gpt-j": ("GPTJForCausalLM", {}),
    "bart-base": (
        "BartForConditionalGeneration",
        {
            **{f"{part}_{size}": value for part in ("encoder", "decoder") for size, value in BART_BASE.items()},
            "d_model": 768,
            "attention_dropout": 0.1,
        },
    ),
    "bigbird": ("BigBirdForMaskedLM", {"attention_type": "original_full"}),
    "m2m100": ("M2M100ForConditionalGeneration", {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}),
    "t5-base": ("T5ForConditionalGeneration", {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}),
    "vit-b16": ("ViTForImageClassification", {"layer_norm_eps": 1e-6, "num_labels": 1000}),
}
NOT_CONVERTED = {("bigbird", "attention")}  # its family refuses block attention
SHARED = ("embedding.", "body.position.")
DISCRIMINATOR = (*SHARED, "body.", "objectives.rtd.detector.")
GENERATOR = (*SHARED, "generator.", "objectives.rtd.generator.")
V3 = {
    "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 128100,
    "type_vocab_size": 0, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip
BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 768}
THIRD = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 768}
QUARTER = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 256}
PAIRS: dict[
    str, list[tuple[tuple[str, ...], str, dict[str, Any], int]]
] = {  # presets of two networks: for each network, its reference class
    "electra": [
        (DISCRIMINATOR, "ElectraForPreTraining", {}, 13_549_057),
        (GENERATOR, "ElectraForMaskedLM", QUARTER, 4_620_026),
    ],
    "electra-base": [
        (DISCRIMINATOR, "ElectraForPreTraining", BASE, 109_483_009),
        (GENERATOR, "ElectraForMaskedLM", THIRD, 33_740_602),
    ],
    "deberta-v3": [
        (("embedding.", "body."), "DebertaV2Model", {**V3, "num_hidden_layers": 12}, 183_831_552),
        (("embedding.", "generator."), "DebertaV2Model", {**V3, "num_hidden_layers": 6}, 141_304_320),
    ],
    "econberta": [(("embedding.", "body."), "DebertaV2Model", {**V3, "num_hidden_layers": 12}, 183_831_552)],
}
ARCHITECTURE = ("topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "dropout")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_preset_has_the_published_size(registry: Registry, name: str) -> None:
    assert count_parameters(meta_model(registry, resolved(name, registry=registry)).children()) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_size_in_the_first_line_of_a_preset_is_close_to_the_counted_size(name: str) -> None:
    figure = re.search(r"([\d,]+) M parameters", (FOLDER / f"{name}.yaml").read_text().partition("\n")[0])
    assert figure, "the first line gives the published size"
    assert PUBLISHED[name] / 1e6 == pytest.approx(float(figure[1].replace(",", "")), rel=0.035)


@pytest.mark.parametrize("name", PAIRS)
def test_each_of_two_networks_has_the_size_of_its_reference_class(registry: Registry, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    preset_shapes = shapes_by_name(registry, resolved(name, registry=registry))
    for prefixes, model, changes, published in PAIRS[name]:
        reference_class = getattr(transformers, model)
        with torch.device("meta"):
            reference = reference_class(reference_class.config_class(**changes))
        counted = sum(math.prod(shape) for path, shape in preset_shapes.items() if path.startswith(prefixes))
        assert counted == sum(parameter.numel() for parameter in reference.parameters()) == published, model


SAME_HEAD = {"control": "clm", "tlm": "mlm"}  # a converted model is trained by the latter, on any text


@pytest.mark.few(12)
@pytest.mark.parametrize("name", REFERENCES)
def test_a_preset_equals_the_spec_converted_from_its_reference_class(registry: Registry, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model, changes = REFERENCES[name]
    reference_class = getattr(transformers, model)
    config = reference_class.config_class(**changes)
    converted = families(registry)[config.model_type].spec_of(config.to_dict(), model)
    preset_spec, reference = resolved(name, registry=registry), resolved(converted, registry=registry)
    assert shapes_by_name(registry, preset_spec) == shapes_by_name(registry, reference)
    for key in (key for key in ARCHITECTURE if (name, key) not in NOT_CONVERTED):
        assert normalized(preset_spec, key) == normalized(reference, key), key


def shapes_by_name(registry: Registry, spec: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    children = meta_model(registry, spec).children().items()
    results = {f"{name}.{path}": tuple(p.shape) for name, child in children for path, p in child.named_parameters()}
    for objective_name, reference in SAME_HEAD.items():
        results = {
            path.replace(f"objectives.{objective_name}.", f"objectives.{reference}."): shape
            for path, shape in results.items()
        }
    return results


def normalized(spec: dict[str, Any], key: str) -> Any:
    """A node with its derived widths filled in: `inner` may be given as `expand` times the width, for example."""
    node = spec[key]
    if key == "dims":
        return {**node, "head_width": node["head_width"] or node["width"] // node["heads"]}
    if key == "feedforward":
        inner = node["inner"] or round(node["expand"] * spec["dims"]["width"])
        return {**node, "inner": inner, "expand": None}
    return node


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-tiny")])
def test_a_tiny_preset_learns(registry: Registry, name: str, tmp_path: Path) -> None:
    overrides = ["trainer.max_steps=40", "data.validation=64"]
    spec = resolved(name, *overrides, registry=registry)
    losses = run_trial(spec, registry, TrialContext("tiny", tmp_path))["result"]["losses"]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.3


@pytest.mark.slow
def test_a_tiny_vit_is_far_better_than_class_frequencies(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("vit-tiny", "trainer.max_steps=200", registry=registry)
    result = run_trial(spec, registry, TrialContext("vit", tmp_path))["result"]
    loss, accuracy = (f"val/image-classify/{name}" for name in ("loss", "accuracy"))
    assert result["metrics"][loss] < 0.5 * result["unigram_baseline"][loss]
    assert result["metrics"][accuracy] > 0.7
