"""Resolution of a spec: every value validated, every default filled in, or one error with every problem.

The rules across fields read the traits of components, never their names. A cache saves repeated validation: most values
of a study's many specs are the same object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import join_names
from paribus.registry import Entry, Index, error_from, index, with_plugins
from paribus.specs import attention_rules, data_rules, training_rules
from paribus.specs.fields import ALWAYS, ARCHITECTURE, DATA, DIMS, DROPOUT, FREEZE_OPTIONS, KEYS, META, SEED
from paribus.specs.interpolation import resolve_references
from paribus.specs.load import Source, load
from paribus.specs.model_sources import SOURCES, resolve_source
from paribus.specs.named_plugins import files_of_sources, files_of_spec, may_name_files
from paribus.specs.part_overrides import resolve_parts
from paribus.specs.spec_view import SpecView, Violation, view_spec
from paribus.specs.trainer_options import (
    check_header,
    division_violations,
    freezing_violations,
    resolve_trainer,
    sharding_violations,
)
from paribus.specs.tree import UNREAD, Keys, Tree, copy_values
from paribus.specs.values import Validator, check_sizes, resolve_components
from paribus.storage import atomic

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from paribus.registry import Registry

Rule = Callable[[SpecView], Iterable[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    attention_rules.position_fits,
    attention_rules.position_sees_the_past,
    attention_rules.attention_is_causal,
    attention_rules.attention_is_bidirectional,
    attention_rules.attention_crosses,
    attention_rules.attention_keeps_documents_apart,
    data_rules.objective_packs,
    data_rules.examples_can_be_sorted,
    attention_rules.placement_can_wrap,
    attention_rules.separate_inputs_are_read,
    attention_rules.recurrence_reads,
    training_rules.objective_fits,
    training_rules.visibility_fits_the_objective,
    training_rules.attention_supports_order,
    training_rules.neighbours_are_seen,
    training_rules.copies_are_not_counted,
    training_rules.streams_are_trained,
    training_rules.objectives_combine,
    training_rules.needs_are_met,
    training_rules.teacher_is_used,
    training_rules.vocabulary_has_room,
    training_rules.segments_have_embeddings,
    training_rules.widths_are_met,
    training_rules.shared_layers_are_alike,
    data_rules.tokenizer_reads_the_corpus,
    data_rules.embedding_reads_the_examples,
    data_rules.embedding_has_a_vocabulary,
    data_rules.values_have_token_ids,
    data_rules.options_match_the_corpus,
    data_rules.measure_fits_the_model,
    data_rules.objectives_read_other_corpora,
)
UNSEEN: Final = (
    "dropout",
    "optimizer",
    "schedule",
    "trainer",
    "freeze",
    "seed",
)  # not read by rules; studies vary these most
_OBJECTS: Final = re.compile(r"_[a-z]+_|hydra(:.*)?")
NO_DIMS: Final[Mapping[str, Any]] = {}  # for values that depend on no sizes


def spec(name_or_path: Source, *overrides: str, registry: Registry | Index | None = None) -> DictConfig:
    """Return a validated, resolved, read-only spec from a preset's name, a path or a mapping, with overrides.

    `paribus.spec("bert-tiny", "attention=gqa", "attention.kv_heads=2")`. With `corpus=null`, it is the spec of a model
    for batches of your own.
    """
    return read_only(resolved(name_or_path, *overrides, registry=registry, optional=("corpus",)))


def resolved(
    source: Source, *overrides: str, registry: Registry | Index | None = None, optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a resolved spec as plain dicts and lists, for the engine. The slots in `optional` may be null."""
    index = index_of(registry)
    if may_name_files(source, overrides):
        files = (*files_of_spec(source, index), *files_of_sources(source, overrides, index))
        index = with_plugins(index, files)
    return check(load(source, overrides, index), index, optional=optional)


def read_only(resolved: Mapping[str, Any]) -> DictConfig:
    """Return a resolved spec as a read-only DictConfig."""
    from omegaconf import OmegaConf

    return OmegaConf.create(dict(resolved), flags={"readonly": True})


def index_of(components: Registry | Index | None) -> Index:
    """Return the component index of a registry, or that of the installed plugins."""
    if components is None:
        return index()
    return components if isinstance(components, Index) else components.index


def canonical(spec: Mapping[str, Any] | DictConfig) -> bytes:
    """Return the canonical form of a resolved spec: JSON with sorted keys."""
    return atomic.canonical_json(_plain(spec))


def spec_hash(spec: Mapping[str, Any] | DictConfig) -> str:
    """Return the sha256 of the canonical form."""
    return atomic.digest(canonical(spec))


def _plain(spec: Any) -> Any:
    if type(spec).__module__.partition(".")[0] != "omegaconf":
        return spec
    from omegaconf import OmegaConf

    return OmegaConf.to_container(spec, resolve=True)


def check(
    tree: Tree, index: Index, cache: ReadingCache | None = None, *, optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the resolved spec, plain values with every default, or raise one error with every problem.

    The slots in `optional` may be null. `cache` caches earlier checks with this index. Specs may share values: none is
    changed.
    """
    cache = cache or ReadingCache()
    if cache.contains(tree.data, _has_reference):
        resolve_references(tree)
    validator = Validator(tree, index)
    if cache.contains(tree.data, _names_object, key=True):
        tree.data = copy_values(tree.data)
        _remove_objects(validator, tree.data, ())
    data = tree.data
    check_header(validator, data)
    validator.check_keys([key for key in data if key not in META], (), KEYS)
    resolved = _resolve_keys(validator, data, cache, optional)
    topology = _entry(validator, resolved)
    if topology is not None:
        visible = {key: value for key, value in resolved.items() if key not in UNSEEN}
        for problem in cache.violations(visible, partial(_judge, validator, topology, visible)):
            validator.add_error(*problem)
        for problem in (
            *sharding_violations(index, resolved),
            *division_violations(resolved),
            *freezing_violations(resolved),
            *training_rules.factor_violations(index, resolved),
            *training_rules.averaging_violations(index, resolved),
        ):
            validator.add_error(*problem)
    if validator.problems:
        raise error_from(validator.problems)
    return {key: resolved[key] for key in KEYS if key in resolved}


def _judge(validator: Validator, topology: Entry, spec: Mapping[str, Any]) -> list[Violation]:
    view = view_spec(validator, topology, spec)
    return [problem for rule in RULES for problem in rule(view)]


def _resolve_keys(
    validator: Validator, data: Mapping[str, Any], cache: ReadingCache, optional: Sequence[str]
) -> dict[str, Any]:
    dims = cache.read(validator, ("dims",), data.get("dims"), NO_DIMS, partial(_dims, validator, data))
    read_value = partial(_topology, validator, data, dims)
    resolved: dict[str, Any] = {"dims": dims}
    resolved["topology"] = cache.read(validator, ("topology",), data.get("topology"), dims, read_value)
    topology = _entry(validator, resolved)
    for slot in (*ARCHITECTURE, *ALWAYS):
        if slot in optional and slot in data and data[slot] is None:
            resolved[slot] = None
        elif _is_read(validator, data, slot, topology):
            read_value = partial(resolve_components, validator, slot, data[slot], (slot,), dims)
            resolved[slot] = cache.read(validator, (slot,), data[slot], dims, read_value)
    given = {option.name: data[option.name] for option in (DROPOUT, SEED) if option.name in data}
    resolved |= validator.read_options((DROPOUT, SEED), given, (), dims)
    node = data["data"] if data.get("data") is not None else {}
    data_options = validator.as_mapping(node, ("data",), join_names(option.name for option in DATA)) or {}
    read_value = partial(validator.read_options, DATA, data_options, ("data",), dims)
    resolved["data"] = cache.read(validator, ("data",), data_options, dims, read_value)
    read_value = partial(resolve_trainer, validator, data)
    resolved["trainer"] = cache.read(validator, ("trainer",), data.get("trainer"), NO_DIMS, read_value)
    if data.get("freeze") is not None:
        resolved["freeze"] = _freeze(validator, data["freeze"])
    resolved["evaluate"] = _read_list(validator, data, "evaluate", "objective", dims)
    if data.get("measure") is not None:
        resolved["measure"] = _read_list(validator, data, "measure", "measure", dims)
    resolved["parts"] = resolve_parts(validator, topology, data, dims) if data.get("parts") else cache.none
    models = {key: resolve_source(validator, data, resolved, key) for key in SOURCES}
    return {**resolved, **{key: model for key, model in models.items() if model is not None}}


def _entry(validator: Validator, resolved: Mapping[str, Any]) -> Entry | None:
    node = resolved["topology"]
    return None if node is UNREAD else validator.index.entries["topology"][node["name"]]


def _has_reference(text: str) -> bool:
    return "${" in text


def _names_object(key: str) -> bool:
    return key.startswith(("_", "hydra")) and bool(_OBJECTS.fullmatch(key))


def _remove_objects(validator: Validator, value: Any, keys: Keys) -> None:
    """Remove keys by which other tools name Python objects, and report them."""
    if isinstance(value, dict):
        for key in [key for key in value if _OBJECTS.fullmatch(key)]:
            del value[key]
            message = f"unknown key `{key}`: specs never name Python objects, only components that are installed"
            validator.add_error("python-object", (*keys, key), message)
        for key, item in value.items():
            _remove_objects(validator, item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _remove_objects(validator, item, (*keys, index))


def _dims(validator: Validator, data: Mapping[str, Any]) -> dict[str, Any]:
    names = join_names(option.name for option in DIMS)
    if data.get("dims") is None:
        validator.add_error("missing", ("dims",), "`dims` is missing: the sizes of the model", names)
        return {option.name: UNREAD for option in DIMS}
    dims_node = validator.as_mapping(data["dims"], ("dims",), names)
    if dims_node is None:
        return {option.name: UNREAD for option in DIMS}
    dims = validator.read_options(DIMS, dims_node, ("dims",), {})
    check_sizes(validator, dims, ("dims",))
    return dims


def _freeze(validator: Validator, node: Any) -> Any:
    """Read `freeze`: paths, or a mapping of options. Which paths there are, only the model knows."""
    names = f"paths of modules or parameters, or {join_names(option.name for option in FREEZE_OPTIONS)}"
    options = {"paths": node} if isinstance(node, str | list) else validator.as_mapping(node, ("freeze",), names)
    return UNREAD if options is None else validator.read_options(FREEZE_OPTIONS, options, ("freeze",), NO_DIMS)


def _topology(validator: Validator, data: Mapping[str, Any], dims: Mapping[str, Any]) -> Any:
    if data.get("topology") is None:
        names = join_names(validator.index.names("topology"))
        return validator.add_error("missing", ("topology",), "`topology` is missing: the stacks of the model", names)
    return validator.read_component("topology", data["topology"], ("topology",), dims)


def _is_read(validator: Validator, data: Mapping[str, Any], slot: str, topology: Entry | None) -> bool:
    """Return whether to read a slot; report one that is missing or unused."""
    present = data.get(slot) is not None  # null removes the value of a preset
    read = slot in ALWAYS or topology is None or slot in topology.reads
    if present and not read:
        assert topology is not None, "only a known topology reads less than all"
        message = f"the topology `{topology.name}` does not use `{slot}`"
        validator.add_error("unused-option", (slot,), message, f"{slot}=null; it uses {join_names(topology.reads)}")
    if read and not present and (slot in ALWAYS or topology is not None):
        reason = "every spec needs one" if slot in ALWAYS or topology is None else f"`{topology.name}` uses it"
        names = join_names(validator.index.names(slot))
        validator.add_error("missing", (slot,), f"`{slot}` is missing: {reason}", names)
    return present and read


def _read_list(validator: Validator, data: Mapping[str, Any], key: str, slot: str, dims: Mapping[str, Any]) -> Any:
    """Read a list of components, or a single one."""
    if data.get(key) is None:
        return None
    items = data[key] if isinstance(data[key], list) else [data[key]]
    return resolve_components(validator, slot, items, (key,), dims)


@final
class ReadingCache:
    """Cache of values without problems. Values with problems are read again, so that each is reported where it is.

    Values are identified by `id`; the cache keeps a reference to each, so that no other value gets the same id.
    """

    def __init__(self) -> None:
        self.none: dict[str, Any] = {}  # the shared empty value of a missing key
        self._values: dict[tuple[object, ...], tuple[Any, Any, Any]] = {}
        self._without_match: dict[object, dict[int, Any]] = {}
        self._violations: dict[tuple[object, ...], tuple[Any, Sequence[Violation]]] = {}

    def read(
        self, validator: Validator, keys: Keys, value: Any, dims: Mapping[str, Any], read_value: Callable[[], Any]
    ) -> Any:
        """Return the result of `read_value`, which depends only on the value at `keys`, the dims and the index."""
        if not isinstance(value, (dict, list, str)):
            return read_value()
        key = (keys, id(value), id(dims))
        cached = self._values.get(key)
        if cached is None:  # an equal value may be cached
            equal_key = (keys, repr(value), id(dims))
            result = self._values[equal_key][2] if equal_key in self._values else read_value()
            if validator.problems:  # perhaps of this value
                return result
            self._values[key] = self._values[equal_key] = cached = value, dims, result
        return cached[2]

    def violations(
        self, visible: Mapping[str, Any], find_violations: Callable[[], Sequence[Violation]]
    ) -> Sequence[Violation]:
        """Return the violations of the rules in the visible part of a spec."""
        key = (*visible, *(id(value) if value else repr(value) for value in visible.values()))
        cached = self._violations.get(key)
        if cached is None:
            self._violations[key] = cached = [*visible.values()], find_violations()
        return cached[1]

    def contains(self, value: Any, matches: Callable[[str], bool], *, key: bool = False) -> bool:
        """Return whether any text in a value, or any key if `key` is set, matches a predicate.

        Values without a match are cached for each predicate.
        """
        if isinstance(value, str):
            return not key and matches(value)
        checked = self._without_match.setdefault(matches, {})
        if not isinstance(value, (dict, list)) or id(value) in checked:
            return False
        if isinstance(value, dict) and key and any(map(matches, value)):
            return True
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, str):
                if not key and matches(item):
                    return True
            elif isinstance(item, (dict, list)) and id(item) not in checked and self.contains(item, matches, key=key):
                return True
        checked[id(value)] = value
        return False
