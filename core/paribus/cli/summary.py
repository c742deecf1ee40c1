"""`paribus summary`: parameters, FLOPs, cache and memory of a spec, also beside another spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from paribus.cli._spec_source import parse_source
from paribus.cli.console import Session, out, out_json, refuse_repeated, table, wrapped
from paribus.cli.list import first_line
from paribus.errors import EXIT_OK
from paribus.specs.fields import FREEZE_OPTIONS, SUMMED

if TYPE_CHECKING:
    from paribus.assembly.build import ModelParts
    from paribus.assembly.cost import ModelCost
    from paribus.registry import Index, Registry
    from paribus.schema import Option
    from paribus.train.step_memory import StepMemory

BYTES = 4  # of a float32
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations")
HEADS = ("parameters", "FLOPs/token", "cache B/token")
SIDES = (" (left)", " (right)")
WHOLE = "whole"


@click.command("summary")
@click.argument("spec")
@click.argument("overrides", nargs=-1, callback=refuse_repeated)
@click.option(
    "--versus",
    multiple=True,
    metavar="OVERRIDE",
    callback=refuse_repeated,
    help="Compare with the same spec and this override; repeatable.",
)
@click.option("--against", metavar="SPEC", help="Compare with this spec.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@click.pass_obj
def verb(
    session: Session, spec: str, overrides: tuple[str, ...], versus: tuple[str, ...], against: str | None, as_json: bool
) -> int:
    """Count the parameters, FLOPs and cache of a spec, and the memory of a training step.

    `paribus summary bert-tiny --versus attention=mqa`

    SPEC is the name of a preset or a path. No memory is allocated for the model: the memory of a step is that of its
    tensors, on one device, counted by running the step on tensors without data.
    """
    if versus and against is None and not any("=" in word for word in versus):
        against, versus = versus[0], ()
    for source in (spec, against):
        if source is not None:
            session.add_spec_plugins(*parse_source(source, (*overrides, *versus)))
    registry = session.registry()
    left_summary = _summary(registry, spec, overrides)
    right_summary = None
    if versus or against is not None:
        right_summary = _summary(registry, against or spec, (*(overrides if against is None else ()), *versus))
    summaries = [left_summary] if right_summary is None else [left_summary, right_summary]
    if as_json:
        for summary in summaries:
            summary["training_memory"] = _memory(summary["spec"], registry)._asdict()
        out_json(left_summary if right_summary is None else {**left_summary, "versus": right_summary})
        return EXIT_OK
    for line in _lines(left_summary, right_summary, registry.index):
        out(line)
    if right_summary is not None:
        out()
    for side, summary in zip(SIDES if right_summary is not None else ("",), summaries, strict=True):
        for line in wrapped(_memory_text(side, summary["spec"], _memory(summary["spec"], registry))):
            out(line)
    return EXIT_OK


def _memory(spec: Mapping[str, Any], registry: Registry) -> StepMemory:
    from paribus.train.step_memory import step_memory

    return step_memory(spec, registry)


def _memory_text(side: str, spec: Mapping[str, Any], memory: StepMemory) -> str:
    """Return the memory of a training step, by what it is for."""
    from paribus.analysis.formatting import compact
    from paribus.train.step_memory import micro_batch

    parts = memory._asdict()
    sizes = [f"{name} {compact(parts[name], 1024, 'BKMGT')}" for name in MEMORY_PARTS]
    batch, examples = spec["data"]["batch"], micro_batch(spec)
    share = f"batch {batch}" if examples == batch else f"{examples} examples of a batch of {batch} at a time"
    text = f"memory of a training step{side}, {share}: {compact(memory.total, 1024, 'BKMGT')}"
    rough = "" if memory.simulated else "; by a simple rule, since this step cannot be simulated"
    return f"{text} ({', '.join(sizes)}{rough})"


def _summary(registry: Registry, spec: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    from paribus.assembly.cost import model_cost
    from paribus.models.assemble import meta_model
    from paribus.specs import resolved
    from paribus.specs.attention_rules import partly_read_positions

    source, words = parse_source(spec, overrides)
    plain = resolved(source, *words, registry=registry)
    model = meta_model(plain, registry)
    length = plain["dims"]["length"]
    counted: ModelCost = model_cost(model, length)
    kernels: dict[str, list[str]] = {}
    for part in model.topology.parts:
        kernels[part.path] = sorted(set(model.topology.stage(part.path).kernels(queries=length)))
    preset = registry.index.presets.get(spec)
    return {
        "about": f"{' '.join([spec, *overrides])}: {first_line(preset)}" if preset else "",
        "parameters": counted.parameters,
        "flops_per_token": counted.flops_per_token,
        "cache_bytes_per_token": counted.cache_bytes_per_token(BYTES),
        "length": length,
        "kernels": kernels,
        "partly_read_positions": list(partly_read_positions(plain, registry.index)),
        "float32": _float32_reasons(plain, model, registry),
        "teacher": _teacher(plain, registry),
        "frozen_parameters": _frozen(plain, model),
        "optimizer": _optimizer_groups(plain, model, registry),
        "lines": [line._asdict() for line in counted.lines],
        "spec": plain,
    }


def _float32_reasons(spec: Mapping[str, Any], model: ModelParts, registry: Registry) -> dict[str, str]:
    """Return the components that compute in float32 in spite of a mixed precision, with the reason."""
    import torch

    from paribus.assembly.devices import training_device
    from paribus.models.precision import training_precision
    from paribus.slots.component import Component
    from paribus.specs.components import components_of

    precision, device = training_precision(spec["trainer"]), training_device(spec)
    if precision is None or precision.autocast is None:
        return {}
    dtype = torch.bfloat16 if device.type == "cpu" else precision.autocast  # as Lightning replaces float16 on a CPU
    names = {registry.get(slot, name): f"{slot}={name}" for slot, name in components_of(spec, registry.index)}
    reasons = {
        names[type(module)]: module.float32_reason(device, dtype)
        for root in (model.topology, model.objectives)
        for module in root.modules()
        if isinstance(module, Component) and type(module) in names
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _teacher(spec: Mapping[str, Any], registry: Registry) -> int | None:
    """Count the parameters of the teacher, which are not part of the model."""
    from paribus.assembly.cost import count_parameters
    from paribus.models.assemble import meta_model
    from paribus.specs import resolved
    from paribus.storage.saved_model import read_model, unbound

    if "name" not in (spec.get("teacher") or {}):
        return None
    teacher_spec = read_model(spec["teacher"]["name"]).spec
    return count_parameters(meta_model(resolved(unbound(teacher_spec), registry=registry), registry).children())


def _frozen(spec: Mapping[str, Any], model: ModelParts) -> int:
    """Count the parameters that are never trained."""
    from paribus.assembly.cost import count_parameters
    from paribus.assembly.freezing import untrained_parameters

    children = model.children()
    return count_parameters(children) - count_parameters(children, untrained_parameters(model, spec.get("freeze")))


def _optimizer_groups(spec: Mapping[str, Any], model: ModelParts, registry: Registry) -> list[dict[str, Any]]:
    """Return the groups of trained tensors that the optimizer forms: their rule, roles, learning rate and decay."""
    from torch import nn

    from paribus.assembly.components import make
    from paribus.assembly.freezing import untrained_parameters
    from paribus.models.optimizer_schedule import FACTORS, build_groups, trained_tensors
    from paribus.slots.initialisation import Initialisation
    from paribus.slots.optimizer import Optimizer

    frozen = untrained_parameters(model, spec.get("freeze"))
    tensors = [each for each in trained_tensors(nn.ModuleDict(model.children())) if each.about.path not in frozen]
    roles = {id(tensor.parameter): tensor.about.role for tensor in tensors}
    scheme = make(registry, "initialisation", spec["initialisation"], kind=Initialisation)
    groups = build_groups(make(registry, "optimizer", spec["optimizer"], kind=Optimizer), tensors, scheme).param_groups
    rows: dict[Any, dict[str, Any]] = {}
    for place, group in enumerate(groups):
        index, factor, *_ = group.get(FACTORS, (place, 1.0))
        row = {"lr": group["lr"], "rate_factor": factor, "weight_decay": group.get("weight_decay", 0.0)}
        rule = group.get("rule", spec["optimizer"]["name"])
        same = rows.setdefault((index, *row.values()), {"rule": rule, "parameters": [], **row})  # but for eps
        same["parameters"] += group["params"]
    return [_optimizer_row(row, roles) for row in rows.values() if row["parameters"]]


def _optimizer_row(row: Mapping[str, Any], roles: Mapping[int, str]) -> dict[str, Any]:
    parameters = row["parameters"]
    return {
        "rule": row["rule"],
        "roles": list(dict.fromkeys(roles[id(parameter)] for parameter in parameters)),
        "tensors": len(parameters),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "lr": row["lr"],
        "rate_factor": row["rate_factor"],
        "weight_decay": row["weight_decay"],
    }


def _optimizer_table(side: str, summary: Mapping[str, Any]) -> list[str]:
    """Return a row for each group of tensors with a rule, learning rate and weight decay of its own."""
    has_factors = any(group["rate_factor"] != 1 for group in summary["optimizer"])
    heads = ["tensors", "parameters", *(["factor"] if has_factors else []), "lr", "decay"]
    rows = [[f"optimizer{side}", *heads, "roles"]]
    for group in summary["optimizer"]:
        numbers = [
            f"{group['tensors']:,}",
            f"{group['parameters']:,}",
            *([f"{group['rate_factor']:g}"] if has_factors else []),
            f"{group['lr']:g}",
            f"{group['weight_decay']:g}",
        ]
        rows.append([group["rule"], *numbers, ", ".join(group["roles"])])
    aligned = _aligned([row[:-1] for row in rows])
    return table([[*cells, row[-1]] for cells, row in zip(aligned, rows, strict=True)])


def _lines(left_summary: Mapping[str, Any], right_summary: Mapping[str, Any] | None, index: Index) -> list[str]:
    summaries = [left_summary] if right_summary is None else [left_summary, right_summary]
    paths = list(dict.fromkeys(line["path"] for summary in summaries for line in summary["lines"]))
    rows = [["component", *HEADS], *([path, *_cells(summaries, path)] for path in [*paths, WHOLE])]
    if right_summary is not None:
        rows.append(["change", *_changes(left_summary, right_summary)])
    lines = [line for summary in summaries if summary["about"] for line in (*wrapped(summary["about"]), "")]
    lines += [*table([[*row, ""] for row in _aligned(rows)]), ""]
    for side, summary in zip(SIDES if right_summary is not None else ("",), summaries, strict=True):
        lines += [*_optimizer_table(side, summary), ""]
    for side, summary in zip(SIDES if right_summary is not None else ("",), summaries, strict=True):
        lines += [f"kernel of {path}{side}: {', '.join(names)}" for path, names in summary["kernels"].items()]
        lines += [f"position{side} is read in part: {text}" for text in summary["partly_read_positions"]]
        for name, reason in summary["float32"].items():
            lines += wrapped(f"{name}{side} computes in float32: {reason}")
    for side, summary in zip(SIDES if right_summary is not None else ("",), summaries, strict=True):
        if summary["teacher"] is not None:
            lines.append(f"teacher{side}: {summary['teacher']:,} parameters, frozen, not counted above")
        if summary["frozen_parameters"]:
            trained = summary["parameters"] - summary["frozen_parameters"]
            lines.append(f"frozen{side}: {summary['frozen_parameters']:,} parameters; {trained:,} are trained")
    less = ", and less where parameters are frozen" if any(each["frozen_parameters"] for each in summaries) else ""
    lines += wrapped(f"FLOPs are of a forward pass; a training step takes about three times as many{less}")
    if right_summary is not None:
        lines += ["", "differences:"]
        differences = spec_differences(left_summary["spec"], right_summary["spec"], index)
        lines += [f"  {key}: {left_value} → {right_value}" for key, left_value, right_value in differences]
    return lines


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    """Align numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _cells(summaries: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """Return the numbers of a row; those of both sides, `33,280 → 20,800`, where they differ."""
    columns = zip(*(map(_number, _measures(summary, path)) for summary in summaries), strict=True)
    return [" → ".join(dict.fromkeys(numbers)) for numbers in columns]


def _measures(summary: Mapping[str, Any], path: str) -> Sequence[float | None]:
    if path == WHOLE:
        return [summary["parameters"], summary["flops_per_token"], summary["cache_bytes_per_token"]]
    line = next((line for line in summary["lines"] if line["path"] == path), None)
    if line is None:
        return [None] * len(HEADS)
    return [line["parameters"], line["flops"] / summary["length"], line["state"] * BYTES / summary["length"]]


def _changes(left_summary: Mapping[str, Any], right_summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the relative change of each measure from left to right."""
    for left_value, right_value in zip(_measures(left_summary, WHOLE), _measures(right_summary, WHOLE), strict=True):
        yield f"{(right_value or 0) / left_value - 1:+.1%}" if left_value else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


Difference = tuple[str, str, str]  # dotted key, left value, right value


def spec_differences(left_spec: Mapping[str, Any], right_spec: Mapping[str, Any], index: Index) -> Iterator[Difference]:
    """Yield the differences of two resolved specs, such as `attention: mha → gqa(kv_heads=2)`."""
    for key in dict.fromkeys([*left_spec, *right_spec]):
        yield from _between(key, left_spec.get(key), right_spec.get(key), key, index)


def _between(path: str, left_value: Any, right_value: Any, slot: str, index: Index) -> Iterator[Difference]:
    if left_value == right_value:
        return
    if (
        isinstance(left_value, Mapping)
        and isinstance(right_value, Mapping)
        and left_value.get("name") == right_value.get("name")
    ):
        for key in dict.fromkeys([*left_value, *right_value]):
            inner = key if key in index.entries else slot
            yield from _between(f"{path}.{key}", left_value.get(key), right_value.get(key), inner, index)
        return
    left_nodes, right_nodes = (_by_name(value) if slot in SUMMED else {} for value in (left_value, right_value))
    if set(left_nodes) & set(right_nodes):  # components that both lists have are compared option by option
        for name in dict.fromkeys([*left_nodes, *right_nodes]):
            yield from _between(f"{path}.{name}", left_nodes.get(name), right_nodes.get(name), slot, index)
        return
    yield path, format_value(left_value, slot, index), format_value(right_value, slot, index)


def _by_name(value: Any) -> dict[str, Any]:
    """Map the names of one component or of a list to components; empty if names repeat."""
    nodes = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    by_name = {node["name"]: node for node in nodes if isinstance(node, Mapping) and "name" in node}
    return by_name if len(by_name) == len(nodes) else {}


def format_value(value: Any, slot: str, index: Index) -> str:
    """Format a value of a spec without the options that have their defaults; `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entry = index.entries.get(slot, {}).get(str(value.get("name", "")))
        declared = FREEZE_OPTIONS if slot == "freeze" else () if entry is None else entry.options
        options = {option.name: option for option in declared}
        return f"{value.get('name', '')}{_options_text(value, options, index)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(format_value(item, slot, index) for item in value) + "]"
    return str(value)


def _options_text(node: Mapping[str, Any], options: Mapping[str, Option], index: Index) -> str:
    texts = []
    for name, value in node.items():
        option = options.get(name)
        if name == "name" or (option is not None and not option.required and value == option.default):
            continue
        if option is not None and option.kind.name == "group" and isinstance(value, Mapping):
            inside = _options_text(value, {field.name: field for field in option.kind.options}, index)
            texts += [f"{name}={inside}"] if inside else []
            continue
        texts.append(f"{name}={format_value(value, option.kind.slot if option is not None else name, index)}")
    return f"({', '.join(texts)})" if texts else ""
