"""The JSON Schema of a study accepts what the reader accepts, and refuses keys, types and names that it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.fixtures.pages import DOCS, ROOT, blocks_of

import paribus
from paribus.errors import ParibusError
from paribus.registry import Index, Registry
from paribus.registry.class_reader import group_options
from paribus.specs.fields import KEYS
from paribus.specs.yaml_reader import read_file, read_yaml
from paribus.studies.json_schema import study_schema
from paribus.studies.study_keys import ProgramKeys, StudyKeys

BASE = """
base: {preset: encoder-tiny, dims: {width: 8, layers: 2, heads: 2, length: 16}, data.batch: 4}
vary: {attention: [mqa]}
seeds: 2
budget: {steps: 3}
metric: val/mlm/loss
"""
PROGRAM = """
program: python train.py {dropout}
base: {dropout: 0.1}
vary: {dropout: [0.0]}
seeds: 2
metric: {name: loss, from: metrics.jsonl}
"""
STAGES = "stages: {pretrain: {objective: mlm}, finetune: {budget: {steps: 2}, data.batch: 2}}"
ACCEPTED = [
    "metric: {name: val/mlm/loss, margin: 0.1}",
    "stop: when-decided\nseeds: 5",
    "stop: {looks: [3, 5]}\nseeds: 5",
    "stop: {open: true}\nseeds: 2",
    "stop: null",
    "name: null",
    "seeds: [3, 5]",
    "budget: {tokens: 1.0e3}",
    "budget: {seconds: 60}",
    "base: encoder-tiny",
    "base: {preset: encoder-tiny, dims.width: 64}",
    "base: {preset: encoder-tiny, dims: {width: 64}, attention: {name: gqa, kv_heads: 2}}",
    "base: {preset: encoder-tiny, position: [rope, none]}",
    "base: {preset: encoder-tiny, position: [rope, none], position.1: alibi}",
    "base: {preset: encoder-tiny, position: [rope, alibi], position.0.theta: 500}",
    "base: {preset: encoder-tiny, dims.width: '${dims.length}'}",
    "base: {preset: encoder-tiny, freeze: embedding}",
    "base: {preset: encoder-tiny, freeze: {layers: 1}, freeze.steps: 1}",
    "base: {preset: encoder-tiny, trainer: {gradient_clip_val: 1.0}, trainer.compile.mode: default}",
    "base: {preset: encoder-tiny, trainer.max_time: {minutes: 5}, evaluate: [mlm], measure: null}",
    "base: {preset: encoder-tiny, feedforward: {name: moe, expert: {inner: 16}}}",
    "base: {preset: encoder-tiny, feedforward: moe, feedforward.expert.inner: 16}",
    "base: {preset: encoder-tiny, paribus: 1, plugins: [paribus]}",
    "base: {preset: t5-tiny, parts.decoder.dims.layers: 1, parts: {decoder: {cross: {attention: mqa}}}}\n"
    "metric: val/span-corruption/loss",
    "base: {preset: t5-tiny}\nvary: {parts.decoder.attention: [mqa], parts.decoder.cross.attention: [mqa]}\n"
    "metric: val/span-corruption/loss",
    "vary: {attention.scores.qk_norm: [true], dropout: [0.1], seed: [3]}",
    "vary: {attention: [{name: mha, qkv_bias: false}]}",
    "vary: {attention: [mqa, gqa], attention.kv_heads: {values: [1], when: {attention: gqa}}}\ndesign: grid",
    "vary: {attention: [mqa, gqa], norm: [{value: rmsnorm, when: {attention: [mqa, gqa]}}]}\ndesign: grid",
    "vary: {attention: [mqa], norm: [rmsnorm, none]}\ndesign: grid\n"
    "exclude: [{attention: mqa, norm: rmsnorm, reason: same}]",
    "vary: null\nvariants: [{name: both, attention: mqa, norm: rmsnorm}]\ndesign: list",
    "vary: null\nchanges: [{norm: rmsnorm}, {name: gated, feedforward: glu}]\ndesign: ladder",
    "vary: {attention: [mqa], norm: [rmsnorm], position: [alibi]}\ndesign: factorial\nfraction: 1/2",
    "match: {on: params, by: feedforward.expand}",
    "match: [none, {on: params, by: feedforward.expand}]",
    "scales: [encoder-tiny, bert-tiny]",
    "scales: {s: {dims.width: 16}, m: {preset: bert-tiny}}",
    "tune: {optimizer.lr: [1.0e-3, 2.0e-3], seeds: 3}",
    "evaluate: mlm\nmeasure: [entropy]",
    "loggers: csv",
    "loggers: [{name: csv, flush_logs_every_n_steps: 10}]",
    "launcher: {name: local}\ntimeout: 60",
    "budget: {steps: 3}\nworth: [0.5, 2]",
    "plugins: [paribus]",
    STAGES,
    f"{STAGES}\nvary: {{finetune.optimizer.lr: [1.0e-4], finetune.from: [null]}}",
    "stages: {pretrain: {objective: mlm}, finetune: {from: {name: pretrain, vocabulary: new}, tasks: "
    "{one: {data.batch: 2}, two: {budget: {steps: 1}}}}}\nvary: {finetune.two.optimizer.lr: [0.2]}\n"
    "metric: {name: val/mlm/loss, stage: finetune, task: two}",
    "stages: {pretrain: {objective: mlm}, finetune: {tasks: {one: {}, two: {}}}}\n"
    "metric: {tasks: {one: val/mlm/loss, two: [val/mlm/loss, val/mlm/accuracy]}, better: higher}",
]
REFUSED = [
    "sedes: 3",
    "seeds: many",
    "seeds: [1, 1]",
    "metric: loss",
    "metric: {name: val/mlm/loss, beter: lower}",
    "metric: {margin: 0.1}",
    "metric: {name: val/mlm/loss, margin: -1}",
    "budget: {stpes: 3}",
    "budget: {steps: 3, tokens: 4}",
    "budget: {steps: '3'}",
    "budget: 3",
    "stop: sometimes",
    "stop: {look: [3]}",
    "stop: {open: later}",
    "design: gird",
    "name: ../up",
    "base: encoder-tiy",
    "base: 3",
    "base: {preset: encoder-tiny, dims.widht: 64}",
    "base: {preset: encoder-tiny, dims: {widht: 64}}",
    "base: {preset: encoder-tiny, dims.width: wide}",
    "base: {preset: encoder-tiny, attention: mqaa}",
    "base: {preset: encoder-tiny, attention: {name: gqa, kv_head: 2}}",
    "base: {preset: encoder-tiny, attention: {name: gqa, kv_heads: two}}",
    "base: {preset: encoder-tiny, attention.kv_head: 2}",
    "base: {preset: encoder-tiny, position: [rope, none], position.0.thet: 2}",
    "base: {preset: encoder-tiny, position: [rope, none], position.0.theta: big}",
    "base: {preset: t5-tiny, parts.decoder.attention.kv_heads: two}",
    "base: {preset: encoder-tiny, trainer: {max_stps: 3}}",
    "base: {preset: encoder-tiny, trainer.gradient_clip: 3}",
    "base: {preset: encoder-tiny, attention: {name: mha, scores: {qk_nrm: true}}}",
    "base: {preset: encoder-tiny, feedforward: {name: moe, expert: mlpp}}",
    "base: {preset: encoder-tiny, parts: {decodr: {norm: rmsnorm}}}",
    "base: {preset: encoder-tiny, dropout: 1.5}",
    "vary: {attention: mqa}",
    "vary: {attention: [mqaa]}",
    "vary: {atention: [mqa]}",
    "vary: {attention: [{value: mqaa, when: {norm: rmsnorm}}]}",
    "vary: {finetune.optimizer.lr: [0.1]}",
    f"{STAGES}\nvary: {{finetune.optimizer.lrate: [0.1]}}",
    f"{STAGES}\nvary: {{finetune.optimizer.lr: [fast]}}",
    "stages: {pretrain: {objectiv: mlm}}",
    "stages: {pretrain: {budget: {stps: 3}}}",
    "variants: [{atention: mqa}]\nvary: null\ndesign: list",
    "match: {on: parameters, by: feedforward.expand}",
    "match: {on: params}",
    "scales: [encoder-tiny]",
    "scales: {s: {dims.widht: 16}, m: {dims.width: 8}}",
    "tune: {optimizer.lr: 0.1}",
    "tune: {optimizer.lrate: [0.1]}",
    "evaluate: mlmm",
    "loggers: [cvs]",
    "loggers: {name: csv, flush: 3}",
    "launcher: slrum",
    "timeout: soon",
    "worth: [fast]",
    "plugins: {a: b}",
    "exclude: [{atention: mqa}]\ndesign: grid",
]
PROGRAM_ACCEPTED = [
    "vary: {model.depth: [1, 2], flash: [true]}",
    "options: '{key}={value}'\nseed_option: random_seed",
    "tune: {lr: [0.1], seeds: 2}",
    "scales: {s: {width: 8}, m: {width: 16}}",
    "metric: {name: loss, from: stdout, pattern: 'loss ([0-9.]+)'}",
    "base: {dropout: 0.1, steps: 9}\nworth: {option: steps, factors: [0.5, 2]}",
    "effects: {dropout: batches}",
    "effects: {dropout: [batches, budget]}",
]
PROGRAM_REFUSED = [
    "metric: loss",
    "metric: {name: loss}",
    "budget: {steps: 3}",
    "input: [model.py]",
    "inputs: {a: b}",
    "vary: {dropout: 0.1}",
    "vary: {seed: [1]}",
    "effects: {dropout: speed}",
    "worth: [2]",
]


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the script of the study of a program."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


@pytest.fixture(scope="module")
def schema(plugin_index: Index) -> dict[str, Any]:
    return study_schema(plugin_index, {})


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema)


@pytest.mark.thorough
def test_the_schema_is_a_schema(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)


def changed(base: str, change: str) -> dict[str, Any]:
    data: dict[str, Any] = read_yaml(base, "base").data | read_yaml(change, "change").data
    return data


def is_read(study: dict[str, Any], index: Index) -> bool:
    try:
        paribus.study(study, registry=index)
    except ParibusError:
        return False
    return True


@pytest.mark.parametrize(
    ("base", "change"), [*((BASE, it) for it in ACCEPTED), *((PROGRAM, it) for it in PROGRAM_ACCEPTED)]
)
def test_a_study_that_is_read_is_valid(
    validator: Draft202012Validator, base: str, change: str, plugin_index: Index
) -> None:
    study = changed(base, change)
    paribus.study(study, registry=plugin_index)
    assert [error.message for error in validator.iter_errors(study)] == []


@pytest.mark.parametrize(
    ("base", "change"), [*((BASE, it) for it in REFUSED), *((PROGRAM, it) for it in PROGRAM_REFUSED)]
)
def test_a_study_with_a_mistake_is_invalid(
    validator: Draft202012Validator, base: str, change: str, plugin_index: Index
) -> None:
    study = changed(base, change)
    assert not is_read(study, plugin_index)
    assert not validator.is_valid(study)


def studies_of_files(index: Index) -> Iterator[tuple[str, Any]]:
    """Yield the studies of the repository, and one with each preset as its base."""
    yield from (
        (name, read_yaml(BASE, "base").data | {"base": read_file(path).data}) for name, path in index.presets.items()
    )
    for path in [*(ROOT / "ablations").glob("*/study.yaml"), *(ROOT / "benchmarks").rglob("*.yaml")]:
        yield str(path.relative_to(ROOT)), read_file(path).data
    for page in DOCS.rglob("*.md"):
        for block in blocks_of(page.read_text(encoding="utf-8")):
            data = read_yaml(block.text, page.name).data if block.language == "yaml" and block.file else None
            if isinstance(data, dict) and {"base", "program"} & set(data):
                yield page.name, data


OF_PLUGINS = {"squared-relu", "sparse", "mine", "fading"}  # components that a page defines


def test_every_study_of_the_repository_is_valid(validator: Draft202012Validator, plugin_index: Index) -> None:
    studies = list(studies_of_files(plugin_index))
    assert len(studies) > 100
    wrong = [(name, error) for name, study in studies for error in validator.iter_errors(study)]
    wrong = [(name, error) for name, error in wrong if not any(it in str(error.instance) for it in OF_PLUGINS)]
    assert [(name, error.json_path, error.message) for name, error in wrong] == []


def test_every_key_is_described_and_constrained(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    for name, block in (("study", StudyKeys), ("program-study", ProgramKeys)):
        properties = definitions[name]["properties"]
        assert {key: it["description"] for key, it in properties.items()} == {
            option.name: option.doc for option in group_options(block)
        }
        assert [key for key, it in properties.items() if set(it) <= {"description", "default"}] == []
    assert set(KEYS) <= set(definitions["spec"]["properties"])


def test_every_component_is_valid_with_the_sample_of_each_option(
    validator: Draft202012Validator, plugin_index: Index
) -> None:
    for slot, entries in plugin_index.entries.items():
        of_slot = validator.evolve(schema={**validator.schema, "if": {}, "then": {"$ref": f"#/$defs/{slot}"}})
        for name, entry in entries.items():
            samples = {option.name: option.sample for option in entry.options}
            assert [error.message for error in of_slot.iter_errors({"name": name, **samples})] == []
            assert not of_slot.is_valid({"name": name, **samples, "unknown": 1})


def test_an_added_component_is_valid_with_its_options(components: Registry) -> None:
    registry = components.with_components(feedforward={"mine": components.get("feedforward", "mlp")})
    validator = Draft202012Validator(study_schema(registry.index, {}))
    assert validator.is_valid(changed(BASE, "vary: {feedforward: [mine, {name: mine, expand: 2}]}"))
    assert not validator.is_valid(changed(BASE, "vary: {feedforward: [{name: mine, expnd: 2}]}"))
