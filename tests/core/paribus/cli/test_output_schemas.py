"""What commands print with `--json` has the schema that `paribus schema` prints, in every design of a study."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from paribus.cli.console import JSON_VERSION
from paribus.cli.main import main
from paribus.cli.output_schemas import DOCUMENTS, output_schema

Cli = Callable[..., Any]
MARGIN = {"name": "val/mlm/loss", "margin": 0.1}
SIZES = {f"dims.width={width}": {"dims.width": width} for width in (4, 8, 16)}
STAGES = {"pretrain": {"objective": "mlm"}, "finetune": {"budget": {"steps": 2}}}
STUDIES: dict[str, Mapping[str, Any]] = {
    "one-at-a-time": {"metric": MARGIN, "vary": {"attention": ["mqa"], "optimizer.lr": [1e30]}},
    "ladder": {"design": "ladder", "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}},
    "factorial": {"design": "factorial", "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}},
    "leave-one-out": {"design": "leave-one-out", "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}},
    "grid": {"design": "grid", "exclude": [{"attention": "mqa"}], "vary": {"attention": ["mqa", "gqa"]}},
    "scales": {"scales": {name.replace("=", "-"): change for name, change in SIZES.items()}},
    "tune": {"tune": {"optimizer.lr": [0.001, 0.002, 0.004], "seeds": 2}},
    "match": {"match": [None, {"on": "params", "by": "feedforward.expand"}]},
    "match on time": {"match": {"on": "time", "by": "feedforward.expand"}},
    "stages": {"stages": STAGES},
    "worth": {"worth": [0.5, 2], "scales": {"s": {"dims.width": 4}, "m": {"dims.width": 8}}},
    "stop": {"stop": {"looks": [2, 3]}, "seeds": 3},
}
SECTIONS = {
    "ladder": {"steps"},
    "factorial": {"main_effects", "interactions", "shapley"},
    "scales": {"settings", "transfer", "scaling"},
    "tune": {"settings", "tuning"},
    "match": {"settings"},
    "worth": {"settings", "worth"},
}  # keys that only some designs have
PROGRAM = {
    "program": "python3 train.py",
    "base": {"lr": 0.1},
    "vary": {"lr": [0.2]},
    "seeds": 2,
    "metric": {"name": "loss", "from": "stdout", "pattern": "loss ([0-9.]+)"},
}


@pytest.fixture
def printed(cli: Cli) -> Callable[..., dict[str, Any]]:
    """Run a command with `--json`, and return what it prints after the validation by the schema of a topic."""

    def run(topic: str, *words: str) -> dict[str, Any]:
        result = cli(*words, "--json")
        document: dict[str, Any] = json.loads(result.out)
        errors = Draft202012Validator(output_schema(topic)["$defs"]["document"] | definitions(topic)).iter_errors(
            document
        )
        assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == [], result.err
        assert document["schema"] == JSON_VERSION
        return document

    return run


def definitions(topic: str) -> dict[str, Any]:
    return {"$defs": output_schema(topic)["$defs"]}


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
@pytest.mark.parametrize("design", STUDIES)
def test_commands_on_a_study_print_documents_of_their_schemas(
    design: str, printed: Callable[..., dict[str, Any]], write_study: Callable[..., Path], cli: Cli
) -> None:
    path = str(write_study(**STUDIES[design]))
    printed("check", "check", path)
    printed("status", "status", path)
    printed("plan", "run", path, "--plan", "--no-timing")
    ran = printed("run", "run", path, "--no-timing")
    printed("plan", "run", path, "--plan")
    compared = printed("compare", "compare", path, "--fail-if", "worse:0.5")
    assert {*compared} - {*ran} == {"gates"}
    assert {*ran} >= SECTIONS.get(design, set())
    assert "done" in {trial["state"] for trial in printed("status", "status", path)["trials"]}
    diverges = design == "one-at-a-time"
    assert cli("status", path).code == cli("status", path, "--json").code == int(diverges)
    printed("calibrate", "calibrate", path, "--effect", "0.1")


def test_commands_on_a_program_print_documents_of_their_schemas(printed: Callable[..., dict[str, Any]]) -> None:
    Path("train.py").write_text("print('loss 2.5')", encoding="utf-8")
    Path("mine.yaml").write_text(json.dumps(PROGRAM), encoding="utf-8")
    assert printed("check", "check", "mine.yaml")["commands"]
    assert (
        printed("plan", "run", "mine.yaml", "--plan")["variants"][1]["command"] == "python3 train.py --lr=0.2 --seed=0"
    )
    printed("run", "run", "mine.yaml")
    printed("compare", "compare", "mine.yaml")


def test_other_commands_print_documents_of_their_schemas(printed: Callable[..., dict[str, Any]]) -> None:
    assert printed("check", "check", "encoder-tiny")["ok"]
    assert printed("conform", "conform", "norm.rmsnorm", "--only", "output is normalized once")["reports"]
    assert printed("conform", "conform", "norm", "--list")["checks"]["norm"]
    Path("values.csv").write_text("variant,seed,loss\na,0,1\na,1,2\nb,0,2\nb,1,4\n", encoding="utf-8")
    printed("compare-values", "compare-values", "values.csv")


@pytest.mark.parametrize("topic", DOCUMENTS)
def test_an_error_has_the_schema_of_every_command(topic: str, cli: Cli) -> None:
    words = ["run", "--plan"] if topic == "plan" else [topic]
    document = json.loads(cli(*words, "no-such-study", "--json").out)
    schema = output_schema(topic)
    Draft202012Validator({**definitions(topic), "$ref": "#/$defs/error"}).validate(document)
    Draft202012Validator(schema).validate(document)
    assert not Draft202012Validator(schema).is_valid({**document, "schema": JSON_VERSION + 1})


@pytest.mark.parametrize("topic", DOCUMENTS)
def test_a_schema_allows_no_other_keys(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", topic]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == output_schema(topic)
    Draft202012Validator.check_schema(schema)
    assert [
        mapping for mapping in mappings(schema) if "properties" in mapping and mapping["additionalProperties"]
    ] == []


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(item)
    if isinstance(value, dict) and value.get("type") == "object":
        yield value
