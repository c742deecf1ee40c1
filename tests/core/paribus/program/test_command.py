"""Commands of programs: placeholders, options as words, variables or files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paribus.program.command import command_of, command_problems, options_of

OPTIONS = {"attention": "mha", "lr": 1e-3, "model": {"heads": 4, "tied": True}, "sizes": [1, 2], "unused": None}


def spec(command: str = "python train.py", options: str = "--{key}={value}", **changes: Any) -> dict[str, Any]:
    program = {"command": command, "options": options, "seed_option": "seed"}
    return {**OPTIONS, **changes, "program": program, "seed": 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--{key}={value}", "--attention=mha --lr=0.001 --model.heads=4 --model.tied=true --sizes=[1,2] --seed=3"),
        ("{key}={value}", "attention=mha lr=0.001 model.heads=4 model.tied=true sizes=[1,2] seed=3"),
        (
            "-o {key} {value}",
            "-o attention mha -o lr 0.001 -o model.heads 4 -o model.tied true -o sizes [1,2] -o seed 3",
        ),
        ("--config={json}", "--config=options.json"),
        ("--config {yaml}", "--config options.yaml"),
        ("environment", ""),
    ],
)
def test_options_are_passed_as_the_template_says(options: str, words: str) -> None:
    command = command_of(spec(options=options))
    assert list(command.words) == ["python", "train.py", *words.split()]


def test_options_are_variables_of_the_environment() -> None:
    command = command_of(spec(options="environment"))
    assert command.environment == {
        "ATTENTION": "mha",
        "LR": "0.001",
        "MODEL_HEADS": "4",
        "MODEL_TIED": "true",
        "SIZES": "[1,2]",
        "SEED": "3",
    }
    assert command.text.startswith("ATTENTION=mha LR=0.001 ")


def test_options_are_a_nested_file() -> None:
    files = command_of(spec(options="--config={json}")).files
    assert json.loads(files["options.json"]) == {**OPTIONS, "seed": 3}
    assert set(command_of(spec("train --config {yaml}")).files) == {"options.yaml"}
    assert command_of(spec("train --config {yaml}")).words == ("train", "--config", "options.yaml")


def test_placeholders_in_the_command_take_options_out_of_the_rest() -> None:
    command = command_of(spec("train {attention} --n {seed} {flash} {{}}", lr=None, model=None, sizes=None))
    assert command.words == ("train", "mha", "--n", "3", "{}")
    assert command_of(spec("train {flash} {attention}", flash="--flash")).words[:3] == ("train", "--flash", "mha")


def test_words_are_never_split_or_read_by_a_shell() -> None:
    command = command_of(spec("sh -c 'echo {attention}'", attention="a b; $HOME"))
    assert command.words[:3] == ("sh", "-c", "echo a b; $HOME")


def test_the_seed_comes_last_and_null_is_left_out() -> None:
    assert list(options_of(spec())) == ["attention", "lr", "model.heads", "model.tied", "sizes", "seed"]


@pytest.mark.parametrize(
    ("command", "options", "place", "message"),
    [
        ("train {atention}", "{key}={value}", "program", "placeholder `{atention}`"),
        ("train '", "{key}={value}", "program", "cannot be split"),
        (" ", "{key}={value}", "program", "is empty"),
        ("train", "{key}", "options", "no template"),
        ("train", "--set {key}={value} {other}", "options", "no template"),
        ("train", "plain", "options", "no template"),
    ],
)
def test_a_wrong_template_is_reported(command: str, options: str, place: str, message: str) -> None:
    ((key, text, valid, suggestion),) = command_problems(command, options, ["attention", "lr"])
    assert key == place
    assert message in text
    assert valid
    assert suggestion == ("attention" if "atention" in command else "")
