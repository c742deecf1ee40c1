"""Plugins that a newcomer wrote from the guide: they conform, and planted faults are found as recorded."""

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.registry import Registry
from paribus.registry.class_reader import slot_class
from paribus.testing import Report, examine

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "reliability.md"
NEWCOMER = runpy.run_path(str(HERE / "newcomer_faults.py"))
PLUGINS, FAULTS = NEWCOMER["PLUGINS"], NEWCOMER["FAULTS"]
MODULE = "newcomer_plugin"
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


REFERENCES: dict[str, Callable[..., Tensor]] = {
    "gated_attention": slow_gated_attention,
    "lion_lookahead": slow_lion_lookahead,
}


@pytest.fixture
def examine_plugin(components: Registry) -> Iterator[Examine]:
    """Return a function that applies changes to a plugin and runs some checks, or all."""

    def examine_plugin(slot: str, plugin: str, changes: Any = (), only: list[str] | None = None) -> Report:
        file = HERE / "newcomer_plugins" / f"{plugin}.py"
        text = file.read_text()
        for original, replacement in changes:
            assert text.count(original) == 1, f"{plugin}: expected `{original}` once"
            text = text.replace(original, replacement)
        module = ModuleType(MODULE)
        module.__file__ = str(file)
        sys.modules[MODULE] = module
        exec(compile(text, str(file), "exec"), vars(module))
        (component,) = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == MODULE and issubclass(value, slot_class(slot))
        )
        return examine(component, registry=components, only=only, reference=REFERENCES.get(plugin))

    yield examine_plugin
    sys.modules.pop(MODULE, None)


def fault_id(fault: Any) -> str:
    return f"{fault.plugin}: {fault.fault}"


@pytest.mark.parametrize("slot", [pytest.param(slot, marks=pytest.mark.slow) for slot in PLUGINS])
def test_plugin_without_a_fault_conforms(slot: str, examine_plugin: Examine) -> None:
    """With a reference, if there is one."""
    report = examine_plugin(slot, PLUGINS[slot])
    assert report.ok, str(report)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.check], ids=fault_id)
def test_planted_fault_is_found_by_its_check(fault: Any, examine_plugin: Examine) -> None:
    report = examine_plugin(fault.slot, fault.plugin, fault.changes, [fault.check])
    assert [finding.check for finding in report.findings] == [fault.check], str(report)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.check], ids=fault_id)
def test_planted_fault_without_a_check_passes_all(fault: Any, examine_plugin: Examine) -> None:
    report = examine_plugin(fault.slot, fault.plugin, fault.changes)
    assert report.ok, f"a check finds it: {report}"
    assert fault.reason


def test_table_of_planted_faults_is_current() -> None:
    assert "\n".join(NEWCOMER["table"]()) in PAGE.read_text()
