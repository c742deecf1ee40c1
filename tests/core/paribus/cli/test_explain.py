"""`paribus explain` of slots, components, topologies and other keys of a spec."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from omegaconf import OmegaConf

import paribus
from paribus.cli import explain
from paribus.cli._key_options import find_options, plain_key, sections
from paribus.cli.slot_contract import name_contract, public_names, slot_contract, trait_tables
from paribus.hookspecs import SLOTS
from paribus.registry import index
from paribus.registry.class_reader import slot_class
from paribus.specs.fields import KEYS
from paribus.specs.trainer_options import trainer_arguments
from paribus.specs.tree import flatten

Cli = Callable[..., Any]


@pytest.mark.parametrize("topic", ["attention.gqa", "gqa"])
def test_a_component_is_explained_with_its_paper_options_limits_and_traits(cli: Cli, topic: str) -> None:
    result = cli("explain", topic)
    assert result.code == 0
    assert "(Ainslie et al. 2023)" in result.out
    assert "key/value heads (a whole number; ≥ 1; divides dims.heads; default 2)" in result.out
    assert "scores.bias " in result.out
    assert "can mask later positions" in result.out
    assert "attention of paribus" in result.out
    assert "grouped_query.py" in result.out


def test_an_option_without_a_default_shows_an_example(cli: Cli) -> None:
    assert "(a whole number; ≥ 1; at most dims.length; required, such as 8)" in cli("explain", "restricted").out


@pytest.mark.few(6)
@pytest.mark.parametrize("slot", SLOTS)
def test_every_slot_is_explained_by_its_contract_and_what_fills_it(cli: Cli, slot: str) -> None:
    result = cli("explain", slot)
    assert result.code == 0
    assert result.out.startswith(f"{slot}\n\n")
    document = json.loads(cli("explain", slot, "--json").out)
    assert document["doc"] in result.out
    assert document["components"] == list(index().entries[slot])
    for kind in ("methods", "attributes", "traits"):
        for member in document[kind]:
            assert member["summary"], f"{slot}: {kind}: {member['name']} has no description"
            assert member["name"] in result.out
    for name in document["names"]:
        assert name in result.out
    declared = {trait for entry in index().entries[slot].values() for trait in entry.traits}
    assert declared <= {member["name"] for member in document["traits"]}


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.thorough)], ids=["one of a slot", "all"])
def test_every_component_can_be_explained(cli: Cli, count: int | None) -> None:
    for slot, entries in index().entries.items():
        for name, entry in [*entries.items()][:count]:
            result = cli("explain", f"{slot}.{name}")
            assert result.code == 0
            assert entry.doc in result.out
            document = json.loads(cli("explain", f"{slot}.{name}", "--json").out)
            assert [option["name"] for option in document["options"]] == [option.name for option in entry.options]


def test_a_topology_is_explained_with_its_stacks(cli: Cli) -> None:
    result = cli("explain", "encoder-decoder").out
    assert "part decoder, at body: causal, and attends to the encoder" in result
    assert "reads embedding, attention, position" in result


@pytest.mark.parametrize("topic", ["study", "dims", "data", "dropout", "seed"])
def test_other_sections_of_a_spec_are_explained(cli: Cli, topic: str) -> None:
    assert cli("explain", topic).out.startswith(f"{topic}\n\noptions\n")
    assert json.loads(cli("explain", topic, "--json").out)["topic"] == topic


@pytest.mark.parametrize("slot", SLOTS)
def test_every_name_in_the_contract_of_a_slot_is_explained(slot: str) -> None:
    names, explained = {*slot_contract(slot).names}, set[str]()
    while names - explained:  # and the names in their contracts
        name = min(names - explained)
        contract = name_contract(name)
        assert contract.doc or contract.definition != name, f"{name} has no docstring"
        undescribed = [member.name for member in (*contract.attributes, *contract.methods) if not member.summary]
        assert undescribed == [], f"{name}: no description of {', '.join(undescribed)}"
        explained.add(name)
        names |= {*contract.names}


@pytest.mark.parametrize(
    ("slot", "names"),
    [
        ("attention", {"Attend", "Context", "Heads", "Load", "Shape", "State"}),
        ("position", {"Pair", "Shape"}),
        ("objective", {"Draw", "ForwardPass", "LossTerm", "Stream", "TrainingExamples"}),
        ("tokenizer", {"Vocabulary"}),
    ],
)
def test_the_contract_of_a_slot_names_the_types_of_its_methods(slot: str, names: set[str]) -> None:
    assert names <= {*slot_contract(slot).names}


def test_the_arguments_of_a_component_are_explained(cli: Cli) -> None:
    for slot in SLOTS:
        arguments = slot_contract(slot).definition.removeprefix("__init__(self, ").removesuffix("*, OPTIONS)")
        assert tuple(re.findall(r"(\w+): ", arguments)) == slot_class(slot).injects
    assert (
        "__init__(self, shape: Shape, vocabulary: Vocabulary, norm: Norms, *, OPTIONS)"
        in cli("explain", "objective").out
    )


def test_a_public_class_is_explained_with_its_fields_and_methods(cli: Cli) -> None:
    result = cli("explain", "Heads").out
    assert result.startswith("Heads(shape: Shape, *, kv_heads: int, bias: bool")
    assert "merge(x: Tensor) -> Tensor\n      Return the output projection of all heads" in result
    fields = json.loads(cli("explain", "Stream", "--json").out)["attributes"]
    assert [field["name"] for field in fields] == list(paribus.Stream._fields)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "visibility_of",
            "visibility_of(shape: Shape, window: int | None=None) -> Visibility\n\nReturn the visibility",
        ),
        ("Role", '"residual",  # writes into the residual stream'),
        ("State", "State = dict[str, Tensor]\n\nDecoding state of one sublayer"),
        ("IGNORED", "IGNORED = -100\n\nlabel of a position without a target"),
    ],
)
def test_public_functions_and_values_are_explained(cli: Cli, name: str, text: str) -> None:
    assert text in cli("explain", name).out


@pytest.mark.thorough
def test_every_public_name_can_be_explained() -> None:
    for name in public_names():
        assert name_contract(name).definition


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_spec_is_explained(cli: Cli, key: str) -> None:
    assert cli("explain", key).out.startswith(f"{key}\n\n")


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (
            "optimizer.weight_decay",
            ["optimizer.schedule-free, optimizer.soap, optimizer.stable-adamw:", "(a number; ≥ 0; default 0.01)"],
        ),
        ("attention.gqa.kv_heads", ["attention.gqa:", "(a whole number; ≥ 1; divides dims.heads; default 2)"]),
        ("parts.decoder.cross.attention.scores.soft_cap", ["attention.mha", "(a number, or null; > 0; default null)"]),
        ("feedforward.expert.inner", ["feedforward.moe.expert=glu", "(a whole number, or null"]),
        ("trainer.compile.mode", ["trainer:", "reduce-overhead"]),
        ("trainer.precision", ["Double precision"]),
        ("metric.margin", ["metric, metric of a program:", "(a number, or null; > 0"]),
        ("vary", ["study, program:", "values to try"]),
    ],
)  # fmt: skip
def test_a_dotted_key_is_explained_with_type_default_limits_and_components(
    cli: Cli, key: str, lines: list[str]
) -> None:
    result = cli("explain", key)
    assert result.code == 0
    assert [line for line in lines if line not in result.out] == []
    assert all(option["of"] for option in json.loads(cli("explain", key, "--json").out)["options"])


@pytest.mark.parametrize("preset", ["gpt-tiny", pytest.param(None, marks=pytest.mark.thorough)])
def test_every_key_of_a_resolved_spec_has_an_explanation(preset: str | None) -> None:
    specs = [paribus.spec(name) for name in ([preset] if preset else index().presets)]
    keys = {plain_key(path) for spec in specs for path, _ in flatten(OmegaConf.to_container(spec))}
    known = {*SLOTS, *explain.KEY_DOCS, *sections()}
    assert [key for key in sorted(keys) if key not in known and not find_options(index(), key)] == []


def test_every_option_is_found_by_its_dotted_key() -> None:
    for slot, entries in index().entries.items():
        for name, entry in entries.items():
            for option in entry.options:
                assert (f"{slot}.{name}", option) in find_options(index(), f"{slot}.{option.name}")


def test_the_trainer_is_explained_with_the_arguments_of_lightning(cli: Cli) -> None:
    result = cli("explain", "trainer").out
    assert "accumulate_grad_batches" in result
    assert "Accumulates gradients over k batches" in result
    document = json.loads(cli("explain", "trainer", "--json").out)
    assert document["arguments"].keys() == trainer_arguments().keys()
    assert all(document["arguments"].values())


@pytest.mark.parametrize(
    ("topic", "problem", "value"),
    [
        ("Shpe", "unknown-topic", '"Shpe"; did you mean "Shape"?'),
        ("gqaa", "unknown-topic", '"gqaa"; did you mean "gqa"?'),
        ("attention.gqaa", "unknown-component", 'did you mean "gqa"?'),
        ("attention.", "unknown-component", '""'),
        ("attention.heads", "unknown-component", 'did you mean "dims.heads"?'),
        ("dims.widht", "unknown-topic", 'did you mean "width"? valid: after_loop, before_loop, groups'),
        ("GLA", "unknown-topic", 'did you mean "attention.gated-linear"?'),
        ("xsa", "unknown-topic", 'did you mean "attention.scores.exclusive"?'),
        ("lr", "unknown-topic", 'did you mean "optimizer.lr"?'),
        ("none", "ambiguous", "position.none, norm.none"),
        ("atention.gqa", "unknown-topic", '"atention.gqa"'),
    ],
)
def test_an_unknown_topic_is_refused_with_the_valid_topics(cli: Cli, topic: str, problem: str, value: str) -> None:
    result = cli("explain", topic)
    assert result.code == 2
    assert result.err.startswith(f"error[{problem}]")
    assert value in result.err


def test_every_trait_has_words() -> None:
    kinds = [get_args(get_type_hints(slot_class(slot))["traits"])[0] for slot in SLOTS]
    assert {*explain._CAPABILITIES, *explain._DESCRIPTIONS} == {
        trait for kind in kinds for trait in get_type_hints(kind)
    }


@pytest.mark.thorough
def test_traits_are_explained_with_their_type_default_and_meaning(cli: Cli) -> None:
    everything = " ".join(cli("explain", "traits").out.split())
    assert "content_based the keys that a query reads depend on the query's content (bool; default True)" in everything
    assert "hooks methods that it overrides: embed, rotate, bias, mix (list[str]; required)" in everything
    one = json.loads(cli("explain", "traits.attention", "--json").out)
    assert [*one] == ["attention", "all slots"]
    assert {"name": "causal", "kind": "bool", "default": "False", "meaning": "can be made causal"} in one["attention"]
    assert [*json.loads(cli("explain", "traits.norm", "--json").out)] == ["all slots"]  # it has none of its own
    unknown = cli("explain", "traits.atention")
    assert (unknown.code, 'did you mean "attention"?' in unknown.err) == (2, True)


def test_every_trait_is_explained_once_with_a_meaning() -> None:
    tables = trait_tables()
    common = [field.name for field in tables["all slots"]]
    for slot in SLOTS:
        traits = get_type_hints(get_args(get_type_hints(slot_class(slot))["traits"])[0])
        assert sorted([*common, *(field.name for field in tables.get(slot, ()))]) == sorted(traits)
    assert all(field.meaning for fields in tables.values() for field in fields)


@pytest.mark.thorough
def test_stated_defaults_of_traits_are_those_that_the_code_reads() -> None:
    """Compare the table with each `traits.get("trait", default)` of the library."""
    defaults: dict[str, set[str]] = {}
    for field in (field for fields in trait_tables().values() for field in fields):
        defaults.setdefault(field.name, set()).add(field.default)
    compared = set()
    for file in Path(paribus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=value, attr="get"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=bool() | str() as default)],
                ) if name in defaults and "traits" in ast.unparse(value):
                    compared.add(name)
                    assert str(default) in defaults[name] or "required" in defaults[name], (file, ast.unparse(node))
    assert {"compiles", "exact_gradients", "reads_keys", "weights"} <= compared


@pytest.mark.parametrize(("word", "name"), [("masks", "Visibility"), ("softmax", "ScoreFunctions")])
def test_another_word_for_a_public_name_is_explained(cli: Cli, word: str, name: str) -> None:
    assert cli("explain", word).out == cli("explain", name).out


def test_traits_with_default_values_are_not_described() -> None:
    nothing: dict[str, Any] = {
        "needs": [],
        "provides": [],
        "corrupts": False,
        "example_kind": None,
        "table": False,
        "score_terms": 1,
    }
    assert (
        list(
            explain.describe_traits({**nothing, "segments": False, "parts": [], "bias": "none", "visibility": "other"})
        )
        == []
    )


def test_traits_are_described_in_words() -> None:
    descriptions = explain.describe_traits(
        {"hooks": ["rotate"], "position_hooks": [], "final_norm": True, "needs": ["mask"],
         "provides": ["pad"], "corrupts": True, "example_kind": "stream", "table": True, "segments": True,
         "parts": ["encoder"], "bias": "content", "owner": "layer",
         "score_terms": 3, "visibility": "past", "causal": False, "decodes": True}
    )  # fmt: skip
    assert list(descriptions) == [
        "encodes positions through: rotate",
        "does not use a position",
        "a norm follows the last layer",
        "needs mask",
        "has pad",
        "changes what the model sees",
        "forms examples as stream",
        "cannot encode positions beyond its table",
        "distinguishes two segments of an example",
        "reads the stacks body, encoder",
        "its bias depends on content",
        "each layer has its own",
        "3 terms share the scale of the scores",
        "needs causal tokens",
        "cannot mask later positions",
        "can decode step by step, keeping state",
    ]
