"""Workflow of the recipe for GitHub Actions: valid YAML, whose steps run scripts and commands of the page."""

import re
from typing import Any

import yaml
from tests.fixtures.pages import DOCS, blocks_of, commands

BLOCKS = list(blocks_of((DOCS / "recipes" / "github-actions.md").read_text()))


def test_the_workflow_runs_scripts_and_commands_that_the_page_tests() -> None:
    text = next(block.text for block in BLOCKS if block.file == ".github/workflows/gates.yml")
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert workflow[True] == "pull_request"  # YAML 1.1 reads the key `on` as true
    steps = workflow["jobs"]["gates"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    run = {step["name"]: step["run"] for step in steps if "run" in step}
    tested = [command for block in BLOCKS if block.language == "console" for command, _ in commands(block.text)]
    assert run["Components conform"] in tested
    assert run["Tables"].partition(" >> ")[0] in tested
    scripts = {name for command in run.values() for name in re.findall(r"bash head/(\S+)", command)}
    assert scripts == {block.file for block in BLOCKS if block.language == "bash"}
    assert all(f"bash {script}" in tested for script in scripts)
