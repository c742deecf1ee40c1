"""Fuzzing of specs and studies: 10,000 mutated documents, and 1,000 random valid specs."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paribus.assembly.build import build
from paribus.assembly.metric_names import placeholder_vocabulary
from paribus.cli.console import Session
from paribus.errors import EXIT_OK, EXIT_SPEC, SpecError
from paribus.kernels import KERNELS
from paribus.registry import Entry, Registry
from paribus.specs import resolved, spec_hash
from paribus.testing.host_models import Case, alternative_values, base_specs, example_node
from paribus.testing.option_specs import flatten_options
from paribus.testing.small_model import SmallModel

Cli = Callable[..., Any]

SECONDS = 10.0  # of CPU time, the limit of a check
PRESETS = (
    "encoder-tiny", "gpt-tiny", "seq2seq-tiny", "bert-tiny", "t5-tiny", "electra-tiny", "rnnsearch-tiny", "vit-tiny",
)  # fmt: skip
SMALL = {"dims.width": 8, "dims.layers": 1}
STUDIES: tuple[dict[str, Any], ...] = (
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}]},
        "seeds": 2, "budget": {"steps": 3}, "metric": {"name": "val/mlm/loss", "better": "lower", "margin": 0.02},
    },
    {
        "base": {"preset": "gpt-tiny", **SMALL}, "design": "grid",
        "vary": {"norm": ["rmsnorm"], "optimizer.lr": [1e-3]},
        "seeds": [1, 2], "budget": {"tokens": 5000}, "match": {"on": "params", "by": "feedforward.expand"},
        "metric": "val/clm/loss", "evaluate": ["clm"], "timeout": 60, "launcher": "local",
    },
    {
        "base": "encoder-tiny", "design": "list", "variants": [{"attention": "mqa", "norm": "rmsnorm"}],
        "metric": "val/mlm/loss", "budget": {"steps": 2},
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}, "seeds": 2,
        "scales": {"s": {"dims.width": 8}, "m": {"dims.width": 16}}, "tune": {"optimizer.lr": [1e-3, 2e-3]},
        "match": [None, {"on": "flops", "by": "feedforward.expand"}], "metric": "val/mlm/loss",
        "exclude": [{"attention": "mqa", "norm": "rmsnorm"}], "loggers": ["csv"], "design": "grid",
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "design": "ladder", "seeds": 2, "metric": "val/mlm/loss",
        "changes": [{"norm": "rmsnorm"}, {"name": "gated", "feedforward": "glu"}],
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"finetune.optimizer.lr": [1e-4]}, "seeds": 2,
        "stages": {
            "pretrain": {"objective": "mlm", "budget": {"steps": 4}},
            "finetune": {
                "from": "pretrain", "optimizer.lr": 5e-4, "budget": {"steps": 2},
                "tasks": {"sections": {"objective": {"name": "classify", "classes": 6}, "corpus": "sections"}},
            },
        },
        "metric": {"name": "val/classify/accuracy", "stage": "finetune", "task": "sections", "better": "higher"},
    },
)  # fmt: skip

WORDS = st.sampled_from(
    [
        "mha", "gqa", "restricted", "rope", "alibi", "learned", "none", "mlm", "clm", "nsp", "encoder", "decoder",
        "adamw", "text", "tokens", "???", "${dims.width}", "${seed}", "${oc.env:HOME}", "${", "", "no", "1e-3", "nan",
        "val/mlm/loss", "base", "\u202e", "a.b", "params", "0x10", "010", "é" * 70, "../x", "\x1b[0m",
    ]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 7, 8, 64, 10**6, 10**9, 10**20, 0.0, -0.5, 0.5, 1.5, 1e-300, 1e300])
SCALARS = st.one_of(NUMBERS, WORDS, st.none(), st.booleans(), st.floats(), st.text(max_size=5))
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.one_of(WORDS, st.integers(0, 3)), SCALARS, max_size=3)
)
OPERATIONS = st.sampled_from(["put", "put", "put", "take", "move", "copy", "add", "rename"])
CHANGES = st.lists(st.tuples(st.integers(0, 10**6), OPERATIONS, VALUES, st.integers(0, 10**6)), min_size=1, max_size=3)
MARKS = st.sampled_from([*"{}[]:,&*!|>-?'\"#%@ \t\n\0\ufeff"])
MISTAKES = st.tuples(st.integers(0, 10**6), st.sampled_from(["cut", "twice", "in", "bit"]), MARKS)
CORRUPTIONS = st.lists(MISTAKES, max_size=2)
MANY = settings(
    database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), print_blob=False
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Return every container of a document with each of its keys."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


def changed(document: Any, index: int, operation: str, value: Any, other_index: int) -> None:
    """Apply one change to a document in place."""
    entries = places(document)
    if not entries:
        return
    node, key = entries[index % len(entries)]
    if operation == "put":
        node[key] = value
    elif operation == "take":
        del node[key]
    elif operation in ("move", "copy"):
        source, source_key = entries[other_index % len(entries)]
        node[key] = yaml.safe_load(yaml.safe_dump(source[source_key]))
        if operation == "move" and isinstance(source, dict) and source.keys() > {source_key}:
            del source[source_key]
    elif isinstance(node, dict):
        name = str(value)[:80] if operation == "add" else f"{key}{'sx_'[other_index % 3]}"
        node[name] = value if operation == "add" else node.pop(key)


def shallow(document: Any) -> None:
    """Limit the number of layers: thousands are valid, but slow to build."""
    for node, key in places(document):
        if str(key).endswith("layers") and isinstance(node[key], int) and 12 < node[key] <= 10_000:
            node[key] = 12


def corrupted(data: bytes, position: int, operation: str, mark: str) -> bytes:
    """Return text with one error in it."""
    position %= len(data) + 1
    if operation == "cut":
        return data[:position]
    if operation == "twice":
        return data[:position] + data
    if operation == "bit" and position < len(data):
        return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
    return data[:position] + mark.encode() + data[position:]


class TooLongError(BaseException):
    """Raised to stop a check that takes too long."""


@contextmanager
def limited(seconds: float) -> Iterator[list[str]]:
    """Stop a block after some CPU seconds, and note that in the yielded list, as `paribus` reports any exception."""
    timeouts: list[str] = []

    def on_timeout(number: int, frame: object) -> None:
        timeouts.append("it takes too long")
        raise TooLongError

    previous_handler = signal.signal(signal.SIGVTALRM, on_timeout)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield timeouts
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)


@pytest.fixture
def cached_registry(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    """Use one registry for all specs."""
    monkeypatch.setattr(Session, "index", lambda session: registry.index)
    monkeypatch.setattr(Session, "registry", lambda session: registry)


@pytest.fixture(scope="module")
def documents(registry: Registry) -> list[str]:
    """Documents to mutate: resolved presets, short specs, and studies."""
    resolved_specs = [resolved({"preset": preset, **SMALL}, registry=registry) for preset in PRESETS]
    short_specs = [{"preset": preset, **SMALL, "attention": {"name": "mha"}, "seed": 1} for preset in PRESETS[:3]]
    return [yaml.safe_dump(document, sort_keys=False) for document in (*resolved_specs, *short_specs, *STUDIES)]


def check_mutated_specs(cli: Cli, documents: list[str], count: int) -> Counter[int]:
    """Check `count` mutated specs and studies, and return the number of each exit code."""
    ends: Counter[int] = Counter()

    @settings(MANY, max_examples=count)
    @given(st.integers(0, len(documents) - 1), CHANGES, CORRUPTIONS)
    def check_document(number: int, changes: list[Any], marks: list[Any]) -> None:
        document = yaml.safe_load(documents[number])
        for change in changes[: 1 + changes[0][-1] % 2 * 2]:  # mostly one change, which passes more of the checks
            changed(document, *change)
        shallow(document)
        data = yaml.safe_dump(document, allow_unicode=True, sort_keys=False).encode(errors="surrogatepass")
        for mark in marks if len(marks) == 2 else ():
            data = corrupted(data, *mark)
        Path("s.yaml").write_bytes(data)
        with limited(SECONDS) as timeouts:
            result = cli("check", "s.yaml")
        assert not timeouts, data
        ends[result.code] += 1
        lines = result.err.splitlines()
        assert result.code in (EXIT_OK, EXIT_SPEC), (result, data)
        assert result.code == EXIT_OK or (lines and not result.out), data
        assert all(line.startswith("error[") for line in lines if result.code), (result, data)

    check_document()
    return ends


@pytest.mark.thorough
def test_mutated_specs_are_accepted_or_rejected_with_an_error(
    cli: Cli, cached_registry: None, documents: list[str]
) -> None:
    ends = check_mutated_specs(cli, documents, 100)
    assert ends[EXIT_SPEC] > 20
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]


@pytest.mark.faults
@pytest.mark.held("A1", "A3", "A12", "A18", "A21", "A22", "A23", "A24")
def test_ten_thousand_mutated_specs_are_accepted_or_rejected_with_an_error(
    cli: Cli, cached_registry: None, documents: list[str], record_property: Callable[[str, object], None]
) -> None:
    ends = check_mutated_specs(cli, documents, 10_000)
    assert ends.total() >= 9_000  # hypothesis does not repeat an example
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]
    record_property("mutated specs and studies", ends.total())
    record_property("mutated specs and studies: rejected with an error", ends[EXIT_SPEC])
    record_property("mutated specs and studies: accepted", ends[EXIT_OK])
    record_property("mutated specs and studies: tracebacks, hangs and new files", 0)


class RandomSpec(NamedTuple):
    """Spec that is valid by the schema of the registry."""

    description: str
    user_spec: dict[str, Any]
    spec: dict[str, Any]


def random_specs(registry: Registry, rng: random.Random) -> Iterator[RandomSpec]:
    """Yield specs with random components in models that the rules allow, with options within their limits."""
    preset_specs = base_specs(None, registry)
    slots = (
        "attention",
        "position",
        "norm",
        "placement",
        "feedforward",
        "embedding",
        "initialisation",
        "objective",
        "schedule",
    )
    entries: list[Entry] = [entry for slot in slots for entry in registry.index.entries[slot].values()]
    while True:
        base = rng.choice(list(preset_specs))
        changes: dict[str, Any] = {}
        for entry in rng.sample(entries, rng.choice([1, 1, 2])):
            case = Case(registry, entry, preset_specs)
            changes |= case.component_overrides(base, _with_options(entry, preset_specs[base], rng, registry))
        user_spec = {**preset_specs[base], **changes}
        try:
            yield RandomSpec(f"{base} {changes}", user_spec, resolved(user_spec, registry=registry))
        except SpecError:
            continue  # a rule or a limit rejects it


def _with_options(entry: Entry, base: Any, rng: random.Random, registry: Registry) -> dict[str, Any]:
    node = example_node(entry)
    options = list(flatten_options(entry.options))
    for path, option in rng.sample(options, min(len(options), rng.choice([0, 1, 2, 3]))):
        choices = alternative_values(option, resolved(base, registry=registry)) if option.kind.name != "slot" else []
        inner = node
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        if choices:
            inner[path[-1]] = rng.choice(choices)
    return node


def can_build(sample: RandomSpec, registry: Registry) -> bool:
    """Return whether a spec can be built; False if a component rejects it with a `SpecError`."""
    try:
        build(sample.spec, registry, placeholder_vocabulary(sample.spec, registry.index), KERNELS)
    except SpecError:
        return False
    return True


@pytest.mark.thorough
def test_a_resolved_spec_resolves_to_itself_after_a_round_trip(registry: Registry) -> None:
    for sample in itertools.islice(random_specs(registry, random.Random(1)), 25):
        assert resolved(yaml.safe_load(yaml.safe_dump(sample.spec)), registry=registry) == sample.spec, (
            sample.description
        )


@pytest.mark.faults
@pytest.mark.held("A4", "A5", "A6", "A7", "A8", "A9")
def test_a_thousand_valid_specs_are_accepted_built_and_run(
    cli: Cli, cached_registry: None, registry: Registry, record_property: Callable[[str, object], None]
) -> None:
    built = evaluated = refused = 0
    hashes: set[str] = set()
    for sample in random_specs(registry, random.Random(20_260)):
        if spec_hash(sample.spec) in hashes:
            continue
        hashes.add(spec_hash(sample.spec))
        if not can_build(sample, registry):
            refused += 1
            assert refused < 300, "components reject too many specs that a rule should reject earlier"
            continue
        built += 1
        Path("s.yaml").write_text(yaml.safe_dump(sample.spec))
        result = cli("check", "s.yaml")
        assert (result.code, result.err) == (EXIT_OK, ""), (result, sample.description)
        assert result.out.startswith(f"# {spec_hash(sample.spec)}\n"), sample.description
        if built % 5 == 0:
            evaluated += run_forward(sample, registry)
        if built == 1_000:
            break
    assert evaluated >= 200
    record_property("random valid specs accepted", built)
    record_property("random valid specs: run forward", evaluated)


def run_forward(sample: RandomSpec, registry: Registry) -> int:
    """Run one forward pass of the model with its initial weights."""
    specimen = SmallModel(sample.spec, registry, perturbed=False)
    with torch.no_grad():
        assert specimen.hidden(specimen.with_segments(specimen.tokens(1, 8))).isfinite().all(), sample.description
    return 1
