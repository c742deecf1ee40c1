"""Plugins that a newcomer wrote from the guide: they conform, and planted faults are found as recorded."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.paribus.testing.objective_references import is_text, uniform
from tests.core.paribus.testing.seeded_faults import NEWCOMER, Fault, newcomer_table
from torch import Tensor

from paribus import IGNORED
from paribus.registry import installed
from paribus.testing import Report, examine
from paribus.testing.data_references import Example

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "reliability.md"
PLUGINS = {fault.slot: fault.source for fault in NEWCOMER}
HOOK = """

from paribus import hookimpl


@hookimpl
def {slot}():
    return {{"newcomer": {component}}}
"""
Examine = Callable[..., Report]


def slow_gated_attention(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    """(T, D), (S, M), (T, S) -> (T, D), head by head."""
    heads, outputs = module.heads, []
    q, k, v = heads.q(x), heads.k(source), heads.v(source)
    width, group = heads.head_width, heads.heads // heads.kv_heads
    gates = module.floor + (1 - module.floor) * module.gate(x).sigmoid()  # (T, H), or (T, H*K)
    for head in range(heads.heads):
        own, shared = (slice(index * width, (index + 1) * width) for index in (head, head // group))
        scores = (q[:, own] @ k[:, shared].T / width**0.5).masked_fill(~visible, float("-inf"))
        gate = gates[:, own] if module.kind == "element" else gates[:, head : head + 1]
        outputs.append(scores.softmax(-1) @ v[:, shared] * gate)
    output: Tensor = heads.o(torch.cat(outputs, -1))
    return output


def slow_lion_lookahead(component: Any, weight: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Steps of one tensor, from the formulas of both papers."""
    mean, slow = torch.zeros_like(weight), weight
    decay = component.weight_decay if weight.ndim >= 2 else 0.0
    for step, gradient in enumerate(gradients, start=1):
        direction = (component.beta1 * mean + (1 - component.beta1) * gradient).sign()
        weight = weight - component.lr * (direction + decay * weight)
        mean = component.beta2 * mean + (1 - component.beta2) * gradient
        if step % component.every == 0:
            weight = slow = slow + component.share * (weight - slow)
    return weight


def slow_log_distance(
    module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Mapping[str, Any]
) -> Tensor:
    """q · k - slope log(1 + |i - j| / tau), with another slope and tau for keys ahead."""
    slope, tau = (module.ahead, options["ahead_tau"]) if j > i else (module.behind, options["tau"])
    distance = torch.tensor(float(abs(i - j)))  # float32, as in the plugin
    score: Tensor = q @ k - slope[head] * (distance / tau).log1p()
    return score


def slow_block_masking(objective: Any, example: Example, options: Mapping[str, Any]) -> dict[str, Any]:
    """The drawn blocks of text are labels; those that are not kept are masked."""
    stream, span = example.formed["body"], options["span"]
    tokens, text = stream.tokens.tolist(), is_text(stream, example.vocabulary)
    phase, count = int(example.draw.below("phase", span, 1)), len(tokens) // span + 2
    blocks = [(place + phase) // span for place in range(len(tokens))]
    shares, kept = uniform(example, "hide", count), uniform(example, "keep", count)
    least = min(shares[block] for block, readable in zip(blocks, text, strict=True) if readable)
    inputs, labels = [], []
    for token, block, readable in zip(tokens, blocks, text, strict=True):
        is_label = readable and (shares[block] < options["rate"] or shares[block] == least)
        is_masked = is_label and kept[block] >= options["keep"]
        labels.append(token if is_label else IGNORED)
        inputs.append(example.vocabulary.specials["mask"] if is_masked else token)
    return {"labels": labels, "body.tokens": inputs}


REFERENCES: dict[str, Callable[..., Any]] = {
    "block_masking": slow_block_masking,
    "gated_attention": slow_gated_attention,
    "lion_lookahead": slow_lion_lookahead,
    "log_distance": slow_log_distance,
}


@pytest.fixture
def examine_plugin(tmp_path: Path) -> Examine:
    """Return a function that examines the plugin of a slot by all checks, or with a fault by its check."""

    def examine_plugin(slot: str, fault: Fault | None = None) -> Report:
        plugin = PLUGINS[slot]
        text = (HERE / "newcomer_plugins" / f"{plugin}.py").read_text()
        text, only = (fault.apply(text), [fault.check]) if fault else (text, None)
        file = tmp_path / f"{plugin}.py"
        file.write_text(
            text + HOOK.format(slot=slot, component=text.rpartition("\n@final\nclass ")[2].partition("(")[0])
        )
        return examine(
            f"{slot}.newcomer", registry=installed(plugins=[file]), only=only, reference=REFERENCES.get(plugin)
        )

    return examine_plugin


@pytest.mark.parametrize("slot", [pytest.param(slot, marks=pytest.mark.slow) for slot in PLUGINS])
def test_plugin_without_a_fault_conforms(slot: str, examine_plugin: Examine) -> None:
    """With a reference, if there is one."""
    report = examine_plugin(slot)
    assert report.ok, str(report)


@pytest.mark.few(6)
@pytest.mark.parametrize("fault", NEWCOMER, ids=str)
def test_planted_fault_is_found_by_its_check(fault: Fault, examine_plugin: Examine) -> None:
    report = examine_plugin(fault.slot, fault)
    assert [finding.check for finding in report.findings] == [fault.check], str(report)


def test_table_of_planted_faults_is_current() -> None:
    assert "\n".join(newcomer_table()) in PAGE.read_text()
