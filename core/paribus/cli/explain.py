"""`paribus explain`: a slot, or a component with its paper, options and traits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.cli.console import Session, out, out_json, table, terminal_columns, wrapped
from paribus.cli.slot_contract import (
    ALL_SLOTS,
    TRAITS_DOC,
    Contract,
    describe_trait_field,
    name_contract,
    public_names,
    slot_contract,
    trait_tables,
)
from paribus.errors import EXIT_OK, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.schema import AtLeast, AtMost, Divides, Limit, Option, to_json

if TYPE_CHECKING:
    from paribus.registry import Entry, Index, Part


@click.command("explain")
@click.argument("topic")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def verb(session: Session, topic: str, as_json: bool) -> int:
    """Explain a component, a slot, a key of a spec or study, or a name that plugins import.

    `paribus explain attention.gqa`

    TOPIC is a slot (attention), a component (attention.gqa, or gqa), another key of a spec or study (dims, trainer,
    optimizer.lr, attention.gqa.kv_heads, budget.tokens), `study`,
    `program` (keys of a study of a program), a name of `from paribus import …` (Shape), `masks`, `softmax`, or
    `traits`: those of all slots, or of one (traits.attention).
    """
    from paribus.cli._key_options import plain_key, sections

    topic = plain_key(_ALIASES.get(topic, topic))
    if topic in sections():
        return _section(topic, sections()[topic], as_json)
    if topic in KEY_DOCS:
        return _key(topic, as_json)
    index = session.index()
    slot, dot, name = topic.partition(".")
    if slot == TRAITS:
        return _traits(name if dot else None, as_json)
    if topic in SLOTS:
        return _slot(index, topic, as_json)
    return _component_or_key(index, topic, as_json)


def _component_or_key(index: Index, topic: str, as_json: bool) -> int:
    """Explain a component, with or without its slot, a public name, or a key of a spec or study."""
    from paribus.cli._key_options import find_options, sections, unknown_key, with_owners

    slot, _, name = topic.partition(".")
    if slot in SLOTS and name in index.entries[slot]:
        return _component(index.find(slot, name), as_json)
    is_component = any(topic in index.entries[other] for other in SLOTS)
    if topic in public_names() and not is_component:
        return _name(topic, as_json)
    if not is_component and (options := find_options(index, topic)):
        return _option(topic, with_owners(options), as_json)
    if "." in topic and (error := unknown_key(index, topic)):
        raise error
    found_slot, found_name = _bare(index, topic, [*SLOTS, *sections(), *KEY_DOCS, TRAITS, *_ALIASES])
    return _component(index.find(found_slot, found_name), as_json)


def _traits(slot: str | None, as_json: bool) -> int:
    """Print the traits of all slots, or of one slot; those that all components have come last."""
    if slot is not None and slot not in SLOTS:
        message, valid = f'unknown slot "{slot}"', join_names(SLOTS, limit=len(SLOTS))
        raise SpecError(
            Problem(code="unknown-topic", message=message, valid=valid, suggestion=closest_match(slot, SLOTS))
        )
    tables = trait_tables()
    shown = {title: fields for title, fields in tables.items() if slot in (None, title) or title == ALL_SLOTS}
    if as_json:
        out_json({title: [field._asdict() for field in fields] for title, fields in shown.items()})
        return EXIT_OK
    out(f"{TRAITS}\n")
    _print_doc(TRAITS_DOC)
    for title, fields in shown.items():
        out(title)
        for line in table([(field.name, describe_trait_field(field)) for field in fields], indent=2):
            out(line)
        out("")
    return EXIT_OK


TRAITS: Final = "traits"
_ALIASES: Final[Mapping[str, str]] = {"masks": "Visibility", "softmax": "ScoreFunctions"}  # other words for names


def _bare(index: Index, topic: str, topics: list[str]) -> tuple[str, str]:
    """Find a component by its name without the slot."""
    slots = [slot for slot in SLOTS if topic in index.entries[slot]]
    if len(slots) == 1:
        return slots[0], topic
    if slots:
        message, valid = f"`{topic}` is in several slots", join_names(f"{slot}.{topic}" for slot in slots)
        raise SpecError(Problem(code="ambiguous", message=message, valid=valid))
    from paribus.registry.suggestions import suggest_name
    from paribus.specs.fields import suggest_key

    components = [f"{slot}.{name}" for slot in SLOTS for name in index.entries[slot]]
    message = f'unknown topic "{topic}"'
    valid = f"{join_names(topics, limit=len(topics))}, or slot.name, such as {components[0]}"
    names = [*topics, *components, *(name.partition(".")[2] for name in components), *public_names()]
    entries = (entry for slot in SLOTS for entry in index.entries[slot].values())
    suggestion = suggest_key(topic, ()) or suggest_name(topic, entries, lambda: suggest_key(topic, names))
    raise SpecError(Problem(code="unknown-topic", message=message, valid=valid, suggestion=suggestion))


def _option(key: str, groups: Sequence[tuple[Option, Sequence[str]]], as_json: bool) -> int:
    """Print the option that a dotted key sets; components whose options are equal share a line."""
    if as_json:
        out_json({"topic": key, "options": [{"of": [*names], **to_json(option)} for option, names in groups]})
        return EXIT_OK
    out(f"{key}\n")
    for option, names in groups:
        for line in wrapped(f"{join_names(names, limit=len(names))}:"):
            out(line)
        for line in table(list(_lines((option,), "")), indent=2):
            out(line)
    return EXIT_OK


def _section(topic: str, options: tuple[Option, ...], as_json: bool) -> int:
    if as_json:
        out_json({"topic": topic, "options": [to_json(option) for option in options]})
        return EXIT_OK
    out(f"{topic}\n")
    _options(options)
    return EXIT_OK


KEY_DOCS: Final[Mapping[str, str]] = {
    "trainer": "Arguments of Lightning's `Trainer`. A trial runs `max_steps` steps; a study sets them with `budget:`. "
    "`max_time` is a time, such as {minutes: 5} or 00:00:05:00. Unless the spec sets them, a trial has one device, "
    "and neither loggers nor Lightning's own checkpoints, progress bar and evaluation: Paribus has its own. "
    "`compile` is no argument of Lightning: true compiles the layers by `torch.compile` for training, {mode: …} in "
    "one of its modes; by default they are compiled on CUDA only. `activation_checkpointing`, another, saves memory; "
    "`matmul_precision: high` uses TF32 on a GPU; `ema_decay: 0.99` evaluates and saves an exponential moving average "
    "of the weights.",
    "evaluate": "Objectives that the model is evaluated with, a component or a list; by default those of the training. "
    "`paribus explain objective` lists objectives.",
    "parts": "Changes of single parts of the topology, such as {decoder: {dims: {layers: 1}}}. "
    "`paribus explain topology.encoder-decoder` lists the parts of a topology.",
    "from": "Saved model, a folder or the identity of a trial, whose tensors are the initial weights where they fit.",
    "teacher": "Saved model, a folder or the identity of a trial, for objectives that need a teacher.",
}  # keys of a spec that are no slots, and have other values than options


def _key(topic: str, as_json: bool) -> int:
    from paribus.specs.trainer_options import trainer_arguments

    arguments = trainer_arguments() if topic == "trainer" else {}
    if as_json:
        out_json({"topic": topic, "doc": KEY_DOCS[topic], "arguments": dict(arguments)})
        return EXIT_OK
    out(f"{topic}\n")
    _print_doc(KEY_DOCS[topic])
    if arguments:
        out("arguments")
    for line in table(list(arguments.items()), indent=2):
        out(line)
    return EXIT_OK


def _slot(index: Index, slot: str, as_json: bool) -> int:
    contract = slot_contract(slot)
    entries = index.entries[slot]
    if as_json:
        out_json(
            {"slot": slot, "definition": contract.definition, **_contract_json(contract), "components": list(entries)}
        )
        return EXIT_OK
    out(f"{slot}\n")
    _print_contract(contract, constructor=contract.definition)
    out("")
    out(f"{len(entries)} installed")
    for line in table([(f"{slot}.{name}", entry.summary) for name, entry in entries.items()], indent=2):
        out(line)
    return EXIT_OK


def _name(name: str, as_json: bool) -> int:
    contract = name_contract(name)
    if as_json:
        out_json({"name": name, "definition": contract.definition, **_contract_json(contract)})
        return EXIT_OK
    out(f"{contract.definition}\n")
    _print_contract(contract)
    return EXIT_OK


def _contract_json(contract: Contract) -> dict[str, Any]:
    members = ("attributes", "methods", "traits")
    lists = {kind: [member._asdict() for member in getattr(contract, kind)] for kind in members}
    return {"doc": contract.doc, **lists, "names": list(contract.names)}


def _print_contract(contract: Contract, *, constructor: str = "") -> None:
    if contract.doc:
        _print_doc(contract.doc)
    signatures = [(constructor, "")] if constructor else []
    signatures += [(member.signature, member.summary) for member in contract.methods]
    methods = [line for text, summary in signatures for line in (f"  {text}", *wrapped(summary, indent=6))]
    attributes, traits = (
        table([(member.name, f"{member.signature}: {member.summary}") for member in members], indent=2)
        for members in (contract.attributes, contract.traits)
    )
    names = f"`paribus explain NAME` explains {', '.join(contract.names)}."
    sections = {
        "methods": methods,
        "attributes": attributes,
        "traits": traits,
        "names": wrapped(names, indent=2) if contract.names else [],
    }
    out("\n\n".join("\n".join([title, *lines]) for title, lines in sections.items() if lines))


def _print_doc(doc: str) -> None:
    """Print a docstring; paragraphs that are too wide for the terminal are wrapped, indented code is not."""
    for paragraph in doc.split("\n\n"):
        is_narrow = max(map(len, paragraph.splitlines()), default=0) <= terminal_columns()
        lines = [paragraph] if is_narrow or paragraph.startswith(" ") else wrapped(paragraph)
        out("\n".join([*lines, ""]))


def _component(entry: Entry, as_json: bool) -> int:
    if as_json:
        out_json(_data(entry))
        return EXIT_OK
    out(f"{entry.slot}.{entry.name}\n")
    _print_doc(entry.doc)
    _options(entry.options)
    declarations = [*describe_traits(entry.traits), *_describe_stacks(entry.parts)]
    if entry.reads:
        declarations.append(f"reads {', '.join(entry.reads)}")
    if declarations:
        out("\ntraits")
    for line in declarations:
        for text in wrapped(line, indent=2):
            out(text)
    out("")
    for line in table([("plugin", str(entry.source)), ("file", entry.file or "none")]):
        out(line)
    return EXIT_OK


def _data(entry: Entry) -> dict[str, Any]:
    return {
        "slot": entry.slot,
        "name": entry.name,
        "doc": entry.doc,
        "distribution": entry.source.label,
        "plugin": entry.source.name,
        "file": entry.file,
        "traits": dict(entry.traits),
        "parts": [part._asdict() for part in entry.parts],
        "reads": list(entry.reads),
        "options": [to_json(option) for option in entry.options],
    }


def _options(options: tuple[Option, ...]) -> None:
    out("options" if options else "no options")
    for line in table(list(_lines(options, "")), indent=2):
        out(line)


def _lines(options: tuple[Option, ...], prefix: str) -> Iterator[tuple[str, str]]:
    for option in options:
        yield f"{prefix}{option.name}", describe_option(option)
        if option.kind.name == "group":
            yield from _lines(option.kind.options, f"{prefix}{option.name}.")


_CAPABILITIES: Final = {
    "causal": "mask later positions",
    "cross": "attend to another stack",
    "documents": "keep packed documents apart, and mask padding",
    "padding": "mask padding",
    "order": "follow an order of tokens other than their positions",
    "extra_queries": "take appended query tokens that no other token sees",
    "separate_inputs": "have separate inputs for queries, keys and values",
    "raw_memory": "return the tokens of a memory unchanged",
    "residual": "be wrapped by a norm placement: it returns the width of the stream",
    "weights": "return its attention weights",
    "decodes": "decode step by step, keeping state",
    "any_width": "project its output to the width of each stack",
    "unembeds": "compute scores over a vocabulary",
    "sharded": "step on sharded parameters",
    "compiles": "be compiled by torch",
}
_VISIBILITY: Final[Mapping[str, str]] = {
    "both": "needs bidirectional tokens",
    "past": "needs causal tokens",
    "any": "works with causal and bidirectional tokens",
}
_PREDICTIONS: Final[Mapping[str, str]] = {
    "class": "a class",
    "tags": "a tag for each word",
    "score": "a number",
    "answer": "the answer in a second text",
    "choice": "the best of several continuations",
}
_DESCRIPTIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "visibility": lambda value: _VISIBILITY.get(value, ""),
    "hooks": lambda value: f"encodes positions through: {', '.join(value)}" if value else "encodes no positions",
    "position_hooks": lambda value: f"lets a position {', '.join(value)}" if value else "does not use a position",
    "reads_keys": lambda value: "" if value == "all" else f"a token attends to {value} of the others",
    "normalized": lambda value: f"the weights of a query {'sum to at most 1' if value else 'have any sum'}",
    "bidirectional": lambda value: "" if value else "is valid in causal stacks only",
    "content_based": lambda value: "" if value else "the weights of a token do not depend on its content",
    "final_norm": lambda value: f"{'a' if value else 'no'} norm follows the last layer",
    "needs": lambda value: f"needs {', '.join(value)}" if value else "",
    "provides": lambda value: f"has {', '.join(value)}" if value else "",
    "corrupts": lambda value: "changes what the model sees" if value else "",
    "separates": lambda value: "forms examples of several texts, which must not see each other" if value else "",
    "predicts": lambda value: f"predicts {_PREDICTIONS.get(value, value)} for a new text",
    "example_kind": lambda value: f"forms examples as {value}" if value else "",
    "exact_gradients": lambda value: "" if value else "gradients are estimates",
    "exact_conversions": lambda value: "" if value else "weights are converted approximately",
    "rate_factors": lambda value: (
        "gives tensors learning rates of their own, for steps of Adam's size" if value else ""
    ),
    "averages": lambda value: "evaluates and saves averaged weights" if value else "",
    "adam_like": lambda value: "" if value else "steps have another size than Adam's",
    "waits": lambda value: "each step waits for values from the device" if value else "",
    "idle_steps": lambda value: "may waste its first or last step" if value else "",
    "stochastic": lambda value: "draws random numbers in training" if value else "",
    "unit_weights": lambda value: "vectors of weights along the stream have length 1 after each step" if value else "",
    "output_normalized": lambda value: "" if value else "the output of the last layer is not normalized",
    "mixes_tokens": lambda value: "a sublayer reads tokens before its own" if value else "",
    "identity_path": lambda value: "" if value else "a layer without sublayer outputs does more than scale its input",
    "table": lambda value: "cannot encode positions beyond its table" if value else "",
    "segments": lambda value: "distinguishes two segments of an example" if value else "",
    "parts": lambda value: f"reads the stacks body, {', '.join(value)}" if value else "",
    "optional_parts": lambda value: f"reads {', '.join(value)} where there is one",
    "adds_padding": lambda value: "pads examples" if value else "",
    "sets_order": lambda value: "gives tokens an order of its own" if value else "",
    "copies_tokens": lambda value: "reads the text twice in one sequence" if value else "",
    "bias": lambda value: "" if value == "none" else f"its bias depends on {value}",
    "lossy": lambda value: "does not restore a text exactly" if value else "",
    "modality": lambda value: "" if value == "text" else f"of {value}",
    "fixed": lambda value: "has a vocabulary without training" if value else "",
    "packs_documents": lambda value: f"{'works' if value else 'does not work'} with packed documents",
    "provides_if": lambda value: ", ".join(
        f"{content} where `{option}` is {values.replace('|', ', ') or 'set'}"
        for content, (option, _, values) in ((name, text.partition("=")) for name, text in value.items())
    ),
    "document_facts": lambda value: f"has labels of its documents: {', '.join(value)}" if value else "",
    "teacher": lambda value: ", ".join(f"`{option}` is its teacher's dims.{size}" for size, option in value.items()),
    "options_from_corpus": lambda value: f"reads from the corpus: {', '.join(value)}" if value else "",
    "distance_bias": lambda value: "its bias depends only on the distance of tokens" if value else "",
    "owner": lambda value: f"each {value} has its own",
    "every_evaluation": lambda value: "runs at each evaluation" if value else "",
    "likelihood": lambda value: "gives the likelihood of a text: perplexity, bits per byte" if value else "",
    "token_terms": lambda value: f"predicts tokens of the text: {', '.join(value)}" if value else "",
    "squared_error": lambda value: "measures a squared error" if value else "",
    "other_corpus": lambda value: f"evaluates the objectives on the corpus of its option `{value}`" if value else "",
    "own_tokens": lambda value: "runs the model on inputs of its own" if value else "",
    "score_terms": lambda value: "" if value == 1 else f"{value} terms share the scale of the scores",
}


def describe_option(option: Option) -> str:
    """Describe an option: its meaning, limits and default."""
    if option.kind.name == "group":
        return f"{option.doc} (a group)"
    return f"{option.doc} ({describe_values(option)}; {describe_default(option)})"


def describe_values(option: Option) -> str:
    """Describe the valid values of an option: `a whole number; ≥ 1; divides dims.heads`."""
    return "; ".join(filter(None, [str(option.kind), *map(_describe_limit, option.limits)]))


def describe_default(option: Option) -> str:
    """Describe the default of an option, or name an example if it has none."""
    if option.required:
        return f"required, such as {json.dumps(option.example, ensure_ascii=False)}"
    return f"default {json.dumps(option.default, ensure_ascii=False)}"


def _describe_limit(limit: Limit) -> str:
    if isinstance(limit, Divides):
        return f"divides dims.{limit.dim}"
    if isinstance(limit, AtLeast):
        return f"at least dims.{limit.dim}"
    return f"at most dims.{limit.dim}" if isinstance(limit, AtMost) else str(limit)


def describe_traits(traits: Mapping[str, Any]) -> Iterator[str]:
    """Yield a short description of each trait: `can mask later positions`."""
    for name, value in traits.items():
        if name in _CAPABILITIES:
            yield f"{'can' if value else 'cannot'} {_CAPABILITIES[name]}"
            continue
        text = _DESCRIPTIONS.get(name, lambda value, name=name: f"{name}: {value}")(value)
        if text:
            yield text


def _describe_stacks(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        visibility = "causal" if part.causal else "bidirectional"
        cross = f", and attends to the {part.cross}" if part.cross else ""
        recurrence = ", recurrent" if part.recurrent else ""
        yield f"part {part.name}, at {part.path}: {visibility}{recurrence}{cross}"
