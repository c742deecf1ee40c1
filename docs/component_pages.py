"""Write the pages of all components for the documentation site, from the registry and from the models themselves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from component_pictures import pictures
from components import cell, check_lines, definition, flat_options, shipped

from paribus.assembly.cost import ModelCost, model_cost
from paribus.cli.explain import describe_default, describe_traits, describe_values
from paribus.errors import SpecError
from paribus.hookspecs import SLOTS
from paribus.models.assemble import meta_model
from paribus.registry import Entry, Registry
from paribus.specs import resolved
from paribus.specs.components import components_of
from paribus.specs.fields import ARCHITECTURE
from paribus.testing.host_models import Case, component_node

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path("docs", "components")  # of the pages, beside the overview docs/components.md
PRICED: Final = ("topology", "objective", *ARCHITECTURE)  # slots whose components are part of a model
REFERENCES: Final = ("gpt2", "bert-base", "transformer-base")  # first choice of models for costs; then any other preset
BYTES: Final = 4  # of a float32
GALLERY: Final = "attention"

OVERVIEW: Final = """\
# Components

All components that come with Paribus. `paribus list` also lists those of your plugins, and
[writing a plugin](guide/write-a-plugin.md) shows how to add one.

## Attentions in one picture

What each token (row) reads of which others (columns) in an untrained layer: a causal one where there is one.

{gallery}
"""


class Costs(NamedTuple):
    """Costs of a model or of a part of it, named as in a line of its summary."""

    parameters: int
    flops: int
    state: int


class Host(NamedTuple):
    """Preset that a component is part of, with what the component changes there."""

    preset: str
    overrides: Mapping[str, Any]
    cost: ModelCost


def write(folder: Path, registry: Registry) -> list[dict[str, Any]]:
    """Write all pages below `folder`, and return their place in the navigation."""
    users = preset_users(registry)
    navigation: list[dict[str, Any]] = [{"Overview": f"{FOLDER}.md"}]
    overview: list[str] = []
    for slot in SLOTS:
        target = folder / FOLDER / slot
        target.mkdir(parents=True, exist_ok=True)
        cases = cases_of(registry, slot)
        figures = {case.entry.name: pictures(case) for case in cases}
        for case in cases:
            text = component_page(case, figures[case.entry.name], users[slot, case.entry.name])
            (target / f"{case.entry.name}.md").write_text(text, encoding="utf-8")
        (target / "README.md").write_text(slot_page(slot, cases, figures), encoding="utf-8")
        if slot == GALLERY:
            overview.insert(0, OVERVIEW.format(gallery=gallery(figures, f"{FOLDER.name}/{slot}/")))
        overview.append(overview_of_slot(slot, cases))
        names = [case.entry.name for case in cases]
        navigation.append({slot: [f"{FOLDER}/{slot}/README.md", *({n: f"{FOLDER}/{slot}/{n}.md"} for n in names)]})
    (folder / f"{FOLDER}.md").write_text("\n".join(overview), encoding="utf-8")
    return navigation


def cases_of(registry: Registry, slot: str) -> list[Case]:
    """Return the components of a slot, each with the models that it may be part of."""
    return [Case(registry, entry, reference_specs(registry)) for entry in shipped(registry.index, slot)]


def reference_specs(registry: Registry) -> dict[str, Mapping[str, Any]]:
    """Return the presets that costs are counted in, in the order in which they are tried."""
    others = [name for name in registry.index.presets if name not in REFERENCES]
    return {name: {"preset": name} for name in (*REFERENCES, *others)}


def preset_users(registry: Registry) -> Mapping[tuple[str, str], list[str]]:
    """Return the presets that contain each (slot, name)."""
    users: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(registry.index.presets):
        for component in dict.fromkeys(components_of(resolved(name, registry=registry), registry.index)):
            users[component].append(name)
    return users


def component_page(case: Case, picture: str, presets: list[str]) -> str:
    """Return the page of one component."""
    entry = case.entry
    traits = "\n".join(f"- {cell(line)}" for line in describe_traits(entry.traits))
    sections = {
        "": f"{entry.doc}\n\n{picture}",
        "In a study" if entry.slot == "launcher" else "In a spec": f"```yaml\n{entry.slot}: {yaml_of(case)}\n```",
        "Options": "\n".join(option_rows(entry)),
        "Cost": "\n".join(cost_rows(case)) if entry.slot in PRICED else "",
        "Traits": f"{traits}\n\n[All traits](../../traits.md) of every slot." if traits else "",
        "Presets": ", ".join(f"`{name}`" for name in presets),
        "Tests": f"`paribus conform {case.topic}` runs the [checks of this slot](README.md#checks).",
        "Source { data-search-exclude }": source_of(entry),
    }
    texts = [f"## {title}\n\n{text}" if title else text for title, text in sections.items() if text]
    return "\n\n".join([f"# {case.topic}", *texts]) + "\n"


def yaml_of(case: Case) -> str:
    """Return the value that selects a component in YAML: its name, or a mapping if it has options without a default."""
    node = component_node(case)
    values = ", ".join(f"{key}: {json.dumps(value) if key != 'name' else value}" for key, value in node.items())
    return f"{{{values}}}" if len(node) > 1 else case.entry.name


def option_rows(entry: Entry) -> Iterator[str]:
    """Yield the table of the options."""
    rows = list(flat_options(entry.options))
    if rows:
        yield "| option | meaning | values |"
        yield "|---|---|---|"
    for name, option in rows:
        values, default = cell(describe_values(option)), cell(describe_default(option))
        yield f"| `{name}` | {cell(option.doc)} | {values}; **{default}** |"


def cost_rows(case: Case) -> Iterator[str]:
    """Yield the table of costs in a preset, beside those of the preset without a change."""
    host = find_host(case)
    if host is None:
        return
    plain = model_cost(meta_model(case.resolved(host.preset, {}), case.registry), host.cost.length)
    words = " ".join(override_words(host.overrides))
    yield f"`paribus summary {host.preset} {words}`, at {host.cost.length:,} tokens. FLOPs are of a forward pass; the"
    yield "cache is what decoding stores, in float32.\n"
    yield f"| in `{host.preset}` | parameters | FLOPs/token | cache B/token |"
    yield "|---|--:|--:|--:|"
    models = {f"with `{case.entry.name}`": host.cost, default_label(case, host.preset): plain}
    for part, select in ((case.entry.slot, costs_of_slot), ("whole model", whole_cost)):
        for label, cost in models.items():
            costs = select(case.entry.slot, cost)
            if costs is not None:
                yield f"| {part} {label} | {counts(costs, cost.length)} |"


def default_label(case: Case, preset: str) -> str:
    """Return the label of the preset without a change: the name of its component of the slot, if it has one."""
    node = case.resolved(preset, {}).get(case.entry.slot)
    return f"with `{node['name']}`" if isinstance(node, Mapping) else "as it is"


def find_host(case: Case) -> Host | None:
    """Return the first preset that the component is valid in; one that needs a trained teacher has none."""
    if "teacher" in case.entry.traits.get("needs", []):
        return None
    for preset in case.base_specs:
        changes = case.component_overrides(preset, component_node(case))
        try:
            spec = case.resolved(preset, changes)
            cost = model_cost(meta_model(spec, case.registry), spec["dims"]["length"])
        except SpecError:
            continue  # the rules reject the component in this preset, or its sizes do
        return Host(preset, changes, cost)
    return None


def override_words(overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield overrides as words of a command line."""
    for key, value in overrides.items():
        if not isinstance(value, Mapping):
            yield f"{key}={'null' if value is None else value}"
            continue
        yield f"{key}={value['name']}"
        yield from (f"{key}.{name}={json.dumps(option)}" for name, option in value.items() if name != "name")


def whole_cost(slot: str, cost: ModelCost) -> Costs:
    """Return the costs of a whole model."""
    return Costs(cost.parameters, cost.flops, cost.state)


def costs_of_slot(slot: str, cost: ModelCost) -> Costs | None:
    """Return the costs of the components of a slot, or None if they have no line of their own."""
    lines = [line for line in cost.lines if {slot, f"{slot}s"}.intersection(line.path.split("."))]
    if not lines:
        return None
    return Costs(*(sum(getattr(line, field) for line in lines) for field in Costs._fields))


def counts(costs: Costs, length: int) -> str:
    """Return the cells of a row."""
    return f"{costs.parameters:,} | {costs.flops / length:,.0f} | {costs.state * BYTES / length:,.0f}"


def source_of(entry: Entry) -> str:
    """Return the file of a component, with its code in a block that opens."""
    path = Path(entry.file).relative_to(ROOT)
    code = Path(entry.file).read_text(encoding="utf-8").replace("\n", "\n    ").rstrip()
    return f'??? note "{path.as_posix()}"\n\n    ```python\n    {code}\n    ```'


def slot_page(slot: str, cases: list[Case], figures: Mapping[str, str]) -> str:
    """Return the page of a slot: its components, and the checks of all of them."""
    reference = f" [Interface in Python](../../reference/{slot}.md)."
    rows = [f"| [{case.entry.name}]({case.entry.name}.md) | {cell(case.entry.summary)} |" for case in cases]
    table = "\n".join(["| name | description |", "|---|---|", *rows])
    checks = "\n".join(check_lines(slot))
    return (
        f"# {slot}\n\n{definition(slot)}{reference}\n\n{table}\n\n{gallery(figures, '')}\n"
        "## Checks\n\n`paribus conform` runs these checks, after two that every slot has: the schema is valid, and "
        f"models can be built.\n\n{checks}\n"
    )


def overview_of_slot(slot: str, cases: list[Case]) -> str:
    names = ", ".join(f"[{case.entry.name}]({FOLDER.name}/{slot}/{case.entry.name}.md)" for case in cases)
    return f"## [{slot}]({FOLDER.name}/{slot}/README.md)\n\n{definition(slot)}\n\n{names}\n"


def gallery(figures: Mapping[str, str], prefix: str) -> str:
    """Return the first drawing of each component as a link to its page."""
    items = []
    for name, text in figures.items():
        if text:
            svg = text[text.index("<svg") : text.index("</svg>") + len("</svg>")]
            items.append(f'<a href="{prefix}{name}/">{svg}<span>{name}</span></a>')
    return f'<div class="gallery">{"".join(items)}</div>\n' if items else ""
